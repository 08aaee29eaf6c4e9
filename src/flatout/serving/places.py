"""Where a server answers, and on which device it computes: both are known before a process is started."""

from __future__ import annotations

import os
import socket

from flatout.base.errors import MachineError, UsageError
from flatout.machine.device import all_devices


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
    """As `all_devices`, each of them once."""
    names = all_devices(asked)
    if len(set(names)) < len(names):
        raise UsageError(f"a device is named twice in {asked!r}; --executors 2 runs two processes on each")
    return names
