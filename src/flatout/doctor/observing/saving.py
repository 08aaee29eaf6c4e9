"""Observes checkpoints that training waits for."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import torch

from flatout.doctor import where
from flatout.doctor.marks import CHECKPOINT, Marks
from flatout.doctor.patches import Patches
from flatout.doctor.seen import Period, ScriptRecord


class Saving:
    def __init__(self, marks: Marks, seen: ScriptRecord) -> None:
        self._marks, self._seen = marks, seen
        self._main = threading.get_ident()
        self._wrapped: set[str] = set()

    def install(self, patches: Patches) -> None:
        patches.wrap(torch, "save", self._saving)
        self.install_late(patches)

    def install_late(self, patches: Patches) -> None:
        """Also hooks libraries that the script has imported since the start."""
        for module, names in (("safetensors.torch", ("save_file", "save_model")), ("torch.distributed.checkpoint", ("save",))):
            if module in sys.modules and module not in self._wrapped:
                self._wrapped.add(module)
                for name in names:
                    patches.wrap(sys.modules[module], name, self._saving)

    def _saving(self, original: Any) -> Any:
        def save(*args: Any, **named: Any) -> Any:
            if threading.get_ident() != self._main:
                return original(*args, **named)
            line, began = where.caller(), time.time_ns()
            with self._marks.mark(CHECKPOINT):
                result = original(*args, **named)
            self._seen.checkpoints.append(Period(began, time.time_ns(), line))
            return result

        return save
