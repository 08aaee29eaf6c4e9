"""Prepared rows to an executor and its outcome back to the handler: the same for all ways of asking."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from flatout.serving.asking import Array, Asking, Outcome, Reason, Room, Status
from flatout.serving.front.exchange import HttpExchange
from flatout.serving.front.model_view import ModelView
from flatout.serving.front.refusals import Refusal, refusal_of

OnOutputs = Callable[[HttpExchange, Mapping[str, Any], bool], None]
_REASONS = {reason: reason.name.lower().encode() for reason in Reason}
_MOST_PRIORITY = 1000
_LONGEST_MS = 86_400_000


def infer(
    asking: Asking,
    exchange: HttpExchange,
    view: ModelView,
    columns: Iterable[tuple[str, Array]],
    rows: int,
    sizes: tuple[int, ...],
    answer: OnOutputs,
    deadline_s: float = 0.0,
    priority: int = 0,
) -> None:
    """`answer` gets the outputs, valid until it returns, and False: they have no class names yet."""
    exchange.model, exchange.rows = view.model, rows
    headers = exchange.headers
    if b"x-flatout-deadline-ms" in headers:
        deadline_s = deadline_after(number_in(headers[b"x-flatout-deadline-ms"], "x-flatout-deadline-ms") / 1e3)
    if b"x-flatout-priority" in headers:
        priority = checked_priority(number_in(headers[b"x-flatout-priority"], "x-flatout-priority"), "x-flatout-priority")
    room = asking.room(view.model, rows, sizes)
    try:
        inputs = room.inputs
        for name, column in columns:
            inputs[name][...] = column
        exchange.decoded = perf_counter()
        asking.ask(room, partial(_done, exchange, room, answer), deadline_s=deadline_s, priority=priority)
    except BaseException:
        room.release()
        raise


def _done(exchange: HttpExchange, room: Room, answer: OnOutputs, outcome: Outcome) -> None:
    exchange.computed = perf_counter()
    exchange.timing = outcome.timing
    try:
        if outcome.status == Status.ANSWERED:
            answer(exchange, outcome.outputs, False)
        else:
            exchange.refuse(refusal_of(outcome))
    except Exception as error:
        exchange.fail(error)
    finally:
        room.release()


def timing_headers(view: ModelView, exchange: HttpExchange) -> bytes:
    timing = exchange.timing
    return b"x-flatout-batch: %d\r\nx-flatout-reason: %b\r\nx-flatout-queue-ms: %.3f\r\nx-flatout-compute-ms: %.3f\r\n%b" % (
        timing.batch_rows,
        _REASONS[timing.reason],
        timing.queue_s * 1e3,
        timing.compute_s * 1e3,
        view.version_header,
    )


def deadline_after(seconds: float) -> float:
    if not 0 < seconds <= _LONGEST_MS / 1e3:
        raise Refusal(400, f"expected a deadline of more than 0 ms and at most a day, got {seconds * 1e3:g} ms")
    return time.monotonic() + seconds


def checked_priority(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_PRIORITY or value != int(value):
        raise Refusal(400, f"{where}: expected a whole number from 0 (first) to {_MOST_PRIORITY}, got {str(value)[:60]!r}")
    return int(value)


def number_in(value: bytes, where: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise Refusal(400, f"{where}: expected a number, got {value[:60].decode('latin-1')!r}") from None
