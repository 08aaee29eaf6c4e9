"""Which latencies are evidence: one request of each batch, since the requests of a batch share its time.

Counted one by one, a slow batch of fifty would be fifty proofs that a version is slow, and one in four equal versions would be
rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.serving.asking import Array
from flatout.serving.front.watching import AnsweredRequest


class OneOfEachBatch:
    """Of one version. How long a batch computed is a number that no other batch has, so it names the batch."""

    def __init__(self) -> None:
        self._last = 0.0  # its requests may be answered in two looks
        self._chance = np.random.default_rng()

    def chosen(self, requests: Sequence[AnsweredRequest]) -> Array:
        """A truth value for each. With several processes for connections each request of a batch is as likely to be taken, one
        in all of them on average."""
        if not requests:
            return np.zeros(0, bool)
        names = np.array([one.timing.compute_s for one in requests])
        order = self._chance.permutation(len(requests))
        _, first, batch = np.unique(names[order], return_index=True, return_inverse=True)
        rows_here = np.bincount(batch, [requests[place].rows for place in order])
        rows = np.array([requests[place].timing.batch_rows for place in order[first]])
        taken = self._chance.random(len(first)) * rows < rows_here
        found = np.zeros(len(requests), bool)
        found[order[first[taken]]] = True
        found &= names != self._last
        self._last = float(names[-1])
        found |= names == 0.0  # answered without a batch
        return found
