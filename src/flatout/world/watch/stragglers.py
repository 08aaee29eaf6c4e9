"""Who is persistently slower at their own work than others are at the same.

Everybody's steps take equally long, since all wait for the slowest: so it is seconds outside of waiting that are compared, in
blocks of about a second, and a rank must be behind in nearly all of the last blocks. A slow moment is nobody's fault.

Where weights are split, a forward is work and waiting in one. A rank that is late with its data then makes all others as slow
in theirs: so where nobody is behind in both together, those who are behind in their data are.
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
BEHIND = 1.15  # times the median of the others, in a block
SLOWER = 1.2  # in the median of all blocks
MOSTLY = 0.8  # of the blocks
WORTH = 0.05  # of a step; less is not worth telling


@dataclass(frozen=True)
class StepTimes:
    """Seconds a step."""

    step_s: float
    phases_s: Mapping[str, float]

    def seconds_in(self, phases: frozenset[str]) -> float:
        return sum(self.phases_s.get(phase, 0.0) for phase in phases)


class RankPace:
    """The last blocks of one rank, out of its records."""

    def __init__(self) -> None:
        self.blocks: deque[StepTimes] = deque(maxlen=BLOCKS)
        self._began: tuple[int, float, dict[str, float]] | None = None

    def learn(self, record: Record) -> None:
        step, clock_s, spent_s = record.at_step
        if self._began is None or step < self._began[0]:  # a rollback
            self._began = record.at_step
        steps, seconds = step - self._began[0], clock_s - self._began[1]
        if steps >= 1 and seconds >= BLOCK_S:
            before = self._began[2]
            phases_s = {phase: (value - before.get(phase, 0.0)) / steps for phase, value in spent_s.items()}
            self.blocks.append(StepTimes(seconds / steps, phases_s))
            self._began = record.at_step


def find_stragglers(paces: Mapping[int, Sequence[StepTimes]], size: int) -> Straggler | None:
    """Among ranks that do the same work; None while there is not enough to tell, or nobody is."""
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
    """The phase in which most of the difference is."""

    def usual_s(ranks: set[int], phase: str) -> float:
        return median(block.phases_s.get(phase, 0.0) for rank in ranks for block in paces[rank])

    return max(sorted(phases), key=lambda phase: usual_s(slow, phase) - usual_s(set(paces) - slow, phase))


class Stragglers:
    """Tells each finding once: again only for other ranks, or when it costs twice as much."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._paces: dict[int, RankPace] = {}
        self._alike: dict[int, str] = {}
        self._told: dict[int, float] = {}  # rank to the cost that was told

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
