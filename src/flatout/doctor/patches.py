"""Temporarily replaces attributes of other modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


class Patches:
    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """`make` gets the present attribute and returns its replacement."""
        present = getattr(owner, name, _ABSENT)
        if present is _ABSENT:  # another version of torch
            return
        own = vars(owner).get(name, _ABSENT)
        setattr(owner, name, make(present))
        self._undo.append((owner, name, own))

    def restore(self) -> None:
        self._put_back()
        self._undo.clear()

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Restores all originals inside the `with`."""
        replaced = [(owner, name, vars(owner)[name]) for owner, name, _ in self._undo]
        self._put_back()
        try:
            yield
        finally:
            for owner, name, value in replaced:
                setattr(owner, name, value)

    def _put_back(self) -> None:
        for owner, name, own in reversed(self._undo):
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
