"""What one rank knows about all ranks: the condition of each, and which one leads.

The lowest rank that answers leads: it reads every record and decides. Each other rank reads only the records of lower ranks, so
with many ranks a heartbeat is one write and a few reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from flatout.world.watch.process import ProcessIdentity, state_of
from flatout.world.watch.records import RankSeen, Record
from flatout.world.watch.verdict import Condition


class Roster:
    def __init__(self, rank: int, size: int, here: ProcessIdentity, late_s: float, silent_s: float) -> None:
        self.rank, self.size = rank, size
        self.seen: dict[int, RankSeen] = {}
        self._here, self._late_s, self._silent_s = here, late_s, silent_s
        self._gone: set[int] = set()
        self._told: dict[int, Condition] = {}  # conditions of ranks on other hosts, reported by a process there

    def see(self, record: Record, now_s: float) -> None:
        seen = self.seen.get(record.rank)
        if seen is None:
            self.seen[record.rank] = RankSeen.first(record, now_s)
            return
        heard_s = seen.heard_s
        seen.see(record, now_s)
        if seen.heard_s != heard_s:
            self._told.pop(record.rank, None)

    def told(self, rank: int, condition: Condition) -> None:
        self._told[rank] = condition

    def condition(self, rank: int, now_s: float) -> Condition:
        seen = self.seen.get(rank)
        if rank == self.rank:
            return "answers"
        if seen is None:
            return "absent"
        if seen.record.ended:
            return "ended"
        late_s = seen.silent_for(now_s)
        return "answers" if late_s <= self._late_s else self._condition_now(rank, seen, late_s)

    def _condition_now(self, rank: int, seen: RankSeen, late_s: float) -> Condition:
        if rank in self._gone:
            return "gone"
        state = state_of(seen.record.process, self._here)
        if state == "stopped":
            return state
        if late_s <= self._silent_s or state == "gone":  # its last record may not have been read yet
            return "answers"
        return "silent" if state == "running" else self._told.get(rank, "silent")

    def is_late(self, rank: int, now_s: float) -> bool:
        return rank in self.seen and rank != self.rank and self.seen[rank].silent_for(now_s) > self._late_s

    def is_local(self, rank: int) -> bool:
        return rank in self.seen and self.seen[rank].record.process.place == self._here.place

    def was_told(self, rank: int) -> bool:
        """Whether a process on its host has reported about it since it became silent."""
        return rank in self._told

    def notice_gone(self, ranks: Iterable[int], now_s: float, *, late_or_not: bool = False) -> None:
        """Note ranks whose process on this host no longer exists. Call this before reading their records.

        A rank that ends normally says so before its process ends. With the opposite order, a rank that says goodbye between
        reading and checking would be counted as lost.
        """
        for rank in ranks:
            to_look_at = rank in self.seen if late_or_not else self.is_late(rank, now_s)
            if to_look_at and state_of(self.seen[rank].record.process, self._here) == "gone":
                self._gone.add(rank)

    def lost(self) -> list[int]:
        """Ranks whose process no longer exists and whose last record does not say that they were done."""
        return [rank for rank in sorted(self._gone) if not self.seen[rank].record.ended]

    def leader(self, now_s: float, but: int | None = None) -> int:
        return next(rank for rank in range(self.size) if rank != but and (rank == self.rank or self._may_lead(rank, now_s)))

    def _may_lead(self, rank: int, now_s: float) -> bool:
        return self.condition(rank, now_s) in ("answers", "absent")  # an absent rank will still join

    def to_read(self, now_s: float) -> range:
        leader = self.leader(now_s)
        return range(self.size) if leader == self.rank else range(leader + 1)
