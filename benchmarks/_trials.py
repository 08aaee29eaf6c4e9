"""What the benchmarks of `flatout tune` share: trials of made data on one device, and their rate in each layout."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import flatout as fo
from flatout.measure.clock import synchronize
from flatout.recipe.load import with_overrides
from flatout.tuning.training.alone import Alone
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.shared import Group
from flatout.tuning.training.stack import TrialStack
from flatout.tuning.training.unfolded import GROUPED

STEPS = 10_000_000  # of a trial; a measurement ends long before


def made_rows(shape: tuple[int, ...], rows: int, classes: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {"x": draw.normal(size=(rows, *shape)).astype(np.float32), "y": draw.integers(0, classes, rows)}


def recipe(
    shape: tuple[int, ...], classes: int, model: dict[str, Any], batch: int, rows: int, settings: dict[str, Any]
) -> fo.Recipe:
    return fo.Recipe(
        data={"arrays": made_rows(shape, rows, classes), "holdout": 0.1}, model=model, batch=batch, lr=1e-3,
        budget=f"{STEPS} steps", settings=settings,
    )  # fmt: skip


def candidates(base: fo.Recipe, count: int) -> list[TrialCandidate]:
    """Trials with different learning rates."""
    rates = np.geomspace(1e-4, 1e-2, count)
    return [TrialCandidate(number, with_overrides(base, [f"lr={rate:.6g}"])) for number, rate in enumerate(rates)]


@contextmanager
def group_of(ones: Sequence[TrialCandidate], cache: Path | None = None) -> Iterator[Group]:
    group = Group(ones[0].recipe, cache)
    try:
        yield group
    finally:
        group.close()


def rate_of(
    group: Group,
    ones: Sequence[TrialCandidate],
    kind: type[TrialStack] | type[Alone],
    threads: int,
    seconds: float,
    form: str = GROUPED,
) -> Callable[[], float]:
    """Trial-steps a second of the same trials. Each call goes on for about so many seconds; of trials alone one at a time.
    `form`: of a stack's convolutions."""
    trainer = TrialStack(group, ones, form) if kind is TrialStack else Alone(group, ones[:1])
    width = len(trainer.candidates)
    reached, steps = 0, 8

    def measure() -> float:
        nonlocal reached, steps
        began_s = time.perf_counter()
        with group.with_threads(threads):
            trainer.train(reached + steps)
        synchronize(group.device)
        took_s = time.perf_counter() - began_s
        rate = width * steps / took_s
        reached, steps = reached + steps, max(8, round(steps * min(4.0, seconds / took_s)))
        return rate

    for _ in range(4):  # kernels are loaded, and a measurement gets its length
        measure()
    return measure
