"""Refusals as gRPC has them: a status code, a sentence, and for those that may be tried again, when."""

from __future__ import annotations

import re

import grpc
from google.protobuf import any_pb2, duration_pb2

from flatout.base.errors import shortened
from flatout.serving.front.refusals import Refusal, printable

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_RETRY_AFTER = re.compile(rb"Retry-After: (\d+)")
Trailing = tuple[tuple[str, str | bytes], ...]


def status_of(refusal: Refusal) -> tuple[grpc.StatusCode, str, Trailing]:
    code, words = _CODES.get(refusal.status, grpc.StatusCode.INTERNAL), shortened(printable(str(refusal)))
    after = _RETRY_AFTER.search(refusal.headers)
    if after is None:
        return code, words, ()
    seconds = int(after[1])
    details = _retry_details(code, words, seconds)
    return code, words, (("grpc-retry-pushback-ms", str(1000 * seconds)), ("grpc-status-details-bin", details))


def _retry_details(code: grpc.StatusCode, words: str, seconds: int) -> bytes:
    """google.rpc.Status with a google.rpc.RetryInfo. Both are few fields, and the package that has them is not needed."""
    delay = _field(1, duration_pb2.Duration(seconds=seconds).SerializeToString())
    about = any_pb2.Any(type_url="type.googleapis.com/google.rpc.RetryInfo", value=delay)
    number: int = code.value[0]
    return bytes((1 << 3, number)) + _field(2, words.encode()) + _field(3, about.SerializeToString())


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes in the wire format."""
    size, left = bytearray(), len(content)
    while left > 0x7F:
        size.append(left & 0x7F | 0x80)
        left >>= 7
    size.append(left)
    return bytes((number << 3 | 2,)) + bytes(size) + content
