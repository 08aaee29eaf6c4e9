"""Observes the script's print, loggers, progress bars and trackers during windows."""

from __future__ import annotations

import builtins
import logging
import sys
import threading
from typing import Any

from flatout.doctor import where
from flatout.doctor.marks import LOGGING, Marks
from flatout.doctor.patches import Patches
from flatout.doctor.seen import ScriptRecord

# hooked only if the script has imported them
_TRACKERS = (
    ("tqdm.std", "tqdm", ("refresh", "set_postfix", "set_description")),
    ("torch.utils.tensorboard.writer", "SummaryWriter", ("add_scalar", "add_scalars", "add_histogram", "add_image", "flush")),
    ("tensorboardX.writer", "SummaryWriter", ("add_scalar", "add_scalars", "add_histogram", "add_image", "flush")),
    ("wandb.sdk.wandb_run", "Run", ("log",)),
    ("mlflow", None, ("log_metric", "log_metrics", "log_param")),
)


class Talking:
    def __init__(self, marks: Marks, seen: ScriptRecord) -> None:
        self._marks, self._seen = marks, seen
        self._main = threading.get_ident()
        self._inside = False

    def install(self, patches: Patches) -> None:
        patches.wrap(builtins, "print", self._telling)
        patches.wrap(logging.Logger, "handle", self._telling)
        for module, owner, names in _TRACKERS:
            if module in sys.modules:
                holder = sys.modules[module] if owner is None else getattr(sys.modules[module], owner, None)
                for name in names if holder is not None else ():
                    patches.wrap(holder, name, self._telling)

    def _telling(self, original: Any) -> Any:
        def tell(*args: Any, **named: Any) -> Any:
            if self._inside or threading.get_ident() != self._main:
                return original(*args, **named)
            self._inside = True
            try:
                line = where.caller()
                self._seen.words[line] = self._seen.words.get(line, 0) + 1
                with self._marks.mark(LOGGING):
                    return original(*args, **named)
            finally:
                self._inside = False

        return tell
