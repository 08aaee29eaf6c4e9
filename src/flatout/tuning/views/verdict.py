"""What a finished study found: the figures, what they mean, and what to do with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flatout.base.tree import Node, Table, TableColumn, TextLine
from flatout.base.units import show_metric
from flatout.tuning.study.finals import RECIPE
from flatout.tuning.study.folder import StudyFolder
from flatout.tuning.views.words import command, point_lines, signed, wrapped


def verdict_nodes(folder: StudyFolder, asked: Mapping[str, Any], result: Mapping[str, Any]) -> list[Node]:
    first, *meaning = _meaning(result)
    lines = [*meaning, *_winner(folder, asked, result), "", *_about_the_figures(result), *_outlook(result)]
    return [_figures(result), TextLine(), TextLine(first, strong=True), *map(TextLine, lines)]


def _figures(result: Mapping[str, Any]) -> Table:
    """For people; `result` in the JSON has them all."""
    again, recipe = ("again", "recipe as it was") if _is_recipe(result) else ("again", f"winner, trial {_number(result)}")
    rows = [_row(recipe, result[again])]
    if not _is_recipe(result):
        gain = result["gain"]
        rows.append(_row("recipe as it was", result["recipe"]))
        rows.append({"name": "difference", "mean": signed(gain["mean"]), "range": _range(gain, signed)})
    better = "" if result["higher_is_better"] else ", lower is better"
    columns = (
        TableColumn("name", ""),
        TableColumn("mean", f"{result['metric']}{better}", right=True),
        TableColumn("range", "95% interval", right=True),
    )
    return Table("figures", columns, rows, in_json=False)


def _row(name: str, interval: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "mean": show_metric(interval["mean"]), "range": _range(interval, show_metric)}


def _range(interval: Mapping[str, Any], show: Any) -> str:
    low, high = interval["low"], interval["high"]
    known = all(value is not None and math.isfinite(value) for value in (low, high))
    return f"{show(low)} to {show(high)}" if known else "unknown: one seed"


def _meaning(result: Mapping[str, Any]) -> list[str]:
    n, metric, better = result["again"]["n"], result["metric"], result["better_than_recipe"]
    if _is_recipe(result):
        return [
            "NO IMPROVEMENT: trained again with fresh seeds, no trial is better than the recipe as it was.",
            *wrapped(f"Mean {metric} with fresh seeds: {_chosen_by(result)}.", 0),
            "Keep the recipe, or search other keys or wider ranges.",
        ]
    size = show_metric(abs(result["gain"]["mean"]))
    if better is None:
        return [
            f"NO CLEAR DIFFERENCE: {n} seeds cannot tell the winner from the recipe as it was.",
            "Keep the recipe, or search longer: the same command with a larger --budget or more --trials.",
        ]
    if better:
        return [f"BETTER: the winner improves {metric} by {size} over the recipe as it was."]
    return [
        f"WORSE: with fresh seeds, the winner's {metric} is worse by {size} than that of the recipe as it was.",
        "The search chose it by luck. Keep the recipe, or search longer.",
    ]


def _chosen_by(result: Mapping[str, Any]) -> str:
    """The mean score of each finalist with the seeds that chose the winner, best first."""
    means = {int(number): mean for number, mean in result["chosen_by"].items()}
    ordered = sorted(means, key=lambda number: means[number], reverse=result["higher_is_better"])
    return ", ".join(f"{'the recipe' if one == RECIPE else f'trial {one}'} {show_metric(means[one])}" for one in ordered)


def _winner(folder: StudyFolder, asked: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    if _is_recipe(result):
        return []
    return [*point_lines(result["winner"]["point"], "Winner: "), f"To train it: {_train(folder, asked, result)}"]


def _train(folder: StudyFolder, asked: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    if folder.best_path.exists():
        return command("run", str(folder.best_path))
    if asked.get("source") is None:
        return "flatout.run(study.best.recipe) in Python"
    return command("run", asked["source"], *asked.get("overrides", ()), *result["winner"]["overrides"])


def _about_the_figures(result: Mapping[str, Any]) -> Sequence[str]:
    n, in_search = result["again"]["n"], result["score_in_search"]
    found = [f"Trained again with {n} fresh seeds, scored on {result['judged_on']}.", "95% of trainings lie in the interval"]
    if _is_recipe(result):
        found[-1] += "."
        return found
    found[-1] += "; for the difference, the mean does."
    if in_search is not None:
        again = result["again"]["mean"]
        lucky = in_search > again if result["higher_is_better"] else in_search < again
        why = f" The best of {result['trials']} trials is partly luck: expect {show_metric(again)}." if lucky else ""
        found.append(f"In the search the winner's score was {show_metric(in_search)}.{why}")
    return found


def _outlook(result: Mapping[str, Any]) -> list[str]:
    lines = []
    if (more := result["expected_gain_in_an_hour"]) is not None:
        gain = f"about {abs(more):.2g} better in {result['metric']}"
        lines.append(f"Another hour of search: {gain}, judging by the second half of the trials.")
    if result["stopped"]:
        lines.append(f"The search was ended early by {result['stopped']}.")
    return lines


def _is_recipe(result: Mapping[str, Any]) -> bool:
    return _number(result) == RECIPE


def _number(result: Mapping[str, Any]) -> int:
    return int(result["winner"]["number"])
