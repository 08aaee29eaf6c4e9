"""Keys and values of the tokens that a transformer has read, so that the next token costs one token and not the whole text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KeyValueCache:
    """Row r of the batch has its tokens in the first `lengths[r]` of `slots`: rows of different lengths need no padding.

    What is in the slots behind them is never read: a mask hides it until it is overwritten.
    """

    def __init__(self, rows: int, layers: int, slots: int) -> None:
        self.lengths = [0] * rows
        self.slots = slots
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers

    def keep(self, rows: Sequence[int]) -> None:
        """Only these rows, in this order: a text that has ended needs no more memory."""
        self.lengths = [self.lengths[row] for row in rows]
        for kept in (self._keys, self._values):
            for layer, tensor in enumerate(kept):
                if tensor is not None:
                    kept[layer] = tensor[torch.tensor(rows, device=tensor.device)]

    def store(self, layer: int, rows: Sequence[int], key: Tensor, value: Tensor) -> None:
        """The first tokens of these rows, [rows, heads, length, width of a head]; replaces what they had."""
        for kept, new in ((self._keys, key), (self._values, value)):
            held = kept[layer]
            if held is None:  # here: only the keys tell the number type under autocast, and the device
                held = kept[layer] = new.new_zeros(len(self.lengths), new.shape[1], self.slots, new.shape[3])
            if len(rows) == len(self.lengths):
                held[:, :, : new.shape[2]] = new
            else:
                held[torch.tensor(rows, device=new.device), :, : new.shape[2]] = new

    def step(self) -> CacheStep:
        return CacheStep(self)

    def append(self, layer: int, step: CacheStep, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """One more token for every row; returns the keys and values of all tokens so far."""
        found = []
        for kept, new in ((self._keys, key), (self._values, value)):
            held = kept[layer]
            assert held is not None, "a token was added to a cache that has read nothing"
            if step.places is None:
                held[:, :, step.longest - 1 : step.longest] = new
            else:
                held[step.rows, :, step.places] = new.squeeze(2)
            found.append(held[:, :, : step.longest])
        return found[0], found[1]


class CacheStep:
    """Where the next token of each row goes, found once for all layers. `places` is None if all rows have one length."""

    def __init__(self, cache: KeyValueCache) -> None:
        self.longest = max(cache.lengths) + 1
        self.positions = torch.tensor(cache.lengths)
        self.places: Tensor | None = None
        self.rows: Tensor | None = None
        self.visible: Tensor | None = None
        self._uneven = min(cache.lengths) != max(cache.lengths)

    def to(self, device: torch.device) -> CacheStep:
        self.positions = self.positions.to(device)
        if self._uneven:
            self.places, self.rows = self.positions, torch.arange(len(self.positions), device=device)
            self.visible = (torch.arange(self.longest, device=device) <= self.positions[:, None])[:, None, None]
        return self
