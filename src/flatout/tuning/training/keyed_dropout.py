"""Dropout whose masks are a function of a trial's key and the step, not of how many trials draw from one generator.

So a trial drops the same units whether it is trained in a stack, alone, or in a stack that has shrunk since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flatout.data.order.keyed import keyed
from flatout.tuning.training.own_kernels import why_no_kernels

KEY, RATE = "drop_key", "drop_rate"
_BITS = 24  # of a hash that are compared with the rate


class KeyedDropout(nn.Module):
    """Key and rate are buffers, so that a stack has one for each trial; `clock` counts the steps of all."""

    drop_key: Tensor
    drop_rate: Tensor

    def __init__(self, rate: float, place: int, clock: Tensor) -> None:
        super().__init__()
        self._place, self._clock = place, [clock]  # in a list: no buffer, all modules share it
        self.register_buffer(KEY, torch.zeros((), dtype=torch.int64, device=clock.device), persistent=False)
        self.register_buffer(RATE, torch.full((), rate, device=clock.device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        key = self.drop_key + self._clock[0] * 0x1000003 + self._place * 0x10001
        if not why_no_kernels(x.device):
            from flatout.tuning.training.dropout_kernel import dropped

            return dropped(x, key, self.drop_rate)
        places = torch.arange(x.numel(), device=x.device).view(x.shape)
        drawn = _hashed(places, key)
        kept = (drawn.float() >= self.drop_rate * (1 << _BITS)).to(x.dtype)
        return x * (kept / (1 - self.drop_rate).clamp_min(1e-6).to(x.dtype))


def key_dropouts(model: nn.Module, clock: Tensor) -> list[str]:
    """Replace the model's dropouts. Returns their names."""
    found: list[str] = []
    for name, module in list(model.named_modules()):
        if type(module) is nn.Dropout:
            parent, _, last = name.rpartition(".")
            made = KeyedDropout(module.p, len(found), clock)
            made.train(module.training)
            setattr(model.get_submodule(parent), last, made)
            found.append(name)
    return found


def set_dropouts(model: nn.Module, names: Sequence[str], key: int, rate: float | None) -> None:
    """`rate` None: that of each module."""
    for name in names:
        module = model.get_submodule(name)
        assert isinstance(module, KeyedDropout)
        module.drop_key.fill_(key)
        if rate is not None:
            module.drop_rate.fill_(rate)


def dropout_key(seed: int, number: int) -> int:
    """Of one trial."""
    return keyed(seed, "dropout", number) % (1 << 31)


def _hashed(places: Tensor, key: Any) -> Tensor:
    """Uniform integers below 2**24 (the finaliser of MurmurHash3, with its products kept below 2**63)."""
    mask = 0xFFFFFFFF
    x = (places * 0x9E3779B1 + key) & mask
    x = x ^ (x >> 16)
    x = ((x & 0xFFFF) * 0x85EBCA6B + (((x >> 16) * 0x85EBCA6B & 0xFFFF) << 16)) & mask
    x = x ^ (x >> 13)
    x = ((x & 0xFFFF) * 0xC2B2AE35 + (((x >> 16) * 0xC2B2AE35 & 0xFFFF) << 16)) & mask
    hashed: Tensor = (x ^ (x >> 16)) >> (32 - _BITS)
    return hashed
