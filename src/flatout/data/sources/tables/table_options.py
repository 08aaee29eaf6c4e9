"""What a user asks of a table: how its columns are used, and which of its rows are held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.base.errors import RecipeError, UsageError
from flatout.data.fitted.derived.asked import AskedColumns, asked_columns


@dataclass(frozen=True)
class TableOptions:
    """The options of `table`, except those about files."""

    label: str
    numeric: str | Sequence[str]
    categorical: str | Sequence[str]
    drop: str | Sequence[str]
    target: str
    holdout: float
    split: str | None
    steps: Mapping[str, Any] | None
    onehot: int
    min_count: int
    hash_buckets: int | None
    draw: str
    classes: int | None
    on_bad: str
    seed: int
    holdout_latest: str | None
    holdout_group: str | Sequence[str] | None
    columns: AskedColumns | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.holdout, int | float) or not 0 <= self.holdout < 1:
            raise UsageError(f"holdout is the share of rows to validate on, from 0 to below 1, got {self.holdout!r}")
        for name, least in (("onehot", 0), ("min_count", 1), ("hash_buckets", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise UsageError(f"{name} is a whole number, {least} or more, got {value!r}")

    def check_parts(self, validation: Any, test: Any) -> None:
        if self.holdout and validation is not None:
            raise UsageError("holdout and validation are two ways to get validation rows: give one of them")
        by = [name for name, given in (("holdout_latest", self.holdout_latest), ("holdout_group", self.group)) if given]
        if len(by) > 1:
            raise UsageError("holdout_latest and holdout_group are two ways to choose the rows to hold out: give one of them")
        if by and not self.holdout:
            raise UsageError(
                f"{by[0]} says which rows to hold out: give holdout too, the share of the rows, such as holdout: 0.2"
            )
        if self.split is not None and (self.holdout or validation is not None or test is not None):
            raise UsageError("split says which rows are for validation and test: leave out holdout, validation and test")

    @property
    def parting(self) -> tuple[Any, ...]:
        """What decides which rows are in which part."""
        by = (self.holdout_latest, self.group) if self.holdout_latest or self.group else ()
        return self.holdout, self.split, self.seed, self.weights, self.on_bad, *by

    @property
    def dropped(self) -> list[str]:
        return [self.drop] if isinstance(self.drop, str) else list(self.drop)

    @property
    def group(self) -> list[str]:
        """The columns in which rows of one group agree."""
        if self.holdout_group is None:
            return []
        return [self.holdout_group] if isinstance(self.holdout_group, str) else list(self.holdout_group)

    @property
    def weights(self) -> str | None:
        """The column of weights."""
        return None if self.draw in ("shuffle", "balanced") else self.draw


def columns_asked_for(derive: Any, where: Any, join: Any, time: str | None, latest: str | None) -> AskedColumns | None:
    if derive is None and where is None and join is None and time is None:
        return None
    asked, mistakes = asked_columns(derive, where, join, time or latest, read=False)
    if mistakes:
        raise RecipeError(mistakes, where="data")
    return asked
