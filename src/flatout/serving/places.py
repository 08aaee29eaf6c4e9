"""Where a server answers, and on which device it computes: both are known before a process is started."""

from __future__ import annotations

import os
import socket

import torch

from flatout.base.errors import MachineError, UsageError


def bound_socket(host: str, port: int) -> socket.socket:
    """Bound, so that a port in use is known at once; it listens only when everything is warm."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise MachineError(f"no address for {host!r}: {error}") from error
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
    except OSError as error:
        made.close()
        raise MachineError(
            f"can't use {host} port {port}: {os.strerror(error.errno or 0)}; --port 0 takes a free one"
        ) from error
    made.setblocking(False)
    return made


def devices_named(asked: str) -> tuple[str, ...]:
    """`auto` and `cuda` are all GPUs that this process may use; several are written with commas. Counting them does not use
    them, so processes may still be forked."""
    if asked == "auto":
        asked = "cuda" if torch.backends.cuda.is_built() and os.path.exists("/dev/nvidiactl") else "cpu"
    if asked == "cuda":
        return tuple(f"cuda:{place}" for place in range(max(1, torch.cuda.device_count())))
    names = tuple("cuda:0" if name.strip() == "cuda" else name.strip() for name in asked.split(","))
    if len(set(names)) < len(names):
        raise UsageError(f"a device is named twice in {asked!r}; --executors 2 runs two processes on each")
    return names
