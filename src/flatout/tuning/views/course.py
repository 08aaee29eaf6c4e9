"""Pictures of a study's course: every trial's last score over time, and the learning curves of trials by step."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.svg import Axis, Plot, cross, dot, line, linear, logarithmic, path, picture, text
from flatout.base.tree import Picture
from flatout.tuning.views.axes import score_axis, thinned
from flatout.tuning.views.history import DROPPED, WHOLE, StudyHistory, TrialLine

_PLOT = Plot(500, 320)
AT_THE_EDGE = " Scores too bad for the scale are drawn at its edge."


def optimisation_history(history: StudyHistory) -> Picture | None:
    """None without a score."""
    scored = history.scored
    if not scored:
        return None
    scores, cut = score_axis(history, [score for trial in scored if (score := trial.score) is not None])
    unit, seconds = _unit(max(trial.spent_s for trial in history.trials))
    times = linear(0.0, max(trial.spent_s for trial in history.trials) / seconds)
    parts = [*_PLOT.grid(times.ticks, scores.ticks, f"time of the study in {unit}", history.metric)]
    edge = _PLOT.y(0.0 if history.higher_is_better else 1.0)
    drawn, left_out = thinned(history.best_first)
    for trial in drawn:
        x = _PLOT.x(times.at(trial.spent_s / seconds))
        if trial.score is None:
            parts.append(cross(x, edge))
        else:
            parts.append(dot("dot" if history.state(trial) == WHOLE else "ring", x, _PLOT.y(scores.at(trial.score))))
    parts.append(path("best", list(_best_so_far(history, times, seconds, scores))))
    whole = any(history.state(trial) == WHOLE for trial in scored)
    best = "the best so far of trials that were trained whole" if whole else "the best so far"
    caption = (
        f"Last score of each trial. Filled: trained whole; rings: dropped earlier; crosses: failed. Line: {best}."
        f"{left_out}{AT_THE_EDGE if cut else ''}"
    )
    return Picture(picture("Optimisation history", _PLOT.width, _PLOT.height, parts), caption)


def _best_so_far(history: StudyHistory, times: Axis, seconds: float, scores: Axis) -> Iterator[tuple[float, float]]:
    """A step at each improvement. Scores of whole trials do not compare with earlier ones, so they alone count if there are
    any."""
    wholes = [trial for trial in history.scored if history.state(trial) == WHOLE]
    best: float | None = None
    for trial in sorted(wholes or history.scored, key=lambda trial: (trial.spent_s, trial.number)):
        score = trial.score
        if score is None or (best is not None and not history.is_better(score, best)):
            continue
        x = _PLOT.x(times.at(trial.spent_s / seconds))
        if best is not None:
            yield x, _PLOT.y(scores.at(best))
        yield x, _PLOT.y(scores.at(score))
        best = score
    if best is not None:
        yield _PLOT.x(1.0), _PLOT.y(scores.at(best))


def _unit(seconds: float) -> tuple[str, float]:
    return ("s", 1.0) if seconds < 180 else ("minutes", 60.0) if seconds < 3 * 3600 else ("hours", 3600.0)


def learning_curves(history: StudyHistory, winner: int | None) -> Picture | None:
    """By step on a log scale, since each rung has twice the steps of the one before. None without a score."""
    every = [score for trial in history.trials for score in trial.scores.values()]
    if not every:
        return None
    rungs = sorted({step for trial in history.trials for step in trial.scores})
    scores, cut = score_axis(history, every)
    steps = logarithmic(rungs[0], rungs[-1])
    parts = list(_PLOT.grid([(steps.at(step), f"{step:,}") for step in rungs], scores.ticks, "step", history.metric))
    parts += [line("rung", _PLOT.x(steps.at(step)), _PLOT.top, _PLOT.x(steps.at(step)), _PLOT.y(0)) for step in rungs]
    drawn, left_out = thinned([trial for trial in history.best_first if trial.scores])
    drawn += [trial for trial in history.trials if trial.number == winner and trial not in drawn]
    for trial in sorted(drawn, key=lambda trial: (trial.number == winner, history.state(trial) == WHOLE)):
        parts += _curve(history, trial, steps, scores, is_winner=trial.number == winner)
    if any(trial.number == winner for trial in history.trials):
        parts.append(text(_PLOT.width - _PLOT.right, _PLOT.top - 14, f"winner: trial {winner}", "end"))
    caption = (
        "Scores of each trial by step, at the rungs (dashed). Faded: not trained whole."
        f"{' Orange: the winner.' if winner is not None and winner >= 0 else ''}{left_out}{AT_THE_EDGE if cut else ''}"
    )
    return Picture(picture("Learning curves of trials", _PLOT.width, _PLOT.height, parts), caption)


def _curve(history: StudyHistory, trial: TrialLine, steps: Axis, scores: Axis, *, is_winner: bool) -> Iterator[str]:
    points = [(_PLOT.x(steps.at(step)), _PLOT.y(scores.at(score))) for step, score in sorted(trial.scores.items())]
    if not points:
        return
    dropped = history.state(trial) != WHOLE
    kind = "best" if is_winner else "line faded" if dropped else "line"
    if len(points) > 1:
        yield path(kind, points)
    ended = "ring faded" if history.state(trial) == DROPPED else "dot"
    yield cross(*points[-1]) if trial.failed else dot("top" if is_winner else ended, *points[-1], 3 if is_winner else 2.2)
