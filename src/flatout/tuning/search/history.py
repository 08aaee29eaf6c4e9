"""What views show of a search."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.tuning.search.ladder import RankCheck


@dataclass(frozen=True)
class SearchHistory:
    checks: tuple[RankCheck, ...]  # rank correlations measured, in order
    first_rung: int  # steps; 0 before it is known
    why: str  # how the first rung's length was measured
    trials: int
    alive: int
    dropped: int  # not trained further, as it stands
    failed: int
    finished: int
    sampler_s: float
    waves: int
