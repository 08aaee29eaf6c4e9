"""What a request says about its deadline and priority, and what its answer says about its times."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from flatout.serving.front.exchange import RequestExchange
from flatout.serving.front.model_view import ModelView
from flatout.serving.front.refusals import Refusal

OnOutputs = Callable[[RequestExchange, Mapping[str, Any], bool], None]
_MOST_PRIORITY = 1000
_LONGEST_MS = 86_400_000


def timing_headers(view: ModelView, exchange: RequestExchange) -> bytes:
    timing = exchange.timing
    batch = view.last_batch.headers(timing)
    return b"%b%.3f%b%b" % (batch.before, timing.queue_s * 1e3, batch.after, exchange.feedback_id)


def asked_deadline(headers: Mapping[bytes, bytes], otherwise_s: float) -> float:
    if b"x-flatout-deadline-ms" not in headers:
        return otherwise_s
    return deadline_after(_number(headers[b"x-flatout-deadline-ms"], "x-flatout-deadline-ms") / 1e3)


def asked_priority(headers: Mapping[bytes, bytes], otherwise: int) -> int:
    name = "x-flatout-priority"
    return checked_priority(_number(headers[name.encode()], name), name) if name.encode() in headers else otherwise


def deadline_after(seconds: float) -> float:
    if not 0 < seconds <= _LONGEST_MS / 1e3:
        raise Refusal(400, f"expected a deadline of more than 0 ms and at most a day, got {seconds * 1e3:g} ms")
    return time.monotonic() + seconds


def checked_priority(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_PRIORITY or value != int(value):
        raise Refusal(400, f"{where}: expected a whole number from 0 (first) to {_MOST_PRIORITY}, got {str(value)[:60]!r}")
    return int(value)


def _number(value: bytes, where: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise Refusal(400, f"{where}: expected a number, got {value[:60].decode('latin-1')!r}") from None
