"""Pictures of what the parameters did: their importance, parallel coordinates, and the score against each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flatout.base.svg import LETTER, RANKS, Axis, Plot, dot, line, path, picture, text
from flatout.base.tree import Picture
from flatout.base.units import show_metric
from flatout.tuning.space.parameter import Parameter
from flatout.tuning.space.space import Space
from flatout.tuning.views.axes import ranks, score_axis, thinned, value_ticks
from flatout.tuning.views.course import AT_THE_EDGE
from flatout.tuning.views.history import StudyHistory, TrialLine
from flatout.tuning.views.words import short_keys, shortened

_WIDTH, _ROW = 500.0, 64.0
_SMALL_WIDTH, _SMALL_HEIGHT = 336.0, 240.0  # three in a row of a page


def importance_picture(importance: Mapping[str, float], step: int, trials: int) -> Picture:
    name_width, row = 120.0, 28.0
    height = row * len(importance) + 20
    longest = _SMALL_WIDTH - name_width - 50
    names, parts = short_keys(list(importance)), list[str]()
    most = max([*importance.values(), 1e-9])
    for place, (key, share) in enumerate(importance.items()):
        y = 14 + row * place
        parts.append(text(name_width - 8, y + 12, shortened(names[key], 16), "end"))
        parts.append(f'<rect class="bar" x="{name_width}" y="{y:.1f}" width="{longest * share / most:.1f}" height="16"/>')
        parts.append(text(name_width + longest * share / most + 6, y + 12, f"{share:.2f}"))
    caption = (
        f"Importance of parameters (PED-ANOVA by Optuna, {trials} trials at step {step:,}): "
        "how much each tells the best quarter of trials from the others."
    )
    return Picture(picture("Importance of parameters", _SMALL_WIDTH, height, parts), caption)


def parallel_coordinates(history: StudyHistory, space: Space, step: int) -> Picture:
    """An axis below the other, so that many fit on a narrow page; a line for each trial."""
    trials = [trial for trial in history.trials if step in trial.scores]
    colours = ranks(history, trials, step)
    scores, cut = score_axis(history, [trial.scores[step] for trial in trials])
    axes: list[tuple[str, Axis | Parameter]] = [(one.key, one) for one in space.parameters]
    axes.append((f"{history.metric} at step {step:,}", scores))
    height = _ROW * len(axes) + 16
    plot = Plot(_WIDTH, height, left=28, right=28, top=0, bottom=0)
    parts: list[str] = []
    drawn, left_out = thinned(sorted(trials, key=lambda trial: -colours[trial.number]))
    for trial in reversed(drawn):
        points = [
            (plot.x(place), _level(row))
            for row, (_, axis) in enumerate(axes)
            if (place := _place(axis, trial, step)) is not None
        ]
        parts.append(path(f"r{colours[trial.number]}", points))
    for row, (name, axis) in enumerate(axes):
        parts += _axis(plot, _level(row), name, axis)
    caption = f"Each line is a trial: its parameters, and its {history.metric} at step {step:,}. {_COLOURS}{left_out}"
    if cut:
        caption += AT_THE_EDGE
    return Picture(picture("Parallel coordinates", _WIDTH, height, parts), caption)


_COLOURS = "The stronger the colour, the better the score."


def _level(row: int) -> float:
    return 26 + _ROW * row


def _place(axis: Axis | Parameter, trial: TrialLine, step: int) -> float | None:
    """None if the trial does not have the parameter."""
    if isinstance(axis, Axis):
        return axis.at(trial.scores[step])
    return axis.domain.unit_of(trial.point[axis.key]) if axis.key in trial.point else None


def _axis(plot: Plot, y: float, name: str, axis: Axis | Parameter) -> Iterator[str]:
    yield line("pair", plot.x(0), y, plot.x(1), y)
    yield text(4, y - 10, shortened(name, 60), kind="title")
    free = -1.0
    for place, label in axis.ticks if isinstance(axis, Axis) else value_ticks(axis.domain):
        half = LETTER * len(label) / 2
        x = min(max(plot.x(place), half), plot.width - half)
        yield line("pair", plot.x(place), y - 3, plot.x(place), y + 3)
        if x - half > free:
            yield text(x, y + 17, label, "middle", "note")
            free = x + half + 4


def slices(history: StudyHistory, space: Space, step: int) -> list[Picture]:
    """The score against each parameter."""
    trials = [trial for trial in history.trials if step in trial.scores]
    colours = ranks(history, trials, step)
    axis, _ = score_axis(history, [trial.scores[step] for trial in trials])
    found = []
    for one in space.parameters:
        having = [trial for trial in trials if one.key in trial.point]
        if having:
            found.append(_slice(history, one, having, colours, axis, step))
    return found


def _slice(
    history: StudyHistory, one: Parameter, trials: Sequence[TrialLine], colours: Mapping[int, int], scores: Axis, step: int
) -> Picture:
    plot = Plot(_SMALL_WIDTH, _SMALL_HEIGHT, left=54, right=14)
    parts = list(plot.grid(value_ticks(one.domain, 4), scores.ticks, shortened(one.key, 40), history.metric))
    drawn, left_out = thinned(sorted(trials, key=lambda trial: -colours[trial.number]))
    for trial in reversed(drawn):
        unit = one.domain.unit_of(trial.point[one.key])
        if unit is not None:
            colour = colours[trial.number]
            parts.append(
                dot(f"d{colour}", plot.x(unit), plot.y(scores.at(trial.scores[step])), 4 if colour == RANKS - 1 else 3.5)
            )
    best = max(trials, key=lambda trial: trial.scores[step] * (1 if history.higher_is_better else -1))
    caption = (
        f"{one.key}: best {show_metric(best.scores[step])}, trial {best.number}, of {len(trials):,} at step {step:,}.{left_out}"
    )
    return Picture(picture(f"{history.metric} by {one.key}", plot.width, plot.height, parts), caption)
