"""Observes the script's own writes to files during windows, other than checkpoints and logging.

Functions of Python are marked. The methods of an open file can't be replaced; the sampler sees them by their line.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import Any

from flatout.doctor import where
from flatout.doctor.marks import WRITE, Marks
from flatout.doctor.patches import Patches
from flatout.doctor.seen import ScriptRecord

_SYNCS = ("fsync", "fdatasync")  # of `os`: the disk has the data when they return
# marked only if the script has imported them
_WRITERS = (
    ("pathlib", "Path", ("write_text", "write_bytes")),
    ("json", None, ("dump",)),
    ("pickle", None, ("dump",)),
    ("numpy", None, ("save", "savez", "savez_compressed", "savetxt")),
    ("shutil", None, ("copy", "copy2", "copyfile", "move")),
)
_METHOD = re.compile(r"\.(write|writelines|writerow|writerows|flush)\(")
_TERMINAL = re.compile(r"\bstd(out|err)\b")


def is_write(line: str) -> bool:
    """Whether a line of source calls a method that writes to a file."""
    return _METHOD.search(line) is not None and _TERMINAL.search(line) is None


class Writing:
    def __init__(self, marks: Marks, seen: ScriptRecord) -> None:
        self._marks, self._seen = marks, seen
        self._main = threading.get_ident()
        self._inside = False

    def install(self, patches: Patches) -> None:
        for name in _SYNCS:
            patches.wrap(os, name, lambda original: self._writing(original, syncs=True))
        for module, owner, names in _WRITERS:
            if module in sys.modules:
                holder = sys.modules[module] if owner is None else getattr(sys.modules[module], owner)
                for name in names:
                    patches.wrap(holder, name, self._writing)

    def _writing(self, original: Any, syncs: bool = False) -> Any:
        def write(*args: Any, **named: Any) -> Any:
            if self._inside or threading.get_ident() != self._main:
                return original(*args, **named)
            self._inside = True
            try:
                line = where.caller()
                self._seen.writes[line] = self._seen.writes.get(line, 0) + 1
                self._seen.synced += syncs
                with self._marks.mark(WRITE):
                    return original(*args, **named)
            finally:
                self._inside = False

        return write
