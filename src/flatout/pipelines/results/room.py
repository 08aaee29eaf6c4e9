"""Which results to drop when they take more room than they may: what is cheapest to make again, in seconds for a byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from flatout.pipelines.results.stored import StoredResult


def results_to_drop(kept: Iterable[StoredResult], budget_bytes: int) -> list[StoredResult]:
    """A file that several results have takes room once, and is free only when the last of them is dropped."""
    waiting = list(kept)
    users = Counter(digest for one in waiting for digest in one.digests)
    used_bytes = sum({digest: size for one in waiting for digest, size in one.digests.items()}.values())
    dropped: list[StoredResult] = []
    for one in sorted(waiting, key=lambda one: (one.seconds / max(1, sum(one.digests.values())), one.key)):
        if used_bytes <= budget_bytes:
            break
        dropped.append(one)
        for digest, size in one.digests.items():
            users[digest] -= 1
            used_bytes -= 0 if users[digest] else size
    return dropped
