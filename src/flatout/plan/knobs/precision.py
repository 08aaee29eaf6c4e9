"""The format of matrix products and convolutions. Weights, optimizer state and loss stay in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from flatout.engine.settings import Settings
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules, always
from flatout.plan.knobs.splitting import SPLITS, split_conflict
from flatout.plan.plan import Choice, RejectedSetting
from flatout.plan.situation import Situation

name = "precision"
off = "fp32"
lossy = True
risky = False
meets: tuple[str, ...] = ("channels_last", "compile")


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    measured = _measured(s, "bf16")
    if s.device.type == "cpu":
        yield Choice(name, "fp32", "safe choice on a CPU")
        why = f"{measured}; not proven for a whole step on a CPU; to try it: --set precision=bf16"
        yield RejectedSetting(name, "bf16", measured if _is_slower(s, "bf16") else why)
    elif _has_bf16(s.device):
        yield Choice(name, "bf16", f"{measured}; weights, optimizer and loss stay fp32")
        yield RejectedSetting(name, "fp16", "needs loss scaling, bf16 does not")
    else:
        yield Choice(name, "fp32", "this device has no bf16 units")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    for value in ("bf16", "tf32", "fp16"):
        if value == now.precision or _gain(s, value) is None or (value == "tf32" and now.precision != "fp32"):
            continue
        if value == "fp16" and (s.device.type == "cpu" or _has_bf16(s.device) or not now.fused_optimizer):
            continue
        yield Candidate(value, _measured(s, value))


def _has_bf16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def _gain(s: Situation, value: str) -> float | None:
    rates = s.ceilings.matmul_flops if s.ceilings else {}
    return rates[value].value / rates["fp32"].value if value in rates and "fp32" in rates else None


def _is_slower(s: Situation, value: str) -> bool:
    gain = _gain(s, value)
    return gain is not None and gain < 1


def _measured(s: Situation, value: str) -> str:
    gain = _gain(s, value)
    if not gain:
        return "not measured: run flatout probe"
    if gain < 1:
        return f"measured: matrix products {1 / gain:,.3g} times slower than in fp32"
    return f"measured: matrix products {gain:.3g}x as fast as in fp32"


def _conflicts(now: Settings) -> Iterator[str]:
    on = now.device_kind
    if now.precision == "fp16" and not now.fused_optimizer:
        yield "fp16 needs a fused optimizer, which can skip steps that overflow: --set precision=bf16"
    if now.precision == "tf32" and on == "cpu":
        yield "tf32 needs a GPU; on a CPU it would be fp32: --off precision"
    if now.precision == "fp8" and on != "cuda":
        yield f"fp8 needs a CUDA device; the run is on {on}: --off precision"
    if now.precision == "fp16" and now.optimizer_offload:
        yield "fp16 needs the optimizer on the device for loss scaling, not optimizer_offload=on: --set precision=bf16"
    if now.precision in ("fp8", "fp16"):
        yield from split_conflict(now, name, SPLITS, "bf16")


rules = SettingRules(_conflicts, shown=always)
