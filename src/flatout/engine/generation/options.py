"""How the next token is chosen, and when a text ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flatout.base.errors import UsageError


@dataclass(frozen=True)
class GenerateOptions:
    """`tokens`: how many at most. `temperature` 0 is the same as `greedy`. `stop`: the text ends before any of these."""

    tokens: int = 200
    greedy: bool = False
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    stop: str | Sequence[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.tokens, bool) or not isinstance(self.tokens, int) or self.tokens < 1:
            raise UsageError(f"tokens must be a whole number of 1 or more, got {self.tokens!r}")
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise UsageError(
                f"temperature must be 0 or more, got {self.temperature}: 1 is the model's own probabilities, "
                "lower is less varied, 0 always takes the most likely token"
            )
        if self.top_k is not None and (not isinstance(self.top_k, int) or self.top_k < 1):
            raise UsageError(
                f"top_k must be a whole number of 1 or more, got {self.top_k!r}: it is how many tokens may be chosen"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be above 0 and at most 1, got {self.top_p}: it is a share of the probability")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**62:
            raise UsageError(f"seed must be a whole number from 0 to 2^62, got {self.seed!r}")
        if "" in self.stops or not all(isinstance(text, str) for text in self.stops):
            raise UsageError(f"stop must be a text or several, none of them empty; got {self.stop!r}")

    @property
    def most_likely(self) -> bool:
        return self.greedy or self.temperature == 0

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
