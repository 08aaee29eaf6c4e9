"""What `flatout tune` prints at the end, and `flatout runs show` later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine
from flatout.base.units import show_metric, show_seconds, show_value
from flatout.tuning.study.finals import RECIPE
from flatout.tuning.study.folder import StudyFolder
from flatout.tuning.views.history import History, TrialLine, read_history

_SHOWN = 8  # trials, best first


def study_doc(folder: StudyFolder) -> Doc:
    asked, result, history = folder.asked, folder.result, read_history(folder)
    nodes: list[Node] = [TextLine(_title(folder, history), strong=True), TextLine()]
    if result is None:
        nodes += [TextLine(_unfinished(asked, history)), TextLine()]
    else:
        nodes += [*map(TextLine, _verdict(result)), TextLine()]
    nodes.append(_trials(history))
    if history.failed:
        nodes += [
            TextLine(),
            TextLine("Failed trials"),
            *(TextLine(f"  {count} x {why}") for why, count in history.failed.items()),
        ]
    nodes += [TextLine(), *map(TextLine, _how(history, result))]
    if result is not None:
        nodes += [TextLine(), *map(TextLine, _next_steps(folder, result))]
    nodes.append(Fields({"name": folder.name, "folder": str(folder.path), "asked": asked, "result": result}))
    return Doc(tuple(nodes))


def _title(folder: StudyFolder, history: History) -> str:
    state = "finished" if folder.result is not None else "unfinished"
    return f"{folder.name}: {state}, {len(history.trials)} trials in {show_seconds(history.seconds)}"


def _verdict(result: Mapping[str, Any]) -> list[str]:
    metric, again, recipe, gain = result["metric"], result["again"], result["recipe"], result["gain"]
    in_search = result["score_in_search"]
    if result["winner"]["number"] == RECIPE:
        return [
            f"no trial is better than the recipe as it was, trained again with fresh seeds: {metric} {_interval(again)}",
            *_outlook(result),
        ]
    found = f"{show_metric(in_search)} in the search, " if in_search is not None else ""
    lines = [
        f"{metric}: {found}{_interval(again)} when trained again",
        f"  (95% of trainings, from {again['n']} fresh seeds, judged on {result['judged_on']})",
        f"  with {_point(result['winner']['point'])}",
    ]
    better = result["better_than_recipe"]
    change = f"{gain['mean']:+.4g} [{gain['low']:+.4g}, {gain['high']:+.4g}]"
    if better is None:
        lines.append(f"the recipe as it was: {_interval(recipe)}; no difference that these seeds can tell: {change}")
    else:
        lines.append(f"the recipe as it was: {_interval(recipe)}; the winner is {'better' if better else 'WORSE'} by {change}")
    return [*lines, *_outlook(result)]


def _outlook(result: Mapping[str, Any]) -> list[str]:
    lines = []
    if (more := result["expected_gain_in_an_hour"]) is not None:
        lines.append(f"another hour of search would bring about {abs(more):.2g} more, judging by what the last half brought")
    if result["stopped"]:
        lines.append(f"the search was ended early by {result['stopped']}")
    return lines


def _unfinished(asked: Mapping[str, Any], history: History) -> str:
    best = history.best
    so_far = (
        "no trial has a score yet"
        if best is None
        else f"best so far {show_metric(best.score or 0.0)} with {_point(best.point)}"
    )
    return f"{so_far}. That score is the luckiest of many: the same `flatout tune` command goes on and judges the winner."


def _trials(history: History) -> Table:
    keys = list(dict.fromkeys(key for trial in history.trials for key in trial.point))
    columns = [
        TableColumn("number", "trial", right=True),
        TableColumn("score", history.metric, right=True),
        TableColumn("steps", "steps", right=True),
        *(TableColumn(key, key, right=True) for key in keys),
        TableColumn("failed", "", shown=False),
    ]
    rows = [_row(trial) for trial in history.best_first]
    return Table("trials", columns, rows[:_SHOWN], rows[_SHOWN:], "more trials; runs show --json has all")


def _row(trial: TrialLine) -> dict[str, Any]:
    score = Cell(trial.score, "failed" if trial.score is None else show_metric(trial.score))
    shown = {key: Cell(value, show_value(value)) for key, value in trial.point.items()}
    return {"number": trial.number, "score": score, "steps": trial.step, **shown, "failed": trial.failed}


def _how(history: History, result: Mapping[str, Any] | None) -> list[str]:
    lines = ["How the trials were trained"]
    for layout in history.layouts:
        lines.append(f"  {layout['kind']}: {layout['why']}")
        if layout["proof"] and layout["kind"] == "stacked":
            lines.append(f"    {layout['proof']}")
    if result is not None:
        if result["first_rung"]:
            lines.append(f"  first rung: {result['first_rung']}")
        around = 1 - result["training_s"] / max(result["seconds"], 1e-9)
        lines.append(f"  {show_seconds(result['training_s'])} of training; {max(around, 0):.0%} of the time was around it")
    return lines


def _next_steps(folder: StudyFolder, result: Mapping[str, Any]) -> list[str]:
    if folder.best_path.exists():
        return [f"To train it: flatout run {folder.best_path}"]
    return [f"To train it: flatout run RECIPE {' '.join(result['winner']['overrides'])}"]


def _interval(interval: Mapping[str, Any]) -> str:
    return f"{show_metric(interval['mean'])} [{show_metric(interval['low'])}, {show_metric(interval['high'])}]"


def _point(point: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={show_value(value)}" for key, value in point.items())
