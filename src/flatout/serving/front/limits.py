"""Limits on what one connection, and all of them together, may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """A body is too slow if it takes longer than `body_grace_s` and comes with less than `body_bytes_per_s` on average."""

    header_bytes: int = 16 << 10
    body_bytes: int = 64 << 20
    unpacked_bytes: int = 256 << 20  # of a body that was compressed
    held_bytes: int = 1 << 30  # of all large bodies that were not answered yet, over all connections
    header_s: float = 10.0
    body_grace_s: float = 5.0
    body_bytes_per_s: float = 1024.0
    body_s: float = 300.0
    idle_s: float = 75.0
    unread_s: float = 30.0  # a client that does not read its answers is disconnected after this time
    connections: int = 4096
    requests_in_flight: int = 64  # on one connection; more are read when these are answered
    hook_s: float = 10.0
    sweep_s: float = 0.5  # how often the times above are checked
