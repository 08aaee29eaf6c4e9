"""What every host part answers: which raw inputs it takes, and the tensors that it makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flatout.data.source import Batch, Column


@dataclass(frozen=True)
class RawInput:
    """One input from outside. `kind`: number, category, date, array, photo, text or tokens. In `shape`, None is any length."""

    name: str
    kind: str
    dtype: str | None = None
    shape: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Signature:
    """`inputs` come from outside; `columns` are what the device part makes of them; `classes` are names in the order of ids."""

    inputs: tuple[RawInput, ...]
    columns: Mapping[str, Column]
    classes: tuple[str, ...] | None


class HostPart(Protocol):
    """Raw rows to tensors, with a state that is plain JSON. A row that can't be read is a DataError that names it."""

    @property
    def kind(self) -> str: ...

    @property
    def inputs(self) -> tuple[RawInput, ...]: ...

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """In the order of their ids; None where there are no classes, or their numbers are their names."""
        ...

    def rows(self, raw: Any) -> Batch:
        """One batch, on the host unless tensors came from elsewhere."""
        ...

    def to_json(self) -> dict[str, Any]: ...
