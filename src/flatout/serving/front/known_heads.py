"""Heads of requests that were parsed before: clients send the same one again and again, with another body."""

from __future__ import annotations

from dataclasses import dataclass

_SHORTEST, _LONGEST, _MOST = 16, 2048, 512  # bytes, bytes, number
_NOT_PLAIN = (b"expect", b"upgrade", b"transfer-encoding")


@dataclass(frozen=True, slots=True)
class KnownHead:
    """What a head says. `json_bytes` is the JSON's part of a body that is not compressed; 0 if the head does not say so."""

    method: bytes
    url: bytes
    headers: dict[bytes, bytes]
    body_bytes: int
    json_bytes: int
    may_pack: bool  # whether an answer of bytes may be compressed
    connection_line: bytes  # for the head of the answer


class KnownHeads:
    """By the bytes of the head. Only what the parser accepted gets in."""

    def __init__(self, largest_body: int) -> None:
        self._largest_body = largest_body
        self._known: dict[bytes, KnownHead] = {}
        self.get = self._known.get

    def remember(self, head: bytes, method: bytes, url: bytes, headers: dict[bytes, bytes], length: int) -> None:
        if not _SHORTEST < len(head) < _LONGEST or method not in (b"GET", b"POST") or length > self._largest_body:
            return
        if head.count(b"\n") != len(headers) + 2 or int(headers.get(b"content-length", 0)) != length:
            return  # lines that the parser took together, or a chunked body
        if any(name in headers for name in _NOT_PLAIN):
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        line = b"Connection: keep-alive\r\n" if b"connection" in headers else b""
        may_pack = may_be_packed(headers.get(b"accept-encoding"))
        self._known[head] = KnownHead(method, url, headers, length, _json_bytes(headers), may_pack, line)


def may_be_packed(accepted: bytes | None) -> bool:
    """Whether an answer of bytes is compressed for this Accept-Encoding: a list comes from clients that ask for it always."""
    return accepted is not None and b"," not in accepted


def _json_bytes(headers: dict[bytes, bytes]) -> int:
    given = headers.get(b"inference-header-content-length", b"")
    return int(given) if given.isdigit() and b"content-encoding" not in headers else 0
