"""The mesh of processes, such as `data=2,tensor=2`: its sizes multiply to the number of processes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn

from flatout.base.errors import UsageError, did_you_mean
from flatout.world.world import AXES


def parse_mesh(written: str, size: int) -> dict[str, int]:
    """All axes with their sizes, 1 if not given. An empty text means data parallelism."""
    axes = dict.fromkeys(AXES, 1)
    if not written.strip():
        return axes | {"data": size}
    given: dict[str, int] = {}
    for part in written.split(","):
        name, _, count = (piece.strip() for piece in part.partition("="))
        if name not in AXES:
            raise UsageError(f"mesh {written!r}: there is no axis {name!r}; {did_you_mean(name, AXES)}")
        if not count.isdigit() or int(count) < 1:
            raise UsageError(f"mesh {written!r}: {name} must be 1 or more, as in data=2,tensor=2, got {count!r}")
        if name in given:
            raise UsageError(f"mesh {written!r} gives {name} twice")
        given[name] = int(count)
    _check_context(written, given)
    made = math.prod(given.values())
    if made != size:
        raise UsageError(f"mesh {written!r} needs {made} processes, and there are {size}: {_instead(given, size)}")
    return axes | given


def _check_context(written: str, given: Mapping[str, int]) -> None:
    others = [name for name in AXES if name != "context" and given.get(name, 1) > 1]
    if given.get("context", 1) > 1 and others not in ([], ["data"], ["shard"]):
        raise UsageError(
            f"mesh {written!r}: context can be combined with data or with shard, not with {' and '.join(others)} yet: "
            "remove one of them"
        )


def _instead(given: Mapping[str, int], size: int) -> str:
    """A mesh that fits: the same one, with the remaining processes as copies if the number divides."""
    others = {name: count for name, count in given.items() if name != "data"}
    copies, left = divmod(size, math.prod(others.values()))
    if left or not copies:
        return f"the sizes must multiply to {size}"
    fits = show_mesh({**others, "data": copies})
    return f"use --mesh {fits}" if fits else "remove it"


def show_mesh(axes: Mapping[str, int]) -> str:
    """The written form, without axes of size 1."""
    return ",".join(f"{name}={axes[name]}" for name in AXES if axes.get(name, 1) > 1)


def check_fits(model: nn.Module, axes: Mapping[str, int], plan: Mapping[str, str] | None, schedule: str) -> None:
    """Raises if the model can't be split like this, before anything is written or started.

    `plan`: how tensor parallelism splits a model that is not built in. `schedule`: of the pipeline.
    """
    if axes["tensor"] > 1:
        from flatout.engine.parallel.tensor import layouts_of, planned

        layouts_of(*planned(model, plan, axes["tensor"]))
    if axes["pipeline"] > 1:
        from flatout.engine.parallel.pipeline import stages_of
        from flatout.engine.parallel.stages import cut

        cut(model, stages_of(schedule, axes["pipeline"]))
