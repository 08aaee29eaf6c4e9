"""What a draft does about the findings of the guards: columns left out, steps, and which rows are held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.explore.drafting.writing import DraftLine
from flatout.explore.guard.finding import GuardFinding

_HOLDOUTS = {
    "holdout_latest": "the latest rows are held out, as new rows will come later too",
    "holdout_group": "rows that agree in this are on the same side",
}


@dataclass(frozen=True)
class GuardedDraft:
    """`drop` and `steps` by column; `said` has a line for each finding, under the name of its guard."""

    drop: dict[str, str]
    steps: dict[str, Any]
    why_steps: str
    holdout: dict[str, Any]
    tellers: list[str]
    said: list[tuple[str, str]]

    def holdout_lines(self) -> list[DraftLine]:
        return [DraftLine(name, value, _HOLDOUTS[name]) for name, value in self.holdout.items()]


def settle(found: Sequence[GuardFinding], splits: bool = True) -> GuardedDraft:
    """Of several ways to hold rows out, the first is used: time before groups. Not `splits`: none is used."""
    drop: dict[str, str] = {}
    steps: dict[str, Any] = {}
    reasons: list[str] = []
    holdout: dict[str, Any] = {}
    for one in found:
        if "drop" in one.change:
            drop |= {name: one.figure for name in one.change["drop"]}
    said: list[tuple[str, str]] = []
    for one in found:
        wanted = {name: value for name, value in one.change.items() if name in _HOLDOUTS}
        if wanted and (holdout or not splits):
            done = False
        else:
            holdout |= wanted
            done = bool(one.change)
        mine: Mapping[str, Any] = one.change.get("steps", {})
        steps |= {name: value for name, value in mine.items() if name not in drop}
        reasons += [f"{one.column}: {one.figure}"] if mine else []
        said.append((one.guard, one.done_words if done else one.words))
    tellers = [one.column for one in found if one.guard == "leak"]
    return GuardedDraft(drop, steps, "; ".join(reasons), holdout, tellers, said)
