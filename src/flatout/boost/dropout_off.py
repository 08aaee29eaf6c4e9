"""Switches dropout off in the models that a script calls, until it is switched on again."""

from __future__ import annotations

from typing import Any

from torch import nn

_DROPS = (nn.modules.dropout._DropoutNd,)


class DropoutOff:
    def __init__(self) -> None:
        self.is_off = True
        self._dropped: list[tuple[nn.Module, str, Any]] = []

    def prepare(self, module: nn.Module) -> None:
        for part in module.modules() if self.is_off else ():
            for name in ("p",) if isinstance(part, _DROPS) else ("dropout",):
                if isinstance(getattr(part, name, None), float) and getattr(part, name):
                    self._dropped.append((part, name, getattr(part, name)))
                    setattr(part, name, 0.0)

    def back_on(self) -> None:
        self.is_off = False
        for part, name, value in self._dropped:
            setattr(part, name, value)
        self._dropped.clear()
