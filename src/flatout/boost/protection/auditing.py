"""Protection without the kernel: Python's audit hooks block calls that would change a real file.

C libraries have no audit hooks and can still change real files, so this is used only with --unprotected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ONE_PATH = {
    "os.remove": 1,
    "os.rmdir": 1,
    "os.mkdir": 2,
    "os.truncate": None,
    "os.chmod": 2,
    "os.chown": 3,
    "os.utime": 3,
    "os.setxattr": None,
    "os.removexattr": None,
    "sqlite3.connect": None,
}  # fmt: skip  event: index of its argument that is the descriptor of an open folder
_TWO_PATHS = ("os.rename", "os.link")
_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn")
_COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "clang++", "ptxas", "nvcc", "ld", "ldconfig", "uname")
_WORKERS = ("torch/_inductor", "multiprocessing.")


def enter(open_to: Iterable[Path]) -> None:
    """For the rest of this process: an audit hook can't be removed."""
    allowed = ("/dev", "/proc/self", *(os.path.realpath(place) for place in open_to))

    def check(path: Any, folder: int = -1) -> None:
        if isinstance(path, int) or path is None or path == ":memory:":
            return  # an open file was already allowed
        base = os.getcwd() if folder is None or folder < 0 else os.readlink(f"/proc/self/fd/{folder}")
        whole = os.path.normpath(os.path.join(base, os.fsdecode(path)))
        if not any(whole == one or whole.startswith(one + "/") for one in allowed):
            raise PermissionError(1, "blocked by flatout: a trial may not write here", whole)

    def heard(event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(given[2], int) and given[2] & _WRITES:
                check(given[0])
        elif event in _ONE_PATH:
            at = _ONE_PATH[event]
            check(given[0], given[at] if at is not None and len(given) > at else -1)
        elif event in _TWO_PATHS:
            check(given[0], given[2])
            check(given[1], given[3])
        elif event == "socket.bind" and isinstance(given[1], str | bytes):
            check(given[1])
        elif event == "os.symlink":
            check(given[1], given[2])
        elif event in _STARTS and not _is_torchs_own(given):
            raise PermissionError(1, f"blocked by flatout: a trial with --unprotected may not start programs ({given[0]!r})")

    sys.addaudithook(heard)


def _is_torchs_own(given: tuple[Any, ...]) -> bool:
    """Compilers and compile workers write only to their caches, which are allowed."""
    words = " ".join(map(str, given[1])) if len(given) > 1 and isinstance(given[1], list | tuple) else str(given[0])
    first = os.path.basename(words.split()[0]) if words.split() else ""
    return first in _COMPILERS or any(one in words for one in _WORKERS)
