"""Requests that are not answered with a prediction: the status, the JSON that says why, and further headers."""

from __future__ import annotations

import logging
import math

import orjson

from flatout.base.errors import FlatoutError, MachineError, ModelError, shortened
from flatout.serving.asking import NoRoom, Outcome, Status

REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    417: b"Expectation Failed",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}
_log = logging.getLogger("flatout.serving")


class Refusal(Exception):
    """`headers` are whole lines, each with its line end. `is_late`: it could not be answered before its deadline."""

    def __init__(self, status: int, problem: str, headers: bytes = b"", is_late: bool = False) -> None:
        super().__init__(problem)
        self.status, self.headers, self.is_late = status, headers, is_late

    @property
    def head(self) -> bytes:
        return b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\n%b" % (self.status, REASONS[self.status], self.headers)

    @property
    def body(self) -> bytes:
        return orjson.dumps({"error": shortened(printable(str(self)))})


def printable(text: str) -> str:
    """Without halves of surrogate pairs, which JSON can't hold."""
    return text.encode("utf-8", "replace").decode()


def refusal_for(error: BaseException, doing: str = "") -> Refusal:
    """Mistakes of the client are 400 and say what is wrong. Mistakes of ours are 500, one line, and the rest is logged."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, NoRoom):
        return Refusal(503, str(error), b"Retry-After: 1\r\n") if error.ever else Refusal(413, str(error))
    if isinstance(error, FlatoutError) and not isinstance(error, MachineError | ModelError):
        return Refusal(400, str(error))
    if isinstance(error, RecursionError | UnicodeError):
        return Refusal(400, f"the request can't be read: {one_line(error)}")
    _log.error("a request failed%s", f" in {doing}" if doing else "", exc_info=error)
    return Refusal(500, f"the server failed{f' in {doing}' if doing else ''}: {one_line(error)}")


def refusal_of(outcome: Outcome) -> Refusal:
    """Of a question that was not answered."""
    timing = outcome.timing
    if outcome.status is Status.LATE:
        waited = f"it waited {timing.queue_s * 1e3:.1f} ms in the queue"
        why = f"not answered before its deadline: {outcome.problem or waited}; retry later or give a later deadline"
        return Refusal(503, why, _retry_after(outcome.retry_after_s), is_late=True)
    if outcome.status is Status.GONE:
        why = outcome.problem or "the executor ended before it answered"
        return Refusal(503, f"not answered: {why}; retry later", _retry_after(outcome.retry_after_s))
    return Refusal(500, f"the model failed: {first_line(outcome.problem) or 'no reason was given'}")


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(str(error))}" if str(error) else type(error).__name__


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:500]


def _retry_after(seconds: float) -> bytes:
    return b"Retry-After: %d\r\n" % max(1, math.ceil(seconds))
