"""Compressed bodies: requests with a limit against bombs, and answers for clients that ask for them."""

from __future__ import annotations

import zlib

from flatout.serving.front.refusals import Refusal

_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
WORTHWHILE_BYTES = 1024


def unpacked(body: bytes, encoding: bytes, limit_bytes: int) -> bytes:
    """Of a request with this Content-Encoding."""
    kind = encoding.strip().lower()
    if kind in (b"", b"identity"):
        return body
    if kind not in (b"gzip", b"deflate"):
        raise Refusal(415, f"expected Content-Encoding gzip or deflate, got {kind[:60].decode('latin-1')!r}")
    forms = (_GZIP,) if kind == b"gzip" else (_ZLIB, _RAW)
    for form in forms:
        unpacking = zlib.decompressobj(form)
        try:
            found = unpacking.decompress(body, limit_bytes + 1)
        except zlib.error as error:
            if form == forms[-1]:
                raise Refusal(400, f"the body is no valid {kind.decode()} data: {error}") from None
            continue
        if len(found) > limit_bytes:
            raise Refusal(413, f"expected a body of at most {limit_bytes:,} bytes when unpacked, got more")
        if not unpacking.eof:
            raise Refusal(400, f"the {kind.decode()} data of the body is truncated")
        return found
    raise AssertionError("every form returns or raises")


def packed(body: bytes, accepted: bytes) -> tuple[bytes, bytes]:
    """The body and a header line, for a client with this Accept-Encoding."""
    if len(body) < WORTHWHILE_BYTES:
        return body, b""
    names = [part.partition(b";")[0].strip() for part in accepted.lower().split(b",") if not _is_refused(part)]
    for name, form in ((b"gzip", _GZIP), (b"deflate", _ZLIB)):
        if name in names:
            packing = zlib.compressobj(1, zlib.DEFLATED, form)
            return packing.compress(body) + packing.flush(), b"Content-Encoding: %b\r\nVary: Accept-Encoding\r\n" % name
    return body, b""


def _is_refused(part: bytes) -> bool:
    quality = part.partition(b"q=")[2].strip()
    return quality != b"" and quality.strip(b"0.") == b""
