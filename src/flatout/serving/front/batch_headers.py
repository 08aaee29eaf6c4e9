"""What answers say about their batch. Most answers are of the same batch as the one before, so it is written once."""

from __future__ import annotations

from typing import NamedTuple

from flatout.serving.asking import Reason, Timing

_REASONS = tuple(reason.name.lower().encode() for reason in Reason)  # by number: an enum as a key is slow


class BatchHeaders(NamedTuple):
    """What the answers of a batch say about it: `before` the time in the queue of each request, and `after` it."""

    compute_s: float
    batch_rows: int
    reason: Reason
    before: bytes
    after: bytes


class LastBatch:
    """Of one version of a model."""

    def __init__(self, version: str) -> None:
        self._version_header = b"x-flatout-version: %b\r\n" % version.encode()
        self._last = BatchHeaders(0.0, -1, Reason.NONE, b"", b"")

    def headers(self, timing: Timing) -> BatchHeaders:
        """The same object for all answers of a batch."""
        last = self._last
        if timing.compute_s != last.compute_s or timing.batch_rows != last.batch_rows or timing.reason is not last.reason:
            compute_s, rows, reason = timing.compute_s, timing.batch_rows, timing.reason
            before = b"x-flatout-batch: %d\r\nx-flatout-reason: %b\r\nx-flatout-queue-ms: " % (rows, _REASONS[reason])
            after = b"\r\nx-flatout-compute-ms: %.3f\r\n%b" % (compute_s * 1e3, self._version_header)
            last = self._last = BatchHeaders(compute_s, rows, reason, before, after)
        return last
