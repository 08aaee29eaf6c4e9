"""`pipeline`: run what changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import DataError, UsageError, did_you_mean
from flatout.base.units import parse_bytes
from flatout.pipelines.asked.documents import plain, remembering
from flatout.pipelines.asked.reading import read_pipeline
from flatout.pipelines.asked.stage_kinds import DataStage
from flatout.pipelines.stages.assessing import AskedAgain, Assessor
from flatout.pipelines.stages.outcomes import PipelineOutcome
from flatout.pipelines.stages.resolved import ResolvedPipeline, resolve

Say = Callable[[str], None]


def open_pipeline(path: Path, stages: Sequence[str] = (), cache: Path | None = None) -> ResolvedPipeline:
    """RecipeError with all mistakes of the file and between its stages. `stages`: only these, and what they wait for.

    `cache`: where what was read of YAML files is kept."""
    found = resolve(read_pipeline(path, plain if cache is None else remembering(cache)))
    return found.only(stages) if stages else found


def run_pipeline(
    pipeline: ResolvedPipeline,
    *,
    cache: Path,
    environment: Mapping[str, str],
    fresh: Sequence[str] = (),
    accept: Sequence[str] = (),
    say: Say = lambda line: None,
) -> PipelineOutcome:
    """The same call after a kill goes on. `environment`: that of its commands. `fresh`: stages that run although
    nothing changed."""
    found = assessor(pipeline, cache, environment, fresh, accept)
    if (outcome := _if_unchanged(found)) is not None:
        return outcome
    from flatout.pipelines.stages.driver import PipelineDriver  # here: with nothing to do, its parts are not needed

    return PipelineDriver(found, lambda: kept_results(pipeline, cache), say).run()


def look_at_pipeline(pipeline: ResolvedPipeline, *, cache: Path, environment: Mapping[str, str]) -> PipelineOutcome | None:
    """The outcome if no stage has to run; runs none."""
    return _if_unchanged(assessor(pipeline, cache, environment, ()))


def _if_unchanged(found: Assessor) -> PipelineOutcome | None:
    began_s = time.monotonic()
    try:
        return found.outcome(time.monotonic() - began_s) if found.all_unchanged() else None
    except DataError:
        return None  # an input disappeared: the driver says of which stage


def assessor(
    pipeline: ResolvedPipeline, cache: Path, environment: Mapping[str, str], fresh: Sequence[str], accept: Sequence[str] = ()
) -> Assessor:
    for name in (*fresh, *accept):
        if name not in pipeline.stages:
            raise UsageError(f"{pipeline.asked.path} has no stage {name!r}; {did_you_mean(name, pipeline.stages)}")
    for name in accept:
        if not isinstance(pipeline.stages[name].asked, DataStage):
            raise UsageError(f"--accept {name}: only stages of kind data are compared with an earlier version")
    return Assessor(pipeline, cache, environment, AskedAgain(frozenset(fresh), frozenset(accept)))


def kept_results(pipeline: ResolvedPipeline, cache: Path) -> Any:
    from flatout.pipelines.results.store import ResultStore

    keys = pipeline.asked.keys
    return ResultStore(cache / "results", parse_bytes(keys.keep), keys.store)
