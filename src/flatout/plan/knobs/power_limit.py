"""The power limit of a GPU: below its highest clocks a GPU computes nearly as fast for less energy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.engine.settings import Settings
from flatout.machine.power_limit import power_limits, why_not_settable
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "power_limit"
off = 0
lossy = False
risky = False
meets: tuple[str, ...] = ()
_SHARES = (0.8, 0.65, 0.5)  # of the highest limit
_HOPED = 1.05  # nobody knows before it is measured


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    limits = power_limits(s.device)
    if limits is None:
        yield Choice(name, 0, "NVIDIA GPUs only" if s.device.type != "cuda" else "the GPU reports no limit")
    else:
        yield Choice(name, 0, f"as it is set, {limits.now_w:.0f} W; prefer: energy tries lower ones")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    """If energy is to be saved and this process may set it."""
    if s.prefer != "energy" or (limits := power_limits(s.device)) is None or why_not_settable(s.device):
        return
    for share in _SHARES:
        watts = round(share * limits.most_w)
        if limits.least_w <= watts < (now.power_limit or limits.now_w):
            yield Candidate(watts, f"{share:.0%} of the GPU's highest limit", _HOPED, compiles_anew=False)


def _conflicts(now: Settings) -> Iterator[str]:
    if now.power_limit and now.device_kind != "cuda":
        yield f"power_limit={now.power_limit} needs an NVIDIA GPU; the run is on {now.device_kind}: --off power_limit"


rules = SettingRules(_conflicts, zero="as it is")
