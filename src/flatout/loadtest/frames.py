"""Messages between the command and its sending processes: JSON, and bytes that follow it."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

_SIZE = struct.Struct("<Q")
_AT_ONCE_BYTES = 1 << 20


def send_frame(line: socket.socket, head: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> None:
    text = json.dumps({**head, "blobs": [len(blob) for blob in blobs]}).encode()
    line.sendall(_SIZE.pack(len(text)) + text)
    for blob in blobs:
        line.sendall(blob)


def receive_frame(line: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """Raises EOFError if the other side has ended."""
    (size,) = _SIZE.unpack(_exactly(line, _SIZE.size))
    head = json.loads(_exactly(line, size))
    return head, [_exactly(line, length) for length in head.pop("blobs")]


def _exactly(line: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    left = size
    while left:
        part = line.recv(min(left, _AT_ONCE_BYTES))
        if not part:
            raise EOFError("the process at the other end has ended")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
