"""`fo.shrink`: a smaller and faster package of a run or of a package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import UsageError
from flatout.packaging import verbs
from flatout.packaging.folder import is_package
from flatout.packaging.package import Package, open_package
from flatout.runs.record import Run
from flatout.runs.trained import CACHE
from flatout.shrinking.making import Shrunk, make_smaller
from flatout.shrinking.request import WITHIN, ShrinkRequest


def shrink(
    model: Run | Package | Path | str,
    out: Path | str = "shrunk",
    *,
    goal: str | None = None,
    margin: float | None = None,
    batch: int | Sequence[int] | None = None,
    data: Any = None,
    within: str = WITHIN,
    training: str | None = None,
    device: str = "cpu",
    slo: str | None = None,
    runs: Path | str = "runs",
    cache: Path | str | None = CACHE,
    say: Callable[[str], None] = lambda line: None,
) -> Shrunk:
    """Write a package with the same answers, within `margin`, that is faster here; or smaller, if `goal` says so.

    `model`: a run, a package, the folder of one, a run's name in `runs`, or "last". A run is exported first.
    `goal`: "speed 2x", "size 4x", "p99 5 ms"; without one, as fast as it gets. `margin`: points of accuracy or AUC, nats of
    loss, percent of an error. `batch`: rows in a call as they are served, 64 or (1, 64); by default 1 and, with a latency as
    `slo` of the service or as `goal`, what that permits. `data`: labelled rows to judge by, other than the run's own. No new
    try starts after `within`. `training`: how long smaller models may be trained, together, by default half of `within`;
    "off": not at all.
    `device`: that serves it, "cpu" or "cuda".

    `shrunk.package` answers as any package, `shrunk.sentence` says what came out, and `shrunk.goal_met` whether that is what
    was asked for. Without a change that is faster and proven as accurate, the package holds the model as it was.
    """
    request = ShrinkRequest.read(goal, margin, batch, data, within, training, device, slo)
    kept = None if cache is None else Path(cache)
    return make_smaller(_packaged(model, Path(runs), kept, say), Path(out), request, cache=kept, say=say)


def _packaged(model: Run | Package | Path | str, runs: Path, cache: Path | None, say: Callable[[str], None]) -> Package:
    found = verbs.load(model, runs=runs) if isinstance(model, str | Path) else model
    if isinstance(found, Package):
        return found
    if not isinstance(found, Run):
        raise UsageError(f"shrink takes a run or a package, or the name of one, got {type(model).__name__}")
    target = verbs.exported_place(found, cache)
    if is_package(target):
        return open_package(target)
    say(f"exporting {found.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    made: Package = verbs.export(found, target, cache=cache)
    return made
