"""How long a stage will take: from what it took before, at the sizes that its inputs and its budget had then."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flatout.base.budget import Budget
from flatout.base.errors import FlatoutError
from flatout.pipelines.asked.stage_kinds import TrainStage, TuneStage
from flatout.pipelines.stages.records import StageRecord
from flatout.pipelines.stages.resolved import ResolvedStage

_LATEST = 8
_PROCESS_S = 0.1
_GROWS = ("run", "data", "train", "tune", "evaluate")  # the others take as long for twice as many rows, nearly
_ALIKE = 0.02  # sizes that differ by less are one size


@dataclass(frozen=True)
class Forecast:
    """None: this stage never ran here. `joules` are of the device, as its runs measured them."""

    seconds: float | None
    joules: float | None
    words: str


def forecast(past: Sequence[StageRecord], size: float, amount: float | None, unit: str) -> Forecast:
    """`size`: bytes of the inputs; `amount`: of the budget, such as 8 epochs. The median of alike ones; else a line."""
    known = [one for one in past if one.seconds > 0 and one.unit == unit and (one.amount is None) == (amount is None)]
    known = [one for one in known if one.alone] or known
    if not known:
        return Forecast(None, None, "never ran here")
    work = size_of_work(size, amount, unit)
    alike = [one for one in known if _is_alike(size_of_work(one.size, one.amount, unit), work)][-_LATEST:]
    if alike:
        times = "once" if len(alike) == 1 else f"{len(alike)} times"
        return Forecast(statistics.median(one.seconds for one in alike), _joules(alike, 1.0), f"ran {times} before")
    last = known[-1]
    if last.kind not in _GROWS:
        return Forecast(last.seconds, last.joules, "with other inputs")
    if last.growing_s is not None and last.growing_s <= last.seconds:  # a training knows what was start-up
        grown = work / size_of_work(last.size, last.amount, unit)
        seconds = last.seconds + (grown - 1) * last.growing_s
    else:
        start, rate = _line([(size_of_work(one.size, one.amount, unit), one.seconds) for one in known[-4 * _LATEST :]])
        seconds = start + rate * work
    return Forecast(seconds, _joules([last], seconds / last.seconds), f"{len(known)} before, with other sizes")


def size_of_work(size: float, amount: float | None, unit: str) -> float:
    """Rows times epochs, as far as it is known; a budget of time, money or energy is used up whatever the size."""
    if amount is not None and unit != "epochs":
        return amount
    return max(size, 1.0) * (1.0 if amount is None else amount)


def _is_alike(one: float, other: float) -> bool:
    return abs(one - other) <= _ALIKE * max(one, other)


def _joules(known: Sequence[StageRecord], factor: float) -> float | None:
    found = [one.joules for one in known if one.joules is not None]
    return statistics.median(found) * factor if found else None


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """A start and a rate, neither below 0, that fit best; of one size, all but the start of a process is taken to grow."""
    mean_x, mean_y = (statistics.fmean(one) for one in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread <= (_ALIKE * mean_x) ** 2:
        start = min(_PROCESS_S, mean_y / 2)
        return start, (mean_y - start) / mean_x
    rate = max(sum((x - mean_x) * (y - mean_y) for x, y in points) / spread, 0.0)
    start = mean_y - rate * mean_x
    return (start, rate) if start >= 0 else (0.0, mean_y / mean_x)


def budget_of(stage: ResolvedStage) -> tuple[float | None, str]:
    """Amount and unit of a training's budget, which its time grows with; None and "" of other stages."""
    if isinstance(stage.asked, TuneStage):
        written = stage.asked.budget
    elif isinstance(stage.asked, TrainStage):
        written = stage.asked.set.get("budget", (stage.recipe or {}).get("budget"))
    else:
        written = None
    try:
        found = None if written is None else Budget.parse(str(written))
    except FlatoutError:  # the training says what is wrong with it
        return None, ""
    return (None, "") if found is None else (found.amount, found.unit)
