"""Which ranks are alive now. An old record may be older than the rank's death; a record that changes after the call is not."""

from __future__ import annotations

from collections.abc import Iterable

from flatout.world.watch.records import Record


class RollCall:
    """`began_s` is None while no call is active. A rank is present if its record changed after it was first read."""

    def __init__(self, began_s: float | None = None) -> None:
        self.began_s = began_s
        self.present: frozenset[int] = frozenset()
        self._first: dict[int, int] = {}

    def hear(self, records: Iterable[Record]) -> None:
        said = {record.rank: record.serial for record in records if not record.ended}
        for rank, serial in said.items():
            self._first.setdefault(rank, serial)
        self.present = frozenset(rank for rank, serial in said.items() if serial > self._first[rank])
