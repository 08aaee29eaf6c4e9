"""Agreement between processes: rank 0 decides for all, all do the same step, or all must have the same values."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

from flatout.base.errors import FlatoutError, TrainingError, UsageError
from flatout.world.world import World

Found = TypeVar("Found")


def by_first(world: World, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Rank 0 calls `make` and sends the result to all; if it fails, all ranks raise its error."""
    if world.size == 1:
        return make()
    made: dict[str, Any] = {}
    failure: BaseException | None = None
    if world.is_first:
        try:
            made = {"made": make()}
        except BaseException as error:
            failure = error
            made = {"failed": reason_of(error)}
    told = world.from_first(made)
    if failure is not None:
        raise failure
    if "failed" in told:
        raise TrainingError(f"rank 0: {told['failed']}")
    found: dict[str, Any] = told["made"]
    return found


def on_all(world: World, make: Callable[[], Found]) -> Found:
    """Every rank calls `make`; if one fails, all ranks raise an error that names the rank and the reason."""
    made: list[Found] = []
    failure: BaseException | None = None
    try:
        made.append(make())
    except Exception as error:
        failure = error
    said = world.gather("" if failure is None else reason_of(failure))
    if failure is not None:
        raise failure
    for rank, reason in enumerate(said):
        if reason:
            raise TrainingError(f"rank {rank}: {reason}")
    return made[0]


def check_same(world: World, mine: dict[str, str], code: Callable[[], str]) -> None:
    """All ranks must have the same recipe, data, code (by hash) and versions; otherwise all stop with the difference."""
    said = world.gather(mine)
    for rank, theirs in enumerate(said):
        for name, value in theirs.items():
            if value != said[0][name]:
                texts = world.gather(code()) if name == "code" else [one[name] for one in said]
                raise UsageError(
                    f"rank {rank} has a different {name} than rank 0: {_difference(texts[0], texts[rank])}. All "
                    "processes of a run must start from the same recipe, code, data and versions"
                )


def _difference(first: str, other: str) -> str:
    """The lines that differ."""
    if first == other:
        return "the text is the same, but values that it uses differ, such as the weights of a given model"
    if "\n" not in first:
        return f"{other}, not {first}"
    lines = difflib.unified_diff(first.splitlines(), other.splitlines(), lineterm="", n=0)
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return "; ".join(changed[:6])


def reason_of(error: BaseException) -> str:
    return str(error) if isinstance(error, FlatoutError) else f"{type(error).__name__}: {error}"
