"""The protocol of host parts: which raw inputs they take, and the tensors they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flatout.data.source import Batch, Column


@dataclass(frozen=True)
class RawInput:
    """One raw input. `kind`: number, category, date, array, photo, text or tokens. In `shape`, None is any length."""

    name: str
    kind: str
    dtype: str | None = None
    shape: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Signature:
    """`inputs` are raw; `columns` come out of the device part; `classes` are names in the order of their ids."""

    inputs: tuple[RawInput, ...]
    columns: Mapping[str, Column]
    classes: tuple[str, ...] | None


class HostPart(Protocol):
    """Raw rows to tensors, with a state that is plain JSON. DataError names a row that can't be read."""

    @property
    def kind(self) -> str: ...

    @property
    def inputs(self) -> tuple[RawInput, ...]: ...

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """In the order of their ids; None if there are no classes, or their names are their numbers."""
        ...

    def rows(self, raw: Any) -> Batch:
        """One batch, on the host. Tensors that were on a device stay there."""
        ...

    def to_json(self) -> dict[str, Any]: ...
