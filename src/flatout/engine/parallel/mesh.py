"""How the processes are laid out: `data=2,tensor=2`, whose parts multiply to the number of processes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn

from flatout.base.errors import UsageError, did_you_mean
from flatout.world.world import AXES


def parse_mesh(written: str, size: int) -> dict[str, int]:
    """All axes with their sizes, 1 where none is given; an empty text is data parallel."""
    axes = dict.fromkeys(AXES, 1)
    if not written.strip():
        return axes | {"data": size}
    given: dict[str, int] = {}
    for part in written.split(","):
        name, _, count = (piece.strip() for piece in part.partition("="))
        if name not in AXES:
            raise UsageError(f"mesh {written!r}: there is no axis {name!r}; {did_you_mean(name, AXES)}")
        if not count.isdigit() or int(count) < 1:
            raise UsageError(f"mesh {written!r}: {name} is to be 1 or more, got {count!r}, as in data=2,tensor=2")
        if name in given:
            raise UsageError(f"mesh {written!r} gives {name} twice")
        given[name] = int(count)
    _check_context(written, given)
    made = math.prod(given.values())
    if made != size:
        raise UsageError(
            f"mesh {written!r} multiplies to {made}, and the number of processes is {size}: {_instead(given, size)}"
        )
    return axes | given


def _check_context(written: str, given: Mapping[str, int]) -> None:
    others = [name for name in AXES if name != "context" and given.get(name, 1) > 1]
    if given.get("context", 1) > 1 and others not in ([], ["data"], ["shard"]):
        raise UsageError(
            f"mesh {written!r}: context goes together with data or with shard, not with {' and '.join(others)} yet: "
            "leave one of them out"
        )


def _instead(given: Mapping[str, int], size: int) -> str:
    """The same layout with the rest of the processes as copies, where that divides."""
    others = {name: count for name, count in given.items() if name != "data"}
    copies, left = divmod(size, math.prod(others.values()))
    if left or not copies:
        return f"their product has to be {size}"
    fits = show_mesh({**others, "data": copies})
    return f"--mesh {fits} fits" if fits else "leave it out"


def show_mesh(axes: Mapping[str, int]) -> str:
    """As it is written, without what is 1."""
    return ",".join(f"{name}={axes[name]}" for name in AXES if axes.get(name, 1) > 1)


def check_fits(model: nn.Module, axes: Mapping[str, int], plan: Mapping[str, str] | None, schedule: str) -> None:
    """Whether a model can be split so, found out from the whole model: before anything is written or started.

    `plan`: how tensor parallel splits a model that brings none. `schedule`: of the stages of a pipeline.
    """
    if axes["tensor"] > 1:
        from flatout.engine.parallel.tensor import layouts_of, planned

        layouts_of(*planned(model, plan, axes["tensor"]))
    if axes["pipeline"] > 1:
        from flatout.engine.parallel.pipeline import stages_of
        from flatout.engine.parallel.stages import cut

        cut(model, stages_of(schedule, axes["pipeline"]))
