"""The model repository as the front needs it: which models there are, and a way to load and unload them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RepositoryEntry:
    """`state` is READY, UNAVAILABLE, LOADING or UNLOADING; `reason` says why a model is not ready."""

    name: str
    version: str
    state: str
    reason: str = ""


class Repository(Protocol):
    """`done` is called once, in the event loop, with a problem in words or None."""

    def index(self) -> Sequence[RepositoryEntry]: ...

    def load(self, name: str, done: Callable[[str | None], None]) -> None: ...

    def unload(self, name: str, done: Callable[[str | None], None]) -> None: ...
