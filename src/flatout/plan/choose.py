"""Sane defaults with their reasons, one small function a setting. What the user pinned stays, whatever we think of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flatout.base.errors import RecipeError
from flatout.base.units import show_count, show_seconds
from flatout.data.datasets.iterables import IterableSource
from flatout.data.stores.device import filled_by
from flatout.data.stores.tiers import choose_tier
from flatout.engine.job import Job
from flatout.engine.settings import Settings, conflicts
from flatout.machine.ceilings import Ceilings
from flatout.machine.device import device_name, pick_device
from flatout.models.facts import has_batch_norm, has_convolution, has_dropout, parameter_count
from flatout.plan.plan import Choice, Plan, Prediction, Rejected
from flatout.plan.predict import predict
from flatout.plan.tier import compression_of, surroundings

_COMPILE_COST_S = 40.0  # cold, of a mid-sized model on a GPU
_GRAPH_PAYS_STEPS = 200


@dataclass(frozen=True)
class Situation:
    """What the choices look at."""

    job: Job
    device: torch.device
    pins: Mapping[str, Any]
    ceilings: Ceilings | None
    plain: Prediction  # of the run with nothing switched on
    cache: Path | None = None  # where decoded and prepared rows may be kept

    @property
    def epochs(self) -> float | None:
        steps = self.total_steps
        rows = self.job.data.epoch_rows
        return None if steps is None or not rows else steps * self.job.rows_per_step / rows

    @property
    def total_steps(self) -> int | None:
        job = self.job
        if not job.budget.counted:
            return None
        samples = job.budget.samples(job.epoch_samples(job.budget), job.rows_per_step, job.data.tokens_per_row)
        return math.ceil(samples / job.rows_per_step)

    @property
    def expected_s(self) -> float | None:
        """How long the run would take as plain PyTorch."""
        if job_seconds := (self.job.budget.amount if self.job.budget.unit == "seconds" else None):
            return job_seconds
        if self.total_steps is None or self.plain.step_s is None:
            return None
        return self.total_steps * self.plain.step_s


def choose(job: Job, pins: Mapping[str, Any], ceilings: Ceilings | None, label: str, cache: Path | None = None) -> Plan:
    pins = {name: value for name, value in pins.items() if (name, value) != ("cache_compression", "auto")}
    device = pick_device(str(pins.get("device", "auto")))
    base = Settings(device=str(device))
    situation = Situation(job, device, pins, ceilings, predict(job, base, ceilings), cache)
    choices: list[Choice] = []
    rejected: list[Rejected] = []
    values: dict[str, Any] = {"device": str(device)}
    for decide in _DECISIONS:
        for decision in decide(situation, values):
            if isinstance(decision, Rejected):
                rejected.append(decision)
                continue
            if decision.name in pins and decision.name != "device":
                decision = replace(decision, value=pins[decision.name], why="pinned by you", source="pinned", predicted=None)
            values[decision.name] = decision.value
            choices.append(decision)
    for name, value in pins.items():
        if name not in values:
            values[name] = value
            choices.append(Choice(name, value, "pinned by you", "pinned"))
    rejected = [r for r in rejected if values.get(r.name) != r.value]
    settings = Settings(**values)
    if problems := conflicts(settings):
        raise RecipeError([f"settings: {problem}" for problem in problems])
    return Plan(
        model=label,
        machine=device_name(device),
        unit=job.unit,
        per_sample=job.data.tokens_per_row,
        batch=round(job.rows_per_step),
        settings=settings,
        choices=tuple(choices),
        rejected=tuple(rejected),
        prediction=predict(job, settings, ceilings),
    )


Decisions = Iterator[Choice | Rejected]


def _device(s: Situation, values: Mapping[str, Any]) -> Decisions:
    pinned = s.pins.get("device", "auto") != "auto"
    why = "pinned by you" if pinned else "no accelerator here" if s.device.type == "cpu" else f"found {device_name(s.device)}"
    yield Choice("device", str(s.device), why, "pinned" if pinned else "default")


def _tier(s: Situation, values: Mapping[str, Any]) -> Decisions:
    train = s.job.data.train
    if isinstance(train, IterableSource):
        yield Choice("tier", "streamed", "an iterable: its samples come in its own order")
        return
    if train.varies:
        yield Choice("tier", "streamed", "samples differ from visit to visit: what was read once is not served again")
        return
    around = surroundings(
        s.job,
        s.device,
        s.ceilings,
        epochs=s.epochs,
        needed_rows_s=s.job.rows_per_step / s.plain.step_s if s.plain.step_s else None,
        cache=s.cache,
        disk_budget=str(s.pins.get("disk_budget", "auto")),
    )
    found = choose_tier(around)
    yield Choice("tier", found.tier, found.why)
    if not train.in_memory:
        for tier, why in found.rejected:
            yield Rejected("tier", tier, why)
    writes = values["tier"] == "mapped" and not train.in_memory  # the tier as it was pinned, if it was
    if writes and s.cache is not None and "cache_compression" not in s.pins:
        threads = int(s.pins.get("reader_threads", 0))
        yield Choice("cache_compression", *compression_of(train, around, s.cache, threads))


def _precision(s: Situation, values: Mapping[str, Any]) -> Decisions:
    rates = s.ceilings.matmul_flops if s.ceilings else {}
    gain = rates["bf16"].value / rates["fp32"].value if "bf16" in rates and "fp32" in rates else None
    measured = f"measured {gain:.3g}x fp32 in matrix products here" if gain else "not measured: flatout probe"
    if s.device.type == "cpu":
        yield Choice("precision", "fp32", "the safe one on a CPU")
        yield Rejected("precision", "bf16", f"{measured}, but unproven for a whole step on a CPU: try --set precision=bf16")
    elif s.device.type == "cuda" and torch.cuda.get_device_capability(s.device) >= (8, 0):
        yield Choice("precision", "bf16", f"{measured}; weights, optimizer and loss stay fp32")
        yield Rejected("precision", "fp16", "needs loss scaling where bf16 needs none")
    else:
        yield Choice("precision", "fp32", "no bf16 units on this device")


def _compile(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if s.device.type == "cpu":
        yield Choice("compile", "off", "on a CPU it gains or loses a fifth and costs 10 to 30 s: not without measuring")
    elif s.expected_s is None or s.expected_s < 3 * _COMPILE_COST_S:
        took = "unknown" if s.expected_s is None else show_seconds(s.expected_s)
        yield Choice("compile", "off", f"costs about {_COMPILE_COST_S:.0f} s once; the run is {took}")
    else:
        yield Choice(
            "compile", "on", f"costs about {_COMPILE_COST_S:.0f} s once; the run is {show_seconds(s.expected_s)} without it"
        )


def _graph(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if s.device.type != "cuda":
        yield Choice("graph", False, "CUDA only")
    elif isinstance(s.job.data.train, IterableSource):
        yield Choice("graph", False, "needs batches of one shape, and a stream's are not known ahead")
    elif callable(s.job.optimizer):
        yield Choice("graph", False, "the optimizer is your own: not known to be capturable")
    elif s.total_steps is not None and s.total_steps < _GRAPH_PAYS_STEPS:
        yield Choice("graph", False, f"{s.total_steps} steps are too few to pay for the capture")
    elif s.job.data.train.shapes_vary:
        yield Choice("graph", False, "needs batches of one shape, and a budget of tokens makes many")
    elif _is_decoded_beside(s, str(values["tier"])):
        yield Choice("graph", True, "one launch a step: threads that decode hold up a loop that launches kernel by kernel")
    elif s.plain.bound != "launching kernels":
        yield Choice("graph", False, f"not launch-bound: bound by {s.plain.bound}")
    else:
        yield Choice("graph", True, "launch-bound: the whole step becomes one launch")


def _is_decoded_beside(s: Situation, tier: str) -> bool:
    """Whether threads decode rows while training goes on."""
    train = s.job.data.train
    if getattr(train, "piece_rows", None) is None:
        return False
    return tier != "resident" or filled_by(train, s.device) is not None


def _fused(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if callable(s.job.optimizer):
        yield Choice("fused_optimizer", False, "the optimizer is your own")
    else:
        yield Choice(
            "fused_optimizer",
            True,
            f"one kernel for {show_count(parameter_count(s.job.model))} weights; can skip a bad step unasked",
        )


def _channels_last(s: Situation, values: Mapping[str, Any]) -> Decisions:
    images = any(len(column.shape) in (2, 3) for column in s.job.data.schema().values())
    if has_convolution(s.job.model) and images:
        yield Choice("channels_last", True, "convolutions: the layout their kernels want")
    else:
        yield Choice("channels_last", False, "no convolutions over images")


def _deterministic(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if s.device.type == "cpu":
        yield Choice("deterministic", True, "a resumed run equals an uninterrupted one bit for bit")
    else:
        yield Choice("deterministic", False, "fast kernels that add in any order; a resume is exact in data and state")


def _micro_batch(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if has_batch_norm(s.job.model):
        yield Choice(
            "micro_batch", 0, f"all {s.job.batch} at once: batch norm makes the samples of a batch depend on each other"
        )
    elif has_dropout(s.job.model):
        yield Choice("micro_batch", 0, f"all {s.job.batch} at once; a split would draw other dropout masks")
    else:
        yield Choice("micro_batch", 0, f"all {s.job.batch} at once; split only if memory runs out, with the same loss")


def _keeping(s: Situation, values: Mapping[str, Any]) -> Decisions:
    yield Choice(
        "checkpoint_every", Settings.checkpoint_every, "written beside the loop; also at the end, at the best and on SIGTERM"
    )
    yield Choice("log_every", 0, "about twice a second; nothing waits for the device in between")
    yield Choice("attention", "auto", "torch's own choice of kernel")
    yield Choice("activation_checkpointing", False, "memory is not short")


_DECISIONS = (
    _device, _tier, _precision, _graph, _compile, _fused, _channels_last, _deterministic, _micro_batch, _keeping,
)  # fmt: skip
