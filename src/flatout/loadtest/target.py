"""The server to be measured, from its URL."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from flatout.base.errors import UnusableServer, UsageError


@dataclass(frozen=True)
class LoadTarget:
    host: str
    port: int
    path: str  # with the query; empty if the URL has none
    is_tls: bool
    verify: bool = True

    @classmethod
    def parse(cls, url: str, verify: bool = True) -> LoadTarget:
        expected = "expected a URL such as http://127.0.0.1:8000"
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"{expected}, got {url!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not host:
            raise UsageError(f"{expected}, got {url!r}")
        if parts.username is not None:
            raise UsageError(f"{expected}; a user and password go into --header 'Authorization: Basic ...'")
        if not (parts.path + parts.query).isascii() or " " in parts.path + parts.query:
            raise UsageError(f"{expected}; spaces and letters beyond ASCII must be percent-encoded, got {url!r}")
        path = parts.path if parts.path != "/" or parts.query else ""
        if parts.query:
            path = f"{path or '/'}?{parts.query}"
        is_tls = parts.scheme == "https"
        return cls(host, port or (443 if is_tls else 80), path, is_tls, verify)

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path}"

    def reached_at(self, timeout_s: float) -> str:
        """The first address of the host that takes a connection."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UnusableServer(f"{self}: no address is known for {self.host!r}: {error.strerror}") from error
        problem: OSError | None = None
        for family, kind, protocol, _, address in found:
            try:
                with socket.socket(family, kind, protocol) as line:
                    line.settimeout(timeout_s)
                    line.connect(address)
                    return str(address[0])
            except OSError as error:
                problem = error
        raise UnusableServer(f"{self}: can't connect: {problem}. Is the server running, and is this its port?")
