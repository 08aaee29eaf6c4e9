"""Who is there now. What was last heard of a rank may be older than its death; what it says after being called is not."""

from __future__ import annotations

from collections.abc import Iterable

from flatout.world.watch.records import Record


class RollCall:
    """`began_s` is None while none is held. Present is whose record changed after it was first read for this call."""

    def __init__(self, began_s: float | None = None) -> None:
        self.began_s = began_s
        self.present: frozenset[int] = frozenset()
        self._first: dict[int, int] = {}

    def hear(self, records: Iterable[Record]) -> None:
        said = {record.rank: record.serial for record in records if not record.ended}
        for rank, serial in said.items():
            self._first.setdefault(rank, serial)
        self.present = frozenset(rank for rank, serial in said.items() if serial > self._first[rank])
