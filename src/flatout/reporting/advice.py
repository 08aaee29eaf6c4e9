"""What to do next with a run: advice from its own figures, each with the figure that it is from and a command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote

from flatout.base.tree import Node, Table, TableColumn, TextLine
from flatout.base.units import show_metric, show_seconds, show_share
from flatout.reporting.command import command_of
from flatout.reporting.goal import best_of, is_higher_better
from flatout.reporting.story import RunStory

_MOST = 5
_WORSE = 0.05  # by which the last evaluation is worse than the best, as a share of what the run gained
_STILL = 0.05  # of what a run gained that its last fifth brought: it was not done
_FEW = 5  # evaluations that say nothing about a course
_TOO_MUCH = 0.15  # of the wall time, for work that is not training
_LEAST_S = 30.0  # of wall time: shorter runs are mostly start-up
_COSTLY = {
    "data": ("waiting for data", "shows which stage of reading is slow"),
    "evaluation": ("evaluation", "evaluates less often"),
    "compile": ("compiling", "compiled code is kept: another run on this machine starts sooner"),
}
_COLUMNS = (TableColumn("why", "because"), TableColumn("what", "what it does"), TableColumn("command", "command"))


@dataclass(frozen=True)
class _Advice:
    why: str
    what: str
    command: str = ""


def advice_nodes(story: RunStory, *, is_judged: bool) -> list[Node]:
    """Empty while a run trains."""
    if story.status == "running" or not story.recipe:
        return []
    found = [*_trouble(story), *_learning(story), *_time(story), *_afterwards(story, is_judged=is_judged)][:_MOST]
    rows = [{"why": one.why, "what": one.what, "command": one.command} for one in found]
    return [TextLine("What to do next", strong=True), Table("next", _COLUMNS, rows)] if rows else []


def _trouble(story: RunStory) -> Iterator[_Advice]:
    if story.status in ("interrupted", "stopped"):
        yield _Advice(f"the run was {story.status}", "goes on from its last checkpoint", command_of(story, "run"))
    elif story.status == "diverged":
        yield _Advice("the run diverged", "finds a learning rate by short trainings", command_of(story, "find-lr"))
    elif story.status == "failed":
        yield _Advice(
            "the run failed", "trains on one batch, which finds most mistakes in seconds", command_of(story, "overfit")
        )


def _learning(story: RunStory) -> Iterator[_Advice]:
    """From the course of the metric that the run judges itself by."""
    best, metric = best_of(story), str((story.result.get("best") or {}).get("metric"))
    values = [
        (event.get("step"), float(value))
        for event in story.events
        if event.get("kind") == "evaluation" and isinstance(value := (event.get("metrics") or {}).get(metric), int | float)
    ]
    if best is None or not values:
        return
    higher = is_higher_better([story], metric)
    baseline = story.metrics.get(f"baseline.{metric}")
    if isinstance(baseline, int | float) and (best <= baseline if higher else best >= baseline):
        why = f"{metric} {show_metric(best)} is no better than always the same answer, {show_metric(baseline)}"
        yield _Advice(why, "trains on one batch: can the model learn at all?", command_of(story, "overfit"))
        return
    gained = abs(best - values[0][1])
    if len(values) < _FEW or not gained:
        return
    last, at = values[-1][1], story.result["best"].get("step")
    before = values[-1 - max(1, len(values) // 5)][1]
    if abs(best - last) > _WORSE * gained and at != values[-1][0]:
        why = f"{metric} was best at step {at:,} ({show_metric(best)}) and ended at {show_metric(last)}"
        yield _Advice(why, "searches for values that do not overfit", command_of(story, "tune", "weight_decay=1e-4..1e-1"))
    elif best == last and abs(last - before) > _STILL * gained:
        why = f"{metric} was still getting better: {show_metric(before)} to {show_metric(last)} in the last fifth of the run"
        yield _Advice(why, "a longer training may be better", _longer(story))


def _time(story: RunStory) -> Iterator[_Advice]:
    ledger, wall_s = story.result.get("ledger") or {}, story.result.get("wall_seconds")
    if not isinstance(wall_s, int | float) or wall_s < _LEAST_S:
        return
    spent = [(row, seconds) for row, seconds in ledger.items() if row in _COSTLY and isinstance(seconds, int | float)]
    for row, seconds in sorted(spent, key=lambda pair: -pair[1]):
        if seconds > _TOO_MUCH * wall_s:
            name, what = _COSTLY[row]
            why = f"{name} took {show_share(seconds / wall_s)} of the time, {show_seconds(seconds)}"
            yield _Advice(why, what, _against(story, row))


def _against(story: RunStory, row: str) -> str:
    if row == "evaluation":
        return command_of(story, "run", "evaluate=2 epochs", fresh=True)
    return command_of(story, "data" if row == "data" else "run", fresh=row != "data")


def _afterwards(story: RunStory, *, is_judged: bool) -> Iterator[_Advice]:
    name = quote(story.name)
    if story.status == "finished":
        if not is_judged and story.metrics:
            yield _Advice(
                "how well it does is not shown here",
                "adds what it confuses, and its worst rows",
                f"flatout report {name} --evaluate",
            )
        yield _Advice("it is trained", "answers over HTTP, with a page to try it on", f"flatout serve {name}")
        yield _Advice("it is trained", "a package that takes raw rows, checked against the run", f"flatout export {name}")


def _longer(story: RunStory) -> str:
    words = str(story.recipe.get("budget", "")).split()
    if len(words) != 2 or not words[0].isdigit():
        return ""
    return command_of(story, "run", f"budget={2 * int(words[0])} {words[1]}")
