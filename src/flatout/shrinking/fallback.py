"""When a change of all layers loses too much: layers go back to float32, those first that regain most for the time they cost.

Both are measured, with one layer at a time in float32: the error of the outputs on tuning rows, and the time of a call. How
many have to go back is found on tuning rows too, so the held-out rows are looked at only for a candidate that may pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flatout.base.answering_child import NoAnswer
from flatout.measure.time_limit import TimeLimit
from flatout.shrinking.metric import Costs, Metric
from flatout.shrinking.rows import TUNING
from flatout.shrinking.step import ShrinkStep, ShrinkSteps
from flatout.shrinking.workshop.questions import SOURCE

_PATIENCE_S = 600.0
_NAME, _LAYER_TURNS, _LAYER_S = "layer", 12, 0.5
_MOST_LAYERS = 48
_SHARE = 0.5  # of the margin that may be lost on tuning rows: others are rarely kinder
_FREE_S = 1e-7

Ask = Callable[[Mapping[str, Any], float], dict[str, Any]]


@dataclass(frozen=True)
class LayerCost:
    """One layer in float32, the others changed: the error that this takes away, and the time that it adds."""

    layer: str
    regained: float
    lost_s: float

    @property
    def worth(self) -> float:
        return self.regained / max(self.lost_s, _FREE_S)


class Fallback:
    def __init__(
        self,
        ask: Ask,
        metrics: Sequence[Metric],
        batch: int,
        judged_batch: int,
        time_limit: TimeLimit,
        say: Callable[[str], None],
    ) -> None:
        self._ask, self._metrics, self._batch, self._judged_batch = ask, tuple(metrics), batch, judged_batch
        self._time_limit, self._say = time_limit, say
        self._source: Costs | None = None
        self.orders: dict[str, list[LayerCost]] = {}  # by change

    def next_step(self, state: ShrinkSteps, layers: Sequence[str]) -> ShrinkStep | None:
        """The last step of `state` with more layers in float32; None if none would be left, or if it can't be measured."""
        before, step = state[:-1], state[-1]
        key = _key(state)
        try:
            if key not in self.orders:
                self.orders[key] = self._measured(before, replace(step, floats=()), layers[:_MOST_LAYERS])
            order = [one.layer for one in self.orders[key]]
            for count in range(len(step.floats) + 1, len(layers)):
                wider = replace(step, floats=tuple(order[:count]))
                if count > len(order) or self._time_limit.is_over:
                    return None
                if self._is_promising((*before, wider)):
                    return wider
        except NoAnswer:
            return None
        return None

    def _measured(self, before: ShrinkSteps, step: ShrinkStep, layers: Sequence[str]) -> list[LayerCost]:
        self._say(f"measuring what each of the {len(layers)} layers costs in {step.named}")
        whole = self._made((*before, step), f"{_NAME}-none")
        found = []
        for place, layer in enumerate(layers):
            if self._time_limit.is_over:
                self._say(f"  no time for the other {len(layers) - place} layers")
                break
            name = f"{_NAME}-{place}"
            error = self._made((*before, replace(step, floats=(layer,))), name)
            question = {"ask": "time", "first": name, "second": f"{_NAME}-none", "batch": self._batch, "turns": _LAYER_TURNS}
            told = self._ask({**question, "most_s": _LAYER_S}, _PATIENCE_S)
            now_s, was_s = (np.asarray(told[arm]["blocks_s"]) for arm in ("first", "second"))
            found.append(LayerCost(layer, whole - error, float(np.median(now_s - was_s))))
        found.sort(key=lambda one: one.worth, reverse=True)
        return found

    def _made(self, state: ShrinkSteps, name: str) -> float:
        self._ask({"ask": "make", "steps": [one.to_dict() for one in state], "name": name}, _PATIENCE_S)
        return float(self._ask({"ask": "error", "name": name}, _PATIENCE_S)["error"])

    def _is_promising(self, state: ShrinkSteps) -> bool:
        if self._source is None:
            self._source = self._costs(SOURCE)
        name = f"{_NAME}-some"
        self._ask({"ask": "make", "steps": [one.to_dict() for one in state], "name": name}, _PATIENCE_S)
        costs = self._costs(name)
        return all(metric.lost(self._source, costs) <= _SHARE * metric.allowed for metric in self._metrics)

    def _costs(self, name: str) -> Costs:
        told = self._ask({"ask": "judge", "name": name, "which": TUNING, "batch": self._judged_batch}, _PATIENCE_S)
        with np.load(told["file"]) as kept:
            return {key: kept[key] for key in kept.files}

    def to_dict(self) -> dict[str, Any]:
        return {
            change: [{"layer": one.layer, "regained": one.regained, "lost_s": one.lost_s} for one in order]
            for change, order in self.orders.items()
        }


def _key(state: ShrinkSteps) -> str:
    return ", ".join(f"{step.change} {step.value}" for step in state)
