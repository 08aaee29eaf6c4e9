"""One fault of the data: the column, a figure, and the change to the recipe that deals with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class GuardFinding:
    """`change` has the options of a recipe that deal with it; without one, `advice` says what to do."""

    guard: str
    column: str
    value: float
    figure: str
    advice: str
    change: Mapping[str, Any] = field(default_factory=dict)
    done: str = ""  # as said if the recipe has the change

    @property
    def words(self) -> str:
        """For a recipe that does not have the change."""
        return f"{self.column}: {self.figure}; {self.advice}"

    @property
    def done_words(self) -> str:
        """For a recipe that has the change."""
        return f"{self.column}: {self.figure}; {self.done}" if self.done else self.words
