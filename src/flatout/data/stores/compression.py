"""Smaller on disk, at the price of CPU time: worth it only where the disk is what everything waits for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.base.errors import UsageError, did_you_mean
from flatout.data.stores.records import Array

COMPRESSIONS = ("none", "lz4", "zstd")
_BLOCK_BYTES = 64 << 10
_SAMPLE_BYTES = 4 << 20


@dataclass(frozen=True)
class Measured:
    """What a codec does to a sample, on one core."""

    ratio: float  # bytes before to bytes after
    decompress_bytes_s: float  # of what comes out


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


def measure_codec(compression: str, sample: Array) -> Measured:
    """On blocks of the size that a cache compresses at once."""
    sample = sample[:_SAMPLE_BYTES]
    blocks = [sample[begin : begin + _BLOCK_BYTES] for begin in range(0, len(sample), _BLOCK_BYTES)]
    packed = [compress(block, compression) for block in blocks]
    decompress(packed[0], compression, len(blocks[0]))  # the library's own start is not the codec's rate
    began_s = time.perf_counter()
    for block, small in zip(blocks, packed, strict=True):
        decompress(small, compression, len(block))
    took_s = max(time.perf_counter() - began_s, 1e-9)
    return Measured(len(sample) / sum(map(len, packed)), len(sample) / took_s)


def choose_compression(disk_bytes_s: float, needed_bytes_s: float, sample: Array | bytes, threads: int = 1) -> str:
    """The one that delivers most of `needed_bytes_s`, measured on a sample of the data; none when the disk alone does."""
    content = np.frombuffer(sample, np.uint8) if isinstance(sample, bytes) else sample
    if disk_bytes_s >= needed_bytes_s or not len(content):
        return "none"
    return best_codec(disk_bytes_s, {name: measure_codec(name, content) for name in COMPRESSIONS[1:]}, needed_bytes_s, threads)


def best_codec(disk_bytes_s: float, measured: dict[str, Measured], needed_bytes_s: float, threads: int = 1) -> str:
    """Of equal ones the cheaper: they are in the order none, lz4, zstd. A gain below a tenth is not worth the cores."""
    best, best_bytes_s = "none", min(disk_bytes_s, needed_bytes_s)
    for name in COMPRESSIONS[1:]:
        codec = measured[name]
        delivered = min(disk_bytes_s * codec.ratio, codec.decompress_bytes_s * threads, needed_bytes_s)
        if delivered > 1.1 * best_bytes_s:
            best, best_bytes_s = name, delivered
    return best
