"""Randomness as a function: a hash of (seed, what it is for, which sample), with equal bits on every device.

Values live in int64 tensors and stay below 2**32; the multipliers are below 2**31, so no product overflows anywhere.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch
from torch import Tensor

_LOW_32 = 0xFFFFFFFF
_GOLDEN = 0x1E3779B1  # odd: steps through all 32-bit values before it repeats


@lru_cache(maxsize=4096)
def keyed(seed: int, *parts: str | int) -> int:
    """A 64-bit key for one purpose: other parts, another key."""
    return int.from_bytes(hashlib.blake2b(repr((seed, parts)).encode(), digest_size=8).digest(), "little")


def hash32(values: Tensor, key: int) -> Tensor:
    """Each value of a non-negative int64 tensor to a number in [0, 2**32) that looks random, a bijection on 32-bit values."""
    mixed = (values >> 32).bitwise_xor_(values).bitwise_xor_(key & _LOW_32).bitwise_and_(_LOW_32)
    mixed.bitwise_xor_(mixed >> 16).mul_(0x7FEB352D).bitwise_and_(_LOW_32)
    mixed.bitwise_xor_(mixed >> 15).bitwise_xor_(key >> 32).mul_(0x31848BAB).bitwise_and_(_LOW_32)
    mixed.bitwise_xor_(mixed >> 14).mul_(0x2C1B3C6D).bitwise_and_(_LOW_32)
    return mixed.bitwise_xor_(mixed >> 16)


def below(hashed: Tensor, limit: int | Tensor) -> Tensor:
    """Hashed values to integers in [0, limit), limit below 2**31: a multiplication where a remainder would cost a division."""
    return (hashed * limit) >> 32


def spread(hashed: Tensor, count: int) -> Tensor:
    """[B] -> [B, count]: distinct inputs for a next hash, `count` of them for each value."""
    steps = torch.arange(count, device=hashed.device).mul_(_GOLDEN)
    return (hashed.unsqueeze(-1) + steps).bitwise_and_(_LOW_32)


class Keys:
    """Random numbers for the samples of one batch, a pure function of (seed, visit, row).

    A row's visit is the epoch, so neither the batch size nor the place in the batch changes what a sample gets.
    """

    def __init__(self, seed: int, visits: Tensor, rows: Tensor) -> None:
        self._seed = seed
        self._visits = visits
        self._rows = rows
        self._samples: Tensor | None = None

    def uniform(self, stream: str, count: int = 1) -> Tensor:
        """float32 [B, count] in [0, 1): 24 bits, so that the conversion is exact and 1.0 never comes."""
        return (self._hashed(stream, count) >> 8).to(torch.float32).mul_(2.0**-24)

    def integers(self, stream: str, low: int, high: int) -> Tensor:
        """int64 [B] in [low, high)."""
        return below(self._hashed(stream, 1).squeeze(1), high - low).add_(low)

    def _hashed(self, stream: str, count: int) -> Tensor:
        if self._samples is None:
            visits = hash32(self._visits, keyed(self._seed, "visit"))
            self._samples = hash32(self._rows, keyed(self._seed, "row")).bitwise_xor_(visits)
        return hash32(spread(self._samples, count), keyed(self._seed, "stream", stream))
