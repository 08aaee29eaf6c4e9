"""Where a live page is found: its port, its address, and who may look. Without torch, for a run that starts a watcher."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from ipaddress import ip_address
from urllib.parse import quote

from flatout.base.errors import MachineError
from flatout.base.listening import address_of, bound_socket

PORT = 8321


def url_of(name: str) -> str:
    """The page of a run, on its watcher."""
    return f"/run/{quote(name, safe='')}"


def open_port(host: str, port: int | None, say: Callable[[str], None]) -> socket.socket:
    """Without a port, the usual one, or a free one if that is taken, which is said."""
    if port is not None:
        return bound_socket(host, port)
    try:
        return bound_socket(host, PORT)
    except MachineError as taken:
        try:
            listening = bound_socket(host, 0)
        except MachineError:
            raise taken from None
        say(f"port {PORT} is in use, by another watcher or program: taking port {address_of(listening)[1]}")
        return listening


def is_private(listening: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ip_address(listening.getsockname()[0]).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    return secrets.token_urlsafe(24)


def address(listening: socket.socket, token: str | None) -> str:
    host, port = address_of(listening)
    if host in ("0.0.0.0", "[::]"):
        host = socket.gethostname()
    return f"http://{host}:{port}/" + (f"?token={token}" if token else "")
