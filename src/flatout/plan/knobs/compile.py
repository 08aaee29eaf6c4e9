"""torch.compile of the forward, loss and backward. It must repay its start-up time over the remaining steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.base.units import show_seconds
from flatout.engine.settings import Settings
from flatout.machine.optimisations import COMPILE, MAX_AUTOTUNE
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules, always
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = COMPILE.name
off = "off"
lossy = True
risky = True
meets: tuple[str, ...] = ("precision", "channels_last", "graph")

COST_S = {"cpu": 30.0, "cuda": 40.0}  # cold start of a mid-sized model; a trial measures it
_AUTOTUNE_COST_S = 240.0


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    cost_s = COST_S.get(s.device.type, COST_S["cuda"])
    if s.device.type == "cpu":
        yield Choice(name, "off", "on a CPU 20% faster or slower, and adds 10 to 30 s at start: off unless measured")
    elif s.expected_s is None or s.expected_s < 3 * cost_s:
        took = "unknown" if s.expected_s is None else show_seconds(s.expected_s)
        yield Choice(name, "off", f"adds about {cost_s:.0f} s at start; the run takes {took}")
    else:
        yield Choice(name, "on", f"adds about {cost_s:.0f} s at start; the run takes {show_seconds(s.expected_s)} without it")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    cost_s = COST_S.get(s.device.type, COST_S["cuda"])
    if now.compile == "off":
        yield Candidate("on", f"adds about {cost_s:.0f} s at start", COMPILE.usual_of_step.get(s.device.type), cost_s)
    elif now.compile == "on" and s.device.type == "cuda":
        factor = MAX_AUTOTUNE.usual_of_step.get(s.device.type)
        yield Candidate("max-autotune", "tries more kernels for each matrix product", factor, _AUTOTUNE_COST_S)


def _conflicts(now: Settings) -> Iterator[str]:
    if now.compile == "reduce-overhead" and now.graph:
        yield "compile=reduce-overhead makes its own CUDA graphs and does not work with graph=on: --set compile=on"


rules = SettingRules(_conflicts, not_split_by=("pipeline",), shown=always)
