"""What is known about each answered request: the parts of its time, its batch, its status. And their sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple, Protocol

import numpy as np

from flatout.serving.asking import Array, ServedModel, Timing


class SpentTimes(NamedTuple):
    """Seconds. `total_s` is from the first byte to the answer's write. What the parts leave over is the way to the executor."""

    wire_s: float = 0.0  # from the first to the last piece of the request
    parse_s: float = 0.0
    decode_s: float = 0.0  # the body to rows in shared memory, hooks not included
    hook_s: float = 0.0
    queue_s: float = 0.0
    copy_s: float = 0.0
    compute_s: float = 0.0
    encode_s: float = 0.0
    total_s: float = 0.0


MOMENTS = Struct("=10d")
"""What the clock said when a request began to come, had come, was parsed, decoded, computed and sent; then the seconds of its
hooks, queue, copies and computation. 0 is a step that it did not have. They are bytes, since thousands wait to be counted."""


class AnsweredRequest(NamedTuple):
    """`model` is None where a request is about no model, or about one that is not served. `rows` is 0 if no model ran."""

    model: ServedModel | None
    method: bytes
    url: bytes
    status_code: int
    rows: int
    answer_bytes: int
    moments: bytes
    timing: Timing
    arm: int = 0  # see `exchange`

    @property
    def total_s(self) -> float:
        begun, _, _, _, _, sent, *_ = MOMENTS.unpack(self.moments)
        return float(sent - begun)

    @property
    def spent(self) -> SpentTimes:
        return SpentTimes(*spent_times([self])[0].tolist())


def spent_times(requests: Sequence[AnsweredRequest]) -> Array:
    """[requests, parts]: the SpentTimes of each. For many at once, since one by one would take longer than to answer them."""
    moments: Array = np.frombuffer(b"".join([one.moments for one in requests]))
    begun, arrived, parsed, decoded, computed, sent, hook_s, queue_s, copy_s, compute_s = moments.reshape(len(requests), -1).T
    decode_s = np.where(decoded > 0, decoded - parsed - hook_s, 0.0)
    encode_s = np.where(computed > 0, sent - computed, 0.0)
    parts = (arrived - begun, parsed - arrived, decode_s, hook_s, queue_s, copy_s, compute_s, encode_s, sent - begun)
    return np.stack(parts, axis=1)


@dataclass(frozen=True)
class ModelStatistics:
    """Sums since the start, over all processes. `batches` has for each batch size its count and seconds of compute."""

    requests: int = 0
    failed: int = 0
    rows: int = 0
    batches_run: int = 0
    total_s: float = 0.0
    failed_s: float = 0.0
    queue_s: float = 0.0
    decode_s: float = 0.0
    compute_s: float = 0.0
    encode_s: float = 0.0
    last_ms: int = 0  # since 1970
    batches: Mapping[int, tuple[int, float]] = field(default_factory=dict)


class Watching(Protocol):
    def answered(self, request: AnsweredRequest) -> None:
        """Called for every answer, in the event loop: it must be quick."""
        ...

    def statistics(self, name: str, version: str) -> ModelStatistics: ...
