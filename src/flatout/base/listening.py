"""Where a server answers. The port is taken before anything else is done, so that a port in use is known at once."""

from __future__ import annotations

import errno
import os
import socket

from flatout.base.errors import MachineError

_NEAR = 20  # ports that are looked at for a free one


def bound_socket(host: str, port: int) -> socket.socket:
    """Bound and not blocking; it does not listen yet. Port 0 takes a free one."""
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
        free = _free_near(host, port) if error.errno == errno.EADDRINUSE else None
        other = "--port 0 takes a free one" if free is None else f"--port {free} is free, --port 0 takes any free one"
        raise MachineError(f"can't use {host} port {port}: {os.strerror(error.errno or 0)}; {other}") from error
    made.setblocking(False)
    return made


def _free_near(host: str, port: int) -> int | None:
    for near in range(port + 1, min(port + _NEAR, 65536)):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, near, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
                return near
        except OSError:
            continue
    return None


def address_of(bound: socket.socket) -> tuple[str, int]:
    """As it is written in URLs."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]" if ":" in host else host, port
