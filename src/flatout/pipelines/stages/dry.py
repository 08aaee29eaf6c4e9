"""What a call would run, why, and what it would take. Nothing is run or changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flatout.base.errors import DataError
from flatout.pipelines.asked.stage_kinds import TrainStage
from flatout.pipelines.stages.assessing import Assessor
from flatout.pipelines.stages.forecast import Forecast, budget_of, forecast
from flatout.pipelines.stages.resolved import ResolvedPipeline, ResolvedStage
from flatout.pipelines.stages.settling import Settler
from flatout.pipelines.stages.verb import assessor, kept_results


@dataclass(frozen=True)
class Would:
    """`certain`: False if the stage runs only if an earlier stage's new result differs from its old one."""

    stage: ResolvedStage
    why: tuple[str, ...]
    certain: bool
    forecast: Forecast
    fallbacks: tuple[str, ...] = ()
    is_kept: bool = False


def dry_run(
    pipeline: ResolvedPipeline, *, cache: Path, environment: Mapping[str, str], fresh: Sequence[str] = ()
) -> list[Would]:
    found = assessor(pipeline, cache, environment, fresh)
    settler = Settler(found, lambda: kept_results(pipeline, cache), lambda line: None)
    would: dict[str, Would] = {}
    for stage in pipeline.stages.values():
        one = _would(stage, found, settler, would)
        if one.forecast.seconds is None and isinstance(stage.asked, TrainStage):
            one = replace(one, forecast=_estimated(stage, found, would, cache))
        would[stage.name] = one
    return list(would.values())


def _estimated(stage: ResolvedStage, found: Assessor, earlier: Mapping[str, Would], cache: Path) -> Forecast:
    """Of a training that never ran."""
    from flatout.pipelines.stages.estimate import estimate  # here: it loads torch

    try:
        size: float | None = found.keys.input_bytes(stage)
    except DataError:
        size = None
    return estimate(stage, found.pipeline, cache, size, [name for name in stage.waits_for if earlier[name].why])


def _would(stage: ResolvedStage, found: Assessor, settler: Settler, earlier: Mapping[str, Would]) -> Would:
    past = found.records.past(stage.name)
    amount, unit = budget_of(stage)
    changed = [name for name in stage.waits_for if earlier[name].why]
    if any(_rests_on(stage, found.pipeline.stages[name]) for name in changed):
        size = past[-1].size if past else 0.0
        return Would(stage, (f"after {', '.join(changed)}",), not past, forecast(past, size, amount, unit))
    try:
        assessed = found.assess(stage)
    except DataError as error:
        return Would(stage, (str(error),), True, forecast(past, 0.0, amount, unit))
    fallbacks = assessed.key.fallbacks
    if not assessed.why and assessed.last is not None:
        found.done[stage.name] = assessed.last
        return Would(stage, (), True, Forecast(0.0, None, ""), fallbacks)
    if settler.is_kept(stage, assessed):
        return Would(stage, assessed.why, True, Forecast(0.0, None, "a kept result"), fallbacks, is_kept=True)
    return Would(stage, assessed.why, True, forecast(past, assessed.key.size, amount, unit), fallbacks)


def _rests_on(stage: ResolvedStage, other: ResolvedStage) -> bool:
    """Whether the other's result is a part of this one's key, and not only waited for."""
    reads = [
        read.is_relative_to(output) or output.is_relative_to(read)
        for read in (*stage.reads, *stage.code)
        for output in other.outputs
    ]
    return other.name in stage.uses.values() or any(reads)
