"""Heads of requests that were parsed before: clients send the same one again and again, with another body."""

from __future__ import annotations

_SHORTEST, _LONGEST, _MOST = 16, 2048, 512  # bytes, bytes, number
_NOT_PLAIN = (b"expect", b"upgrade", b"transfer-encoding")
KnownHead = tuple[bytes, bytes, dict[bytes, bytes], int]


class KnownHeads:
    """The method, URL, headers and length of the body, by the bytes of the head. Only what the parser accepted gets in."""

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
        self._known[head] = (method, url, headers, length)
