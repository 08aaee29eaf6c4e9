"""Which columns of a batch are passed to the model's forward, and what counts as its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flatout.base.errors import DataError, UsageError, did_you_mean

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Inputs:
    """Written as "x", ["a", "b"] (by position) or {"input_ids": "x"} (keyword of forward -> column)."""

    columns: tuple[str, ...] = ("x",)
    keywords: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, written: object) -> Inputs:
        match written:
            case Inputs():
                return written
            case str() if written:
                return cls((written,))
            case list() | tuple() if written and all(isinstance(column, str) for column in written):
                return cls(tuple(written))
            case Mapping() if written and all(isinstance(part, str) for pair in written.items() for part in pair):
                return cls(tuple(written.values()), tuple(written))
        raise UsageError(
            f"inputs must be a column 'x', columns by position ['a', 'b'] or keywords {{'input_ids': 'x'}}; got {written!r}"
        )

    def written(self) -> str | list[str] | dict[str, str]:
        if self.keywords is not None:
            return dict(zip(self.keywords, self.columns, strict=True))
        return self.columns[0] if len(self.columns) == 1 else list(self.columns)

    def call(self, model: Callable[..., Any], batch: Batch) -> Any:
        """The model's output; for a transformers-style object or a dict, its logits."""
        for column in self.columns:
            if column not in batch:
                raise DataError(f"inputs names a column {column!r} that the data does not have; {did_you_mean(column, batch)}")
        given = [batch[column] for column in self.columns]
        output = model(*given) if self.keywords is None else model(**dict(zip(self.keywords, given, strict=True)))
        if isinstance(output, Tensor):
            return output
        if isinstance(output, Mapping):
            return output.get("logits", output)
        return getattr(output, "logits", output)
