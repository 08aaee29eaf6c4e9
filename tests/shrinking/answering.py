"""A workshop that answers from a script: how fast each candidate is, which rows it has wrong, and what its layers cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flatout.base.answering_child import NoAnswer
from flatout.measure.time_limit import TimeLimit
from flatout.shrinking.fallback import Fallback
from flatout.shrinking.goal import parse_goal
from flatout.shrinking.metric import metrics_of
from flatout.shrinking.search import ShrinkSearch
from flatout.shrinking.trained_steps import TrainedSteps
from flatout.shrinking.trials import ShrinkTrials

ROWS, SOURCE_S, SOURCE_BYTES = 4000, 1e-3, 1000
LAYERS = ["first", "second", "third"]
ShrinkSteps = list[dict[str, Any]]


@dataclass
class Script:
    """By the steps of a candidate: seconds of a call, rows that it has wrong, bytes. `fails`: the name of a change that can't
    be made, and how."""

    folder: Path
    seconds: Callable[[ShrinkSteps, int], float] = lambda steps, batch: SOURCE_S / 2
    wrong: Callable[[ShrinkSteps], int] = lambda steps: 0
    bytes: Callable[[ShrinkSteps], int] = lambda steps: SOURCE_BYTES // 4
    error: Callable[[ShrinkSteps], float] = lambda steps: 0.0
    fails: dict[str, NoAnswer] = field(default_factory=dict)
    interrupts_at: str = ""  # the change at which Ctrl-C is pressed
    rows: int = ROWS
    made: dict[str, ShrinkSteps] = field(default_factory=lambda: {"source": []})
    judged: list[str] = field(default_factory=list)  # candidates that were judged on held-out rows

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self, "_" + question["ask"])(question)
        return answer

    def _make(self, question: Mapping[str, Any]) -> dict[str, Any]:
        for step in question["steps"]:
            if step["change"] == self.interrupts_at:
                raise KeyboardInterrupt
            if step["change"] in self.fails:
                raise self.fails[step["change"]]
        self.made[question["name"]] = question["steps"]
        return {"bytes": self.bytes(question["steps"]), "notes": {}}

    def _time(self, question: Mapping[str, Any]) -> dict[str, Any]:
        return {arm: self._arm(question[arm], question["batch"], question["turns"]) for arm in ("first", "second")}

    def _arm(self, name: str, batch: int, turns: int) -> dict[str, Any]:
        steps = self.made[name]
        seconds = self.seconds(steps, batch) if steps else SOURCE_S
        return {"blocks_s": [seconds] * turns, "calls_s": [seconds] * turns}

    def _joules(self, question: Mapping[str, Any]) -> dict[str, Any]:
        return {"first": None, "second": None}

    def _judge(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if question["which"] == "judging" and question["name"] != "source":
            self.judged.append(question["name"])
        steps = self.made[question["name"]]
        wrong = np.zeros(self.rows)
        wrong[: self.wrong(steps) if steps else 0] = 1.0
        file = self.folder / "costs.npz"
        np.savez(file, wrong=wrong)
        return {"file": str(file), "rows": self.rows}

    def _sizes(self, question: Mapping[str, Any]) -> dict[str, Any]:
        return {"sizes": {str(size): {"error": 0.01, "judged": 0.01} for size in question["sizes"]}, "moved": 0.01}

    def _error(self, question: Mapping[str, Any]) -> dict[str, Any]:
        return {"error": self.error(self.made[question["name"]])}

    def _profile(self, question: Mapping[str, Any]) -> dict[str, Any]:
        int8 = {"DynamicQuantizeMatMul": 400.0, "DynamicQuantizeLinear": 500.0}
        return {"whole_us": 1000.0, "operators_us": int8 if self.made[question["name"]] else {"Gemm": 700.0}}


def search_of(script: Script, *, goal: str | None = None, margin: float | None = None, batches: tuple[int, ...] = (1,),
              without: Mapping[str, str] | None = None, training_s: float = 0.0,
              low_rank: bool = False) -> ShrinkSearch:  # fmt: skip
    """Two changes by layer, and one of weights alone; `without` says of some why they do not apply."""
    changes = {
        name: {value: {"why_not": (without or {}).get(name), "layers": layers}}
        for name, value, layers in (
            ("int8_dynamic", "", LAYERS), ("int8_static", "", LAYERS), ("weights", "int8", [])
        )
    }  # fmt: skip
    if low_rank:
        changes["low_rank"] = {value: {"why_not": None, "layers": LAYERS} for value in ("99.9%", "99%")}
    said: list[str] = []
    wanted, metrics, limit = parse_goal(goal), metrics_of("classify", margin), TimeLimit(600.0)
    trials = ShrinkTrials(script.ask, metrics, batches, wanted, SOURCE_BYTES, limit, said.append)
    fallback = Fallback(script.ask, metrics, batches[0], 64, limit, said.append)
    trained = TrainedSteps(script.ask, training_s, limit, said.append)
    return ShrinkSearch(trials, fallback, changes, trained, wanted, batches, limit, said.append)
