"""Find ranks whose own work is persistently slower than the same work on other ranks.

All ranks have equal step times, since all wait for the slowest. So seconds outside of waiting are compared, in blocks of about
a second, and a rank must be behind in nearly all of the last blocks. A single slow moment does not count.

With split weights a forward pass mixes work and waiting: a rank whose data is late makes the forward of all others as slow. So
if no rank is behind in both together, ranks that are behind in data alone are reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from flatout.world.watch.news import Straggler
from flatout.world.watch.pulse import OWN, SPLIT_FORWARD
from flatout.world.watch.records import Record

BLOCKS = 8
BLOCK_S = 1.0
BEHIND = 1.15  # times the median of the other ranks, in a block
SLOWER = 1.2  # times the median over all blocks
MOSTLY = 0.8  # share of blocks in which the rank must be behind
WORTH = 0.05  # share of a step; smaller losses are not reported


@dataclass(frozen=True)
class StepTimes:
    """Seconds per step."""

    step_s: float
    phases_s: Mapping[str, float]

    def seconds_in(self, phases: frozenset[str]) -> float:
        return sum(self.phases_s.get(phase, 0.0) for phase in phases)


class RankPace:
    """The last blocks of one rank, computed from its records."""

    def __init__(self) -> None:
        self.blocks: deque[StepTimes] = deque(maxlen=BLOCKS)
        self._began: tuple[int, float, dict[str, float]] | None = None

    def learn(self, record: Record) -> None:
        step, clock_s, spent_s = record.at_step
        if self._began is None or step < self._began[0]:  # first record, or a rollback
            self._began = record.at_step
        steps, seconds = step - self._began[0], clock_s - self._began[1]
        if steps >= 1 and seconds >= BLOCK_S:
            before = self._began[2]
            phases_s = {phase: (value - before.get(phase, 0.0)) / steps for phase, value in spent_s.items()}
            self.blocks.append(StepTimes(seconds / steps, phases_s))
            self._began = record.at_step


def find_stragglers(paces: Mapping[int, Sequence[StepTimes]], size: int) -> Straggler | None:
    """Compare ranks that do the same work; None if there is too little data or no straggler."""
    full = {rank: blocks for rank, blocks in paces.items() if len(blocks) == BLOCKS}
    if len(full) < max(2, len(paces)):
        return None
    found = _behind_in(OWN | {SPLIT_FORWARD}, full, size)
    if found is None and any(SPLIT_FORWARD in block.phases_s for blocks in full.values() for block in blocks):
        return _behind_in(frozenset({"data"}), full, size)
    return found


def _behind_in(phases: frozenset[str], paces: Mapping[int, Sequence[StepTimes]], size: int) -> Straggler | None:
    own_s = {rank: [block.seconds_in(phases) for block in blocks] for rank, blocks in paces.items()}
    usual_s = {rank: median(seconds) for rank, seconds in own_s.items()}
    step_s = median(block.step_s for blocks in paces.values() for block in blocks)
    slow = {rank for rank in paces if _is_behind(rank, own_s, usual_s)}
    if not slow or len(slow) == len(paces):
        return None
    rest = [value for rank, value in usual_s.items() if rank not in slow]
    cost_s = min(max(usual_s[rank] for rank in slow) - max(rest), step_s)
    if cost_s < WORTH * step_s:
        return None
    return Straggler(
        {rank: usual_s[rank] for rank in sorted(slow)}, median(rest), _where(phases, paces, slow), step_s, cost_s, size
    )  # fmt: skip


def _is_behind(rank: int, own_s: Mapping[int, Sequence[float]], usual_s: Mapping[int, float]) -> bool:
    others = [other for other in own_s if other != rank]
    behind = [own_s[rank][number] > BEHIND * median(own_s[other][number] for other in others) for number in range(BLOCKS)]
    return sum(behind) >= MOSTLY * BLOCKS and usual_s[rank] > SLOWER * median(usual_s[other] for other in others)


def _where(phases: frozenset[str], paces: Mapping[int, Sequence[StepTimes]], slow: set[int]) -> str:
    """The phase with most of the difference."""

    def usual_s(ranks: set[int], phase: str) -> float:
        return median(block.phases_s.get(phase, 0.0) for rank in ranks for block in paces[rank])

    return max(sorted(phases), key=lambda phase: usual_s(slow, phase) - usual_s(set(paces) - slow, phase))


class Stragglers:
    """Reports each finding once, and again only for other ranks or if the cost doubles."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._paces: dict[int, RankPace] = {}
        self._alike: dict[int, str] = {}
        self._told: dict[int, float] = {}  # reported cost by rank

    def learn(self, record: Record) -> None:
        self._paces.setdefault(record.rank, RankPace()).learn(record)
        self._alike[record.rank] = record.alike

    def news(self) -> list[Straggler]:
        found = []
        for word in sorted(set(self._alike.values())):
            alike = {rank: list(pace.blocks) for rank, pace in self._paces.items() if self._alike[rank] == word}
            straggler = find_stragglers(alike, self._size)
            if straggler is not None and any(straggler.slower >= 2 * self._told.get(rank, 0.0) for rank in straggler.ranks):
                self._told.update(dict.fromkeys(straggler.ranks, straggler.slower))
                found.append(straggler)
        return found
