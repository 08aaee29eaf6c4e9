"""Bytes made wrong in the ways that disks, networks and attackers make them wrong."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

_HOSTILE = (-1, 0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, 1 << 62, (1 << 63) - 1)
_DIGITS = (
    b"0", b"-1", b"1e308", b"-1e999", b"NaN", b"Infinity", b"99999999999999999999", b"18446744073709551616", b"4294967295",
    b"0x41", b"null", b'""', b"[]", b"{}", b"true", b"maybe",
)  # fmt: skip


def flip_bits(content: bytearray, rng: random.Random, others: Sequence[bytes]) -> bytearray:
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return content


def cut_off(content: bytearray, rng: random.Random, others: Sequence[bytes]) -> bytearray:
    return content[: rng.randrange(len(content))] if rng.random() < 0.8 else content[rng.randrange(len(content)) :]


def repeat_piece(content: bytearray, rng: random.Random, others: Sequence[bytes]) -> bytearray:
    start = rng.randrange(len(content))
    piece = content[start : start + rng.choice((1, 4, 64, 4096))]
    content[start:start] = piece * rng.choice((1, 2, 100))
    return content


def remove_piece(content: bytearray, rng: random.Random, others: Sequence[bytes]) -> bytearray:
    start = rng.randrange(len(content))
    del content[start : start + rng.choice((1, 2, 8, 64))]
    return content


def splice(content: bytearray, rng: random.Random, others: Sequence[bytes]) -> bytearray:
    """A piece of another file, or of another place of this one, written over or put in."""
    other = rng.choice([bytes(content), *others])
    start = rng.randrange(max(1, len(other)))
    piece = other[start : start + rng.choice((4, 16, 256))]
    place = rng.randrange(len(content))
    content[place : place + (len(piece) if rng.random() < 0.5 else 0)] = piece
    return content


def edit_header(content: bytearray, rng: random.Random, others: Sequence[bytes]) -> bytearray:
    """Bytes of the start or, where formats keep their table of contents, of the end."""
    near = rng.choice((8, 32, 128, 512))
    for _ in range(rng.choice((1, 2, 4))):
        place = rng.randrange(min(near, len(content)))
        content[place if rng.random() < 0.6 else -1 - place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return content


def hostile_number(content: bytearray, rng: random.Random, others: Sequence[bytes]) -> bytearray:
    """A number as programs store it, in 2, 4 or 8 bytes of either order."""
    size, code = rng.choice(((2, "H"), (4, "I"), (8, "Q")))
    number = rng.choice(_HOSTILE) & ((1 << 8 * size) - 1)
    place = rng.randrange(len(content))
    if rng.random() < 0.5:
        place -= place % size
    content[place : place + size] = struct.pack(rng.choice("<>") + code, number)
    return content


def hostile_digits(content: bytearray, rng: random.Random, others: Sequence[bytes]) -> bytearray:
    """A number as people write it: in the place of one that stands in a text, else anywhere."""
    places = [place for place, byte in enumerate(content) if 0x30 <= byte <= 0x39]
    start = rng.choice(places) if places else rng.randrange(len(content))
    stop = start
    while stop < len(content) and 0x30 <= content[stop] <= 0x39:
        stop += 1
    content[start : max(stop, start + 1)] = rng.choice(_DIGITS)
    return content


def fill(content: bytearray, rng: random.Random, others: Sequence[bytes]) -> bytearray:
    """A stretch of one byte: what a disk gives back for blocks that it lost."""
    start = rng.randrange(len(content))
    stop = min(len(content), start + rng.choice((4, 64, 512, 4096)))
    content[start:stop] = bytes([rng.choice((0, 0xFF, 0x22, 0x0A, 0x5B))]) * (stop - start)
    return content


KINDS: tuple[Callable[[bytearray, random.Random, Sequence[bytes]], bytearray], ...] = (
    flip_bits, cut_off, repeat_piece, remove_piece, splice, edit_header, hostile_number, hostile_digits, fill,
)  # fmt: skip


def mutated(content: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """One mutation, or now and then some one after the other. Never more than 8 MB."""
    wrong = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if wrong:
            wrong = rng.choice(KINDS)(wrong, rng, others)
    return bytes(wrong[: 8 << 20])
