"""What `flatout tune` prints at the end, and `flatout runs show` later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flatout.base.tree import Doc, Fields, Node, TextLine
from flatout.base.units import show_metric, show_seconds
from flatout.store.lock import FileLock
from flatout.tuning.study.folder import StudyFolder
from flatout.tuning.study.ledger import FINALS, TRAINING, ledger_lines
from flatout.tuning.views.history import StudyHistory, TrialLine, read_history
from flatout.tuning.views.importance import Importance, importance_of
from flatout.tuning.views.layouts import layout_lines
from flatout.tuning.views.page import study_pictures
from flatout.tuning.views.trial_table import trial_tables
from flatout.tuning.views.verdict import verdict_nodes
from flatout.tuning.views.words import point_lines, short_keys, wrapped

_REASONS = 5  # of failures


def study_doc(folder: StudyFolder, importance: Importance | None = None) -> Doc:
    """`importance`: if it was computed before."""
    asked, result, history = folder.asked, folder.result, read_history(folder)
    space = folder.space
    importance = importance_of(history, space) if importance is None else importance
    nodes: list[Node] = [TextLine(_title(folder, history), strong=True), TextLine()]
    nodes += verdict_nodes(folder, asked, result) if result is not None else map(TextLine, _unfinished(folder, history))
    nodes += [TextLine(), *study_pictures(history, space, result, importance)]
    if history.trials:
        nodes += [*trial_tables(history), *map(TextLine, _importance(importance)), TextLine()]
    nodes += _section("Failed trials", _failed(history))
    nodes += _section("How the trials were trained", _how(history, result))
    nodes += _section("Damaged lines of the log", [line for why in history.damaged for line in wrapped(f"  {why}")])
    nodes.append(Fields(_fields(folder, asked, result, history, importance)))
    return Doc(tuple(nodes))


def study_status(folder: StudyFolder) -> str:
    """finished, running, or unfinished: its process ended before it did."""
    if FileLock(folder.path / "lock").is_held:
        return "running"
    return "unfinished" if folder.result is None else "finished"


def _title(folder: StudyFolder, history: StudyHistory) -> str:
    return f"{folder.name}: {study_status(folder)}, {_trials(len(history.trials))} in {show_seconds(history.seconds)}"


def _unfinished(folder: StudyFolder, history: StudyHistory) -> list[str]:
    best = history.best
    go_on = "It is still running." if study_status(folder) == "running" else "To go on: the same `flatout tune` command."
    if best is None or best.score is None:
        failed = "" if not history.failed else f" All {_trials(len(history.trials))} so far failed; the reasons are below."
        return [f"No trial has a score yet.{failed}", go_on]
    where = f"trial {best.number}, step {best.step:,} of {history.total_steps:,}"
    return [
        f"Best so far: {history.metric} {show_metric(best.score)} ({where})",
        *point_lines(best.point, "with "),
        "This score is partly luck: the winner is trained again with fresh seeds when the search ends.",
        go_on,
    ]


def _importance(importance: Importance) -> list[str]:
    """Nothing if there are too few trials for it."""
    if not importance.trials:
        return []
    names = short_keys(list(importance.shares))
    # a share stays on the line of its key
    words = ", ".join(f"{names[key]}\xa0{share:.2f}" for key, share in importance.shares.items()) or importance.why
    return ["", *(line.replace("\xa0", " ") for line in wrapped(f"importance: {words}"))]


def _failed(history: StudyHistory) -> list[str]:
    lines: list[str] = []
    ordered = sorted(history.failed.items(), key=lambda pair: -pair[1])
    for why, count in ordered[:_REASONS]:
        lines += wrapped(f"  {count} x {why}")
    more = len(ordered) - _REASONS
    return [*lines, *([f"  ({more} more reasons; --json has all)"] if more > 0 else [])]


def _how(history: StudyHistory, result: Mapping[str, Any] | None) -> list[str]:
    lines = layout_lines(history.layouts)
    if result is None:
        return [*lines, *_times(history.parts, history.seconds)]
    if result["first_rung"]:
        lines += [line for part in result["first_rung"].split("; ") for line in wrapped(f"  {part}")]
    if result["lost_processes"]:
        lines += wrapped(f"  {len(result['lost_processes'])} processes were lost: {result['lost_processes'][0]}")
    for why in result.get("degraded", ()):
        lines += wrapped(f"  slower than it could be: {why}")
    if parts := result.get("parts"):
        return [*lines, *_times(parts, result["seconds"])]
    return [*lines, _of_which(result["training_s"], result["seconds"])]


def _times(parts: Mapping[str, float], whole_s: float) -> list[str]:
    if not parts:
        return []
    training_s = parts[TRAINING] + parts[FINALS]
    return [f"{_of_which(training_s, whole_s)}; the rest:", *(f"    {line}" for line in ledger_lines(parts, whole_s))]


def _of_which(training_s: float, whole_s: float) -> str:
    share = min(1.0, training_s / max(whole_s, 1e-9))
    return f"  {show_seconds(training_s)} of {show_seconds(whole_s)} was training ({share:.{0 if share < 0.9 else 1}%})"


def _section(title: str, lines: list[str]) -> list[Node]:
    return [TextLine(title, strong=True), *map(TextLine, lines), TextLine()] if lines else []


def _fields(
    folder: StudyFolder,
    asked: Mapping[str, Any],
    result: Mapping[str, Any] | None,
    history: StudyHistory,
    importance: Importance,
) -> dict[str, Any]:
    return {
        "name": folder.name, "folder": str(folder.path), "status": study_status(folder), "asked": asked,
        "trials": [_trial(history, trial) for trial in history.best_first],
        "layouts": history.layouts, "rungs": history.rungs, "parts": history.parts,
        "finals": [{"which": one.which, "scores": one.scores} for one in history.finals],
        "importance": asdict(importance),
        "damaged": history.damaged, "result": result,
    }  # fmt: skip


def _trial(history: StudyHistory, trial: TrialLine) -> dict[str, Any]:
    return {
        "number": trial.number, "score": trial.score, "step": trial.step, "state": history.state(trial), "failed": trial.failed,
        "point": trial.point, "scores": trial.scores,
    }  # fmt: skip


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"
