"""What serves batches to a training loop. Every tier yields the same batches, bit for bit."""

from __future__ import annotations

from typing import Protocol

import torch

from flatout.base.specs import pick
from flatout.data.data import Data
from flatout.data.evaluation import EvalFeed, eval_batches
from flatout.data.pinned import PinnedFeed
from flatout.data.resident import ResidentFeed
from flatout.data.source import Batch

__all__ = ["TIERS", "EvalFeed", "Feed", "PinnedFeed", "ResidentFeed", "eval_batches", "feed"]

TIERS: dict[str, type[ResidentFeed] | type[PinnedFeed]] = {"resident": ResidentFeed, "pinned": PinnedFeed}


class Feed(Protocol):
    """`position` is the number of samples served: with the seed, all there is to know to go on from here."""

    batch: int
    position: int

    @property
    def degraded(self) -> list[str]:
        """What is not as it should be, in words."""
        ...

    def next(self, size: int | None = None) -> Batch: ...

    def seek(self, position: int) -> None: ...

    def close(self) -> None: ...


def feed(data: Data, tier: str, batch: int, device: torch.device | str, seed: int = 0) -> Feed:
    """The training part of `data`, prepared and augmented, from the tier asked for."""
    made: Feed = pick(TIERS, tier, "tier")(
        data.train, data.sampler(seed), batch, device, transforms=data.transforms(), seed=seed
    )
    return made
