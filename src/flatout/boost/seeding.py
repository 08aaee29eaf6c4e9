"""Gives a trial the same random numbers as every other trial of the script."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.random.bit_generator
import torch

from flatout.doctor.patches import Patches


def seed_everything(seed: int, patches: Patches) -> None:
    """The generators of Python, NumPy and torch start from `seed`. So does what would take its seed from the operating system:
    NumPy's other generators (Gym's environments have one each), `random.seed()` and `torch.seed()`."""
    drawn = random.Random(seed)

    def instead_of_entropy(original: Any) -> Any:
        return lambda bits: drawn.getrandbits(bits)

    def seeded(original: Any) -> Any:
        def seed(a: Any = None, *args: Any, **named: Any) -> None:
            original(drawn.getrandbits(64) if a is None else a, *args, **named)

        return seed

    def torch_seeded(original: Any) -> Any:
        def seed() -> int:
            return torch.manual_seed(drawn.getrandbits(63)).initial_seed()

        return seed

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    patches.wrap(numpy.random.bit_generator, "randbits", instead_of_entropy)
    patches.wrap(random, "seed", seeded)
    patches.wrap(torch, "seed", torch_seeded)
