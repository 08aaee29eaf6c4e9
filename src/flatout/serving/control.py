"""Messages between the supervisor and an executor: one JSON object a line, and file descriptors where a message has them.

To an executor (`do`):
    load        models (see ModelOrder), device, threads, cache, compilers; answered by `ready` or `failed`
    attach      front; with two descriptors: the front's shared memory, and the stream on which it asks
    detach      front
    statistics  answered by `statistics`
    drain       answered by `drained` when everything that fronts asked so far is answered
    stop        it exits with 0
From an executor (`say`):
    loading     line
    ready       models, each with its number, name, runtime and curve of (rows, seconds)
    failed      problem: the executor exits
    alive       twice a second while it takes requests; if it stops, a batch hangs
    event       line: something that an operator should know
"""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_AT_ONCE = 1 << 16
_MOST_DESCRIPTORS = 64


@dataclass(frozen=True)
class ControlMessage:
    """The receiver owns the descriptors."""

    content: Mapping[str, Any]
    descriptors: tuple[int, ...] = ()


class ControlLine:
    """One end. Nothing waits: what can't be written now is kept for `flush`."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        self.stream = stream
        self._incoming = b""
        self._descriptors: deque[int] = deque()
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()

    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    def is_behind(self) -> bool:
        return bool(self._outgoing)

    def send(self, content: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """The caller keeps its descriptors. OSError if the other end is closed."""
        line = json.dumps({**content, "descriptors": len(descriptors)}).encode() + b"\n"
        self._outgoing.append((line, tuple(map(os.dup, descriptors))))
        self.flush()

    def flush(self) -> None:
        while self._outgoing:
            data, descriptors = self._outgoing[0]
            try:
                sent = socket.send_fds(self.stream, [data], descriptors) if descriptors else self.stream.send(data)
            except BlockingIOError:
                return
            for descriptor in descriptors:  # they went with the first byte
                os.close(descriptor)
            if sent == len(data):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (data[sent:], ())

    def receive(self) -> list[ControlMessage] | None:
        """All messages that are there; None if the other end is closed."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.stream, _AT_ONCE, _MOST_DESCRIPTORS)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self._descriptors.extend(descriptors)
        *lines, self._incoming = (self._incoming + data).split(b"\n")
        messages = []
        for line in lines:
            content = json.loads(line)
            count = content.pop("descriptors")
            messages.append(ControlMessage(content, tuple(self._descriptors.popleft() for _ in range(count))))
        return messages

    def close(self) -> None:
        for descriptor in [*(one for _, unsent in self._outgoing for one in unsent), *self._descriptors]:
            os.close(descriptor)
        self._outgoing.clear()
        self._descriptors.clear()
        self.stream.close()
