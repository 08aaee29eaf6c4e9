"""What a front counts of the rows that it prepared: bins of the package's own statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flatout.packaging.package import Package
from flatout.packaging.statistics import RowStatistics
from flatout.serving.asking import Array

_MOST_REQUESTS, _MOST_ROWS = 50, 64  # between two counts, and of a request: a sample is enough


class DriftSampling:
    """Rows are kept as they are, and counted together by `counted`: one by one would take longer than to answer them."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[RowStatistics, list[dict[str, Array]]]] = {}
        self._without: set[str] = set()
        self._requests = 0

    def wants(self) -> bool:
        return self._requests < _MOST_REQUESTS

    def keep(self, package: Package, inputs: Mapping[str, Array]) -> None:
        """The rows are copied."""
        identity = package.folder.hash
        if identity in self._without:
            return
        if identity not in self._kept:
            statistics = package.statistics
            if statistics is None:
                self._without.add(identity)
                return
            self._kept[identity] = statistics, []
        self._requests += 1
        self._kept[identity][1].append({name: np.array(rows[:_MOST_ROWS]) for name, rows in inputs.items()})

    def counted(self) -> list[dict[str, Any]]:
        """Since the last time, by package."""
        kept, self._kept, self._requests = self._kept, {}, 0
        found = []
        for identity, (statistics, requests) in kept.items():
            counts = [np.zeros(len(column.shares), np.int64) for column in statistics.columns]
            for place, column in enumerate(statistics.columns):
                for rows in _together([one[column.port] for one in requests]):
                    counts[place] += column.counts(rows)
            rows_seen = sum(len(next(iter(one.values()))) for one in requests)
            found.append({"package": identity, "rows": rows_seen, "counts": [one.tolist() for one in counts]})
        return found


def _together(pieces: list[Array]) -> list[Array]:
    """In one array, if they have one shape; rows of texts may have several lengths."""
    if len({piece.shape[1:] for piece in pieces}) == 1:
        return [np.concatenate(pieces)]
    return pieces
