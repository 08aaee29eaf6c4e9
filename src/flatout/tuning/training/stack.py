"""Many trials as one model: weights, optimizer state and rates have a leading axis of trials, and a step computes all of them.

A small model leaves most of a machine idle: each kernel, and each call from Python, then does the work of all trials at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from flatout.data.source import Batch
from flatout.engine.device import start_counting, sync_point
from flatout.engine.evaluation import looking
from flatout.engine.precision import autocast
from flatout.engine.surroundings import process_set_up
from flatout.objectives.joining import adder
from flatout.objectives.objective import Meter
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.joined_outputs import JoinedOutputs
from flatout.tuning.training.keyed_dropout import KEY, RATE, dropout_key, key_dropouts
from flatout.tuning.training.low_products import compute_in_dtype_of_weights
from flatout.tuning.training.outcomes import DIVERGED, Stopped, TrialLosses, never
from flatout.tuning.training.own_kernels import why_no_kernels
from flatout.tuning.training.shared import CHOOSE, Group
from flatout.tuning.training.stack_steps import SLOTS, Steps, steps_for
from flatout.tuning.training.stacked_update import StackedUpdate
from flatout.tuning.training.stacked_weights import Weights
from flatout.tuning.training.step_rates import StepRates
from flatout.tuning.training.unfolded import GROUPED, UNFOLDED, unfold_convolutions


class TrialStack:
    """The trials of a group, trained together. All have done the same number of steps."""

    layout = "stacked"

    def __init__(self, group: Group, candidates: Sequence[TrialCandidate], convolutions: str = GROUPED) -> None:
        """`convolutions`: the form in which they are computed."""
        self.group = group
        self.candidates = {one.number: one for one in candidates}
        self.failed: dict[int, str] = {}
        self.step = 0
        self._losses = {one.number: TrialLosses() for one in candidates}
        start_counting(group.device)
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]  # a slow operator makes a slow stack, which is measured
        self._numbers = list(self.candidates)  # by place on the leading axis
        self._model = group.model(candidates[0].seed).to(group.device).train()
        self._clock = torch.zeros((), dtype=torch.int64, device=group.device)
        self._dropouts = key_dropouts(self._model, self._clock)
        if convolutions == UNFOLDED:
            unfold_convolutions(self._model)
        if not why_no_kernels(group.device):
            from flatout.tuning.training.bias_kernel import add_by_kernel
            from flatout.tuning.training.pool_kernel import pool_by_kernel

            pool_by_kernel(self._model)
            add_by_kernel(self._model)
        self._multiplied = compute_in_dtype_of_weights(self._model) if group.settings.precision == "bf16" else frozenset()
        self._seeds = sorted({one.seed for one in candidates})
        self._fixed: dict[str, Tensor] = {}  # frozen parameters that are the same in all trials
        self._weights, self._buffers = self._stacked(candidates)
        self._update = StackedUpdate(group, self._weights, candidates)
        self._steps = self._steps_of(candidates)

    @property
    def alive(self) -> list[int]:
        return [number for number in self.candidates if number not in self.failed]

    def train(self, to: int, should_stop: Stopped = never) -> None:
        """Train all trials up to step `to`."""
        with process_set_up(self.group.settings, self.candidates[self._numbers[0]].seed):
            self._steps.seek(self.step)
            while self.step < to:
                if should_stop():
                    raise KeyboardInterrupt
                last = min(to, self.step + SLOTS)
                losses = self._steps.run(self.step, last, self._attempt)
                self.step = last
                with sync_point():
                    self._note(losses.to("cpu", torch.float64))

    @property
    def degraded(self) -> str:
        """Why its steps are slower than they could be, in words; empty: they are not."""
        return "; ".join(filter(None, (self._steps.degraded, self._update.degraded)))

    def gradients(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """The loss of each trial, and the gradient of each stacked parameter."""
        leaves, buffers = self._leaves(), self._buffers
        shared = len(self._seeds) == 1
        with autocast(self.group.settings.precision, self.group.device):
            losses = vmap(self._mean_loss, in_dims=(0, 0, None if shared else 0), randomness="error")(leaves, buffers, batch)
        found = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        gradients = [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(leaves.values(), found, strict=True)]
        return losses.detach(), gradients

    def scores(self, which: str = CHOOSE) -> dict[int, float | None]:
        """The metric of each trial; None for those that failed."""
        measure = self.group.measure
        found: dict[int, float | None] = dict.fromkeys(self.candidates)
        for number, metrics in self.metrics(which).items():
            score = metrics.get(measure.metric, math.nan)
            if number in self.failed:
                continue
            if math.isfinite(score):
                found[number] = score
            else:
                self.failed[number] = f"its {measure.metric} is not a finite number"
        return found

    def metrics(self, which: str = CHOOSE) -> dict[int, dict[str, float]]:
        group, objective = self.group, self.group.job.evaluated
        device = group.device
        meters = [objective.meter(device) for _ in self._numbers]
        weights = {name: leaf.detach() for name, leaf in self._leaves().items()}
        with (
            process_set_up(group.settings, self.candidates[self._numbers[0]].seed),
            looking(self._model, group.settings.precision, device),
        ):
            joined = JoinedOutputs(device)
            for batch in group.scoring(which):
                outputs = vmap(self._output, in_dims=(0, 0, None), randomness="error")(weights, self._buffers, batch)
                self._measure(meters, joined.add(outputs, batch))
            self._measure(meters, joined.rest())
            with sync_point():
                return {number: meter.result() for number, meter in zip(self._numbers, meters, strict=True)}

    def _measure(self, meters: Sequence[Meter], found: Iterable[tuple[Any, Batch]]) -> None:
        objective = self.group.job.evaluated
        for outputs, batch in found:
            for place, meter in enumerate(meters):
                adder(objective, meter)(_at(outputs, place), batch)

    def keep(self, numbers: Sequence[int]) -> None:
        """Forget all others, and give their memory back: the stack is compacted."""
        self._steps.release()
        places = torch.tensor([self._numbers.index(number) for number in numbers], dtype=torch.int64)
        self.candidates = {number: self.candidates[number] for number in numbers}
        self.failed = {number: why for number, why in self.failed.items() if number in self.candidates}
        self._numbers = list(numbers)
        kept = list(self.candidates.values())
        there = places.to(self.group.device)
        self._seeds = sorted({one.seed for one in kept})
        self._weights = self._weights.picked(there)
        self._buffers = {name: one[there] for name, one in self._buffers.items()}
        self._update = self._update.picked(there, self._weights, kept)
        self._steps = self._steps_of(kept)

    def weights_of(self, number: int) -> dict[str, Tensor]:
        """The trial's own parameters and buffers, as its model would have them."""
        place = self._numbers.index(number)
        own = {name: leaf.detach()[place].clone() for name, leaf in self._weights.leaves.items()}
        return {**own, **{name: one[place].clone() for name, one in self._buffers.items()}, **self._fixed}

    def gradients_of(self, number: int) -> dict[str, Tensor]:
        """Of the last step, clipped as they were applied."""
        return self._update.gradient_of(self._numbers.index(number))

    def state_of(self, number: int) -> dict[str, Tensor]:
        """Everything that the trial's next step depends on. `TrialStack.resumed` takes it."""
        place = self._numbers.index(number)
        state = {f"state.{name}": one[place].clone() for name, one in self._update.state.items()}
        buffers = {f"buffer.{name}": one[place].clone() for name, one in self._buffers.items()}
        return {"flat": self._weights.flat[place].clone(), **state, **buffers}

    def resume(self, step: int, states: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Go on from what `state_of` gave for each trial after `step` steps."""
        self.step = step
        for place, number in enumerate(self._numbers):
            for name, value in states[number].items():
                kind, _, rest = name.partition(".")
                there = (
                    self._weights.flat if kind == "flat" else (self._update.state if kind == "state" else self._buffers)[rest]
                )
                there[place].copy_(value)

    def step_of(self, number: int) -> int:
        return self.step

    def losses(self, number: int) -> TrialLosses:
        return self._losses[number]

    def _steps_of(self, candidates: Sequence[TrialCandidate]) -> Steps:
        return steps_for(self.group, self._seeds, StepRates(self.group, candidates), self._clock)

    def _leaves(self) -> dict[str, Tensor]:
        """What a step computes with. Autocast would cast each weight of a product, and add biases in fp32."""
        if not self._multiplied:
            return self._weights.leaves
        return self._weights.leaves_in(torch.bfloat16, self._multiplied)

    def _attempt(self, batches: Sequence[Batch], rates: Tensor) -> Tensor:
        losses, gradients = self.gradients(self._batch(batches))
        self._update(losses, gradients, rates)
        return losses

    def _mean_loss(self, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Batch) -> Tensor:
        loss_sum, weight = self.group.job.objective(self._called(weights, buffers), batch)
        return loss_sum / weight

    def _output(self, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Batch) -> Any:
        return _tensors(self.group.job.evaluated.forward(self._called(weights, buffers), batch))

    def _called(self, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> Any:
        """Something that is called as the model is, with the weights of one trial."""

        def call(*given: Any, **named: Any) -> Any:
            return functional_call(self._model, {**weights, **buffers, **self._fixed}, given, named)

        return call

    def _batch(self, batches: Sequence[Batch]) -> Batch:
        """One batch for all trials, or where their seeds differ a batch for each."""
        if len(batches) == 1:
            return batches[0]
        places = [self._seeds.index(one.seed) for one in self.candidates.values()]
        return {name: torch.stack([batches[place][name] for place in places]) for name in batches[0]}

    def _stacked(self, candidates: Sequence[TrialCandidate]) -> tuple[Weights, dict[str, Tensor]]:
        group = self.group
        models = {seed: group.model(seed) for seed in self._seeds}
        of_seed = {seed: dict(chain(one.named_parameters(), one.named_buffers())) for seed, one in models.items()}
        trained = [name for name, one in self._model.named_parameters() if one.requires_grad]
        rows = {name: torch.stack([of_seed[one.seed][name].detach() for one in candidates]) for name in trained}
        weights = Weights.of(rows, group.job.rates, group.device)
        frozen = {name: one.detach() for name, one in self._model.named_parameters() if name not in rows}
        own = {name: one for name, one in frozen.items() if any(not one.cpu().equal(of[name]) for of in of_seed.values())}
        self._fixed = {name: one for name, one in frozen.items() if name not in own}
        buffers = {
            name: torch.stack([of_seed[other.seed].get(name, one).detach() for other in candidates]).to(group.device)
            for name, one in chain(self._model.named_buffers(), own.items())
        }
        for name in self._dropouts:
            keys, rates = buffers[f"{name}.{KEY}"], buffers[f"{name}.{RATE}"]
            for place, one in enumerate(candidates):
                keys[place] = dropout_key(one.seed, one.number)
                if one.dropout is not None:
                    rates[place] = one.dropout
        return weights, buffers

    def _note(self, losses: Tensor) -> None:
        bad_at_end = (torch.isfinite(losses).flip(0).cumsum(0) == 0).sum(0)
        for number, last, bad in zip(self._numbers, losses[-1].tolist(), bad_at_end.tolist(), strict=True):
            self._losses[number].extend(last, bad, len(losses))
            if self._losses[number].diverged and number not in self.failed:
                self.failed[number] = DIVERGED


def _tensors(outputs: Any) -> Any:
    """vmap returns nothing else: an objective of one's own may return a loss and a number of rows."""
    if isinstance(outputs, tuple | list):
        return type(outputs)(map(_tensors, outputs))
    return torch.as_tensor(outputs) if isinstance(outputs, int | float) else outputs


def _at(outputs: Any, place: int) -> Any:
    if isinstance(outputs, Tensor):
        return outputs[place]
    if isinstance(outputs, tuple | list):
        return type(outputs)(_at(one, place) for one in outputs)
    if isinstance(outputs, Mapping):
        return {name: _at(one, place) for name, one in outputs.items()}
    return outputs
