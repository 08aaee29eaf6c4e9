"""What came of a shrink, in one sentence: what was gained, or why nothing pays; and the nearest point to a goal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.base.units import show_seconds
from flatout.measure.receipt import KEPT, REJECTED, UNTRIED, Entry, Receipt
from flatout.measure.search import INTERRUPTED
from flatout.shrinking.goal import ShrinkGoal


def verdict_of(receipt: Receipt, about: Mapping[str, Any]) -> dict[str, Any]:
    goal = ShrinkGoal(about["goal"]["kind"], about["goal"]["amount"], about["goal"]["percentile"])
    sentence = _gained(receipt, about) if about["kept"] else _why_nothing(receipt)
    met = not goal.is_asked or goal.is_met(_speed(about), _size(about), about["latency_s"])
    if not met:
        sentence = f"{sentence}. {_nearest(receipt, about, goal)}"
    return {"sentence": sentence, "goal_met": met}


def _gained(receipt: Receipt, about: Mapping[str, Any]) -> str:
    kept = [entry for entry in receipt.entries if entry.verdict == KEPT and entry.check]
    name = _named(kept[-1]) if kept else ", ".join(one["change"] for one in about["kept"])
    speeds = [f"{one['speed']:.2f}x as fast at batch {batch}" for batch, one in about["final"].items()]
    parts = [*speeds, f"{_size(about):.2f}x smaller"]
    values = (kept[-1].check or {}).get("metrics", {}) if kept else {}
    was = about["source"]["metrics"]
    parts += [f"{metric} {was[metric]:.4g} before, {value:.4g} now" for metric, value in values.items()]
    return f"{name}: {', '.join(parts)}"


def _why_nothing(receipt: Receipt) -> str:
    if not receipt.entries and receipt.stopped:
        return f"nothing was tried: {receipt.stopped}"
    tried = [entry for entry in receipt.entries if entry.verdict == REJECTED]
    if not tried and INTERRUPTED in receipt.stopped:
        return "interrupted before anything was proven: the model is unchanged"
    if not tried:
        reasons = "; ".join(f"{_named(one)}: {one.why}" for one in receipt.entries if one.verdict == UNTRIED)
        return f"nothing pays: {reasons or receipt.stopped}"
    best = max(tried, key=lambda one: one.measured or 0.0)
    speed = f"{best.measured:.2f}x" if best.measured else "no measured speed"
    return f"nothing pays; the best was {_named(best)} ({speed}), rejected: {best.why}"


def _nearest(receipt: Receipt, about: Mapping[str, Any], goal: ShrinkGoal) -> str:
    found = {
        "latency": "" if about["latency_s"] is None else show_seconds(about["latency_s"]),
        "speed": f"{_speed(about) or 1.0:.2f}x",
        "size": f"{_size(about):.2f}x",
    }[goal.kind]
    words = f"The goal {goal} is not met: {found} is the nearest that is as accurate"
    return f"{words}{_by_giving_up(receipt, about, goal)}"


def _by_giving_up(receipt: Receipt, about: Mapping[str, Any], goal: ShrinkGoal) -> str:
    """A candidate that meets the goal and was rejected for its accuracy, with the margin that would allow it."""
    for entry in receipt.entries:
        checks: Sequence[Mapping[str, Any]] = (entry.check or {}).get("checks", [])
        if entry.verdict != REJECTED or not checks or entry.step_s is None:
            continue
        size = about["source"]["bytes"] / max((entry.check or {}).get("bytes", 0), 1)
        if goal.is_met(entry.measured, size, entry.step_s):
            return f"; {_named(entry)} would meet it, but {entry.why}"
    return ""


def _speed(about: Mapping[str, Any]) -> float | None:
    first = about["final"].get(str(about["batches"][0]))
    return None if first is None else float(first["speed"])


def _size(about: Mapping[str, Any]) -> float:
    return float(about["size"]["was"] / about["size"]["now"]) if about["size"]["now"] else 1.0


def _named(entry: Entry) -> str:
    return f"{entry.name.replace('_', ' ')} {entry.value or ''}".strip()
