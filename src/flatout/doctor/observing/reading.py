"""Observes copies between host and device, and reads of device values, for which the host waits. During windows only."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from flatout.doctor import where
from flatout.doctor.marks import COPY, READ, Marks
from flatout.doctor.patches import Patches
from flatout.doctor.seen import ScriptRecord

_READS = (
    "item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__repr__", "__format__", "nonzero",
    "__array__",
)  # fmt: skip


class HostReadObserver:
    def __init__(self, marks: Marks, seen: ScriptRecord) -> None:
        self._marks, self._seen = marks, seen
        self._main = threading.get_ident()
        self._inside = False

    def install(self, patches: Patches) -> None:
        for name in _READS:
            patches.wrap(Tensor, name, self._reading)
        for name in ("to", "cuda", "cpu", "copy_"):
            patches.wrap(Tensor, name, self._copying)
        if torch.cuda.is_available():
            patches.wrap(torch.cuda, "synchronize", self._waiting)
            patches.wrap(torch.cuda, "empty_cache", self._emptying)

    def _reading(self, original: Any) -> Any:
        def read(tensor: Tensor, *args: Any, **named: Any) -> Any:
            if tensor.device.type == "cpu" or self._inside or torch.compiler.is_compiling():
                return original(tensor, *args, **named)
            if threading.get_ident() != self._main:
                return original(tensor, *args, **named)
            self._inside = True
            try:
                line = where.caller()
                self._seen.reads[line] = self._seen.reads.get(line, 0) + 1
                with self._marks.mark(READ):
                    return original(tensor, *args, **named)
            finally:
                self._inside = False

        return read

    def _copying(self, original: Any) -> Any:
        def copy(tensor: Tensor, *args: Any, **named: Any) -> Any:
            if self._inside or torch.compiler.is_compiling() or threading.get_ident() != self._main:
                return original(tensor, *args, **named)
            source = args[0] if original.__name__ == "copy_" and args and isinstance(args[0], Tensor) else tensor
            was = source.device.type
            if was == "cpu" and not torch.cuda.is_available():
                return original(tensor, *args, **named)
            self._inside = True
            line = where.caller()
            mark = self._marks.begin(COPY if was == "cpu" else READ)
            try:
                result = original(tensor, *args, **named)
            finally:
                self._inside = False
                if mark is not None:
                    mark.__exit__(None, None, None)
            if isinstance(result, Tensor) and result.device.type != was:
                if was == "cpu":
                    key = (line, source.is_pinned(), not named.get("non_blocking", False))
                    self._seen.copies.setdefault(key, []).append(source.nbytes)
                else:
                    self._seen.reads[line] = self._seen.reads.get(line, 0) + 1
            return result

        return copy

    def _waiting(self, original: Any) -> Any:
        def synchronize(*args: Any, **named: Any) -> Any:
            line = where.caller()
            self._seen.reads[line] = self._seen.reads.get(line, 0) + 1
            with self._marks.mark(READ):
                return original(*args, **named)

        return synchronize

    def _emptying(self, original: Any) -> Any:
        def empty_cache() -> None:
            line = where.caller()
            self._seen.memory.cache_emptied[line] = self._seen.memory.cache_emptied.get(line, 0) + 1
            original()

        return empty_cache
