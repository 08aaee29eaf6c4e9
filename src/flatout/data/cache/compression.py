"""Compression of cached rows. It costs CPU time, so it is worth it only if training waits for the disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.units import show_bytes
from flatout.data.cache.records import Array
from flatout.data.cache.tiers import Surroundings

COMPRESSIONS = ("none", "lz4", "zstd")
BLOCK_BYTES = 64 << 10  # compressed as one block, or a single larger row
SAMPLE_BYTES = 4 << 20


@dataclass(frozen=True)
class CodecSpeed:
    """Speed of a codec on sample rows, one core."""

    ratio: float  # bytes before / bytes after
    decompress_bytes_s: float  # of decompressed bytes

    def delivers(self, disk_bytes_s: float, threads: int) -> float:
        return min(disk_bytes_s * self.ratio, self.decompress_bytes_s * threads)


def check_compression(name: str) -> str:
    if name not in COMPRESSIONS:
        raise UsageError(f"unknown compression {name!r}; {did_you_mean(name, COMPRESSIONS)}")
    return name


def compress(content: Array, compression: str) -> Array:
    import pyarrow

    packed: Any = pyarrow.compress(content, codec=compression, asbytes=True)
    return np.frombuffer(packed, np.uint8)


def decompress(content: Array, compression: str, size: int) -> Array:
    import pyarrow

    unpacked: Any = pyarrow.decompress(content, decompressed_size=size, codec=compression)
    return np.frombuffer(unpacked, np.uint8)


def measure_codec(compression: str, sample: Array) -> CodecSpeed:
    """Measured on blocks of the size that the cache compresses."""
    sample = sample[:SAMPLE_BYTES]
    blocks = [sample[begin : begin + BLOCK_BYTES] for begin in range(0, len(sample), BLOCK_BYTES)]
    packed = [compress(block, compression) for block in blocks]
    decompress(packed[0], compression, len(blocks[0]))  # loads the library, which is not part of the speed
    began_s = time.perf_counter()
    for block, small in zip(blocks, packed, strict=True):
        decompress(small, compression, len(block))
    took_s = max(time.perf_counter() - began_s, 1e-9)
    return CodecSpeed(len(sample) / sum(map(len, packed)), len(sample) / took_s)


def choose_compression(s: Surroundings, row_bytes: float, sample: Callable[[], Array], threads: int = 1) -> tuple[str, str]:
    """The compression that delivers most rows to training, and why. Sample rows are read only if the disk is too slow."""
    size, free = show_bytes(s.stored_bytes), show_bytes(s.host_free_bytes)
    if s.fits_in_memory:
        return "none", f"{size} fit into {free} free memory: read from disk once, then from memory"
    if s.disk_bytes_s is None:
        return "none", "the disk's speed was not measured: run flatout probe"
    if s.needed_rows_s is None:
        return "none", "the speed of training is not known yet"
    needed_bytes_s = s.needed_rows_s * max(row_bytes, BLOCK_BYTES)  # shuffled rows: each costs a whole block
    if s.disk_bytes_s >= needed_bytes_s:
        return "none", f"the disk reads {_rate(s.disk_bytes_s)}, training needs at most {_rate(needed_bytes_s)}"
    content = sample()
    measured = {name: measure_codec(name, content) for name in COMPRESSIONS[1:]} if len(content) else {}
    best = best_codec(s.disk_bytes_s, measured, needed_bytes_s, threads)
    slow = f"the disk reads {_rate(s.disk_bytes_s)}, training could use {_rate(needed_bytes_s)}"
    if best == "none":
        tried = ", ".join(f"{name} {codec.ratio:.3g}x" for name, codec in measured.items())
        return best, f"{slow}; no codec helps: {tried or 'no rows to try'}, tried on {show_bytes(len(content))} of rows"
    codec = measured[best]
    gain = f"{codec.ratio:.3g}x smaller, decompressed at {_rate(codec.decompress_bytes_s * threads)} by {threads} threads"
    return best, f"{slow}; with {best} {_rate(codec.delivers(s.disk_bytes_s, threads))}: {gain}"


def best_codec(disk_bytes_s: float, measured: Mapping[str, CodecSpeed], needed_bytes_s: float, threads: int = 1) -> str:
    """If speeds are equal, the cheaper codec: they come in the order none, lz4, zstd. A gain below 10% does not count."""
    best, best_bytes_s = "none", min(disk_bytes_s, needed_bytes_s)
    for name, codec in measured.items():
        delivered = min(codec.delivers(disk_bytes_s, threads), needed_bytes_s)
        if delivered > 1.1 * best_bytes_s:
            best, best_bytes_s = name, delivered
    return best


def _rate(bytes_s: float) -> str:
    return f"{show_bytes(bytes_s)}/s"
