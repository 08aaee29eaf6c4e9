"""How a request ended: the status code of its answer, or one of these numbers."""

from __future__ import annotations

from enum import IntEnum


class RequestFailure(IntEnum):
    """Smaller than every status code of HTTP, so both fit into one column."""

    REFUSED = 1  # the server did not accept the connection
    RESET = 2  # the connection ended before the answer was complete
    TIMED_OUT = 3
    NOT_HTTP = 4  # the answer is not HTTP
    UNREACHABLE = 5  # the connection could not be made for another reason, such as TLS or the network
    NO_SOCKET = 6  # this machine has no file descriptor or port left: the fault of the generator, not of the server


WORDS = {
    RequestFailure.REFUSED: "connection refused",
    RequestFailure.RESET: "connection reset",
    RequestFailure.TIMED_OUT: "timed out",
    RequestFailure.NOT_HTTP: "answer is not HTTP",
    RequestFailure.UNREACHABLE: "no connection",
    RequestFailure.NO_SOCKET: "no socket left on this machine",
}
FIRST_STATUS = 100
ADMISSION_REFUSED = 503  # counted apart: the server said that it can't answer in time
FIRST_GOOD, FIRST_BAD = 200, 400  # a good answer has a status from the first of these to below the second
