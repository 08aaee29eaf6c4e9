"""What a front and an executor tell each other about requests: descriptors of a fixed size, many in one write.

The rows themselves lie in the front's shared memory (see `arena`). Times are on time.monotonic's clock, which all processes
of a machine share.
"""

from __future__ import annotations

import socket
from struct import Struct

from flatout.serving.records import MOST_SIZES

QUESTION = Struct("<QQddIIhBB4I4x")
"""id, offset, deadline_s (0: the model's goal), arrival_s, rows, model, priority, power of the block, count of sizes, sizes."""

QUESTION_WITHOUT_SIZES = Struct("<QQddIIhBB20x")
"""The same bytes for most questions, in half the time."""

ANSWER = Struct("<QBBHIddddI4x")
"""id, status, reason, -, rows of the batch, queue_s, copy_s, compute_s, retry_after_s, bytes of a problem's text."""

NO_SIZES = (0,) * MOST_SIZES
_AT_ONCE = 1 << 18  # bytes in one read


class DescriptorLine:
    """One end of a stream that carries descriptors, without waiting: what can't be written now is kept."""

    def __init__(self, stream: socket.socket, incoming: Struct) -> None:
        stream.setblocking(False)
        self.stream = stream
        self._incoming = incoming.size
        self._outgoing = b""
        self._buffer = bytearray(_AT_ONCE)
        self._whole = self._have = 0  # bytes of the last read: in complete descriptors, and in all

    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    def is_behind(self) -> bool:
        """Whether bytes wait until the other side has read."""
        return bool(self._outgoing)

    def write(self, descriptors: bytes = b"") -> None:
        """OSError if the other end is closed."""
        data = self._outgoing + descriptors if self._outgoing else descriptors
        while data:
            try:
                sent = self.stream.send(data)
            except BlockingIOError:
                break
            data = data[sent:]
        self._outgoing = data

    def read(self) -> memoryview | None:
        """All complete descriptors that are there; None if the other end is closed. Valid until the next read."""
        begun = self._have - self._whole  # of a descriptor whose end had not come
        if begun:
            self._buffer[:begun] = self._buffer[self._whole : self._have]
        self._whole, self._have = 0, begun
        try:
            came = self.stream.recv_into(memoryview(self._buffer)[begun:])
        except BlockingIOError:
            return memoryview(b"")
        except OSError:
            return None
        if came == 0:
            return None
        self._have += came
        self._whole = self._have - self._have % self._incoming
        return memoryview(self._buffer)[: self._whole]

    def close(self) -> None:
        self.stream.close()
