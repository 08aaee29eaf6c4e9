"""What is known about each answered request: the parts of its time, its batch, its status. And their sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from flatout.serving.asking import ServedModel, Timing


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


class AnsweredRequest(NamedTuple):
    """`model` is None where a request is about no model, or about one that is not served. `rows` is 0 if no model ran."""

    model: ServedModel | None
    method: bytes
    url: bytes
    status_code: int
    rows: int
    answer_bytes: int
    spent: SpentTimes
    timing: Timing


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
