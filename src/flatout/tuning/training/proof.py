"""Whether stacked trials learn what their serial twins learn: gradients and updates of one step, and the losses of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flatout.tuning.training.alone import Alone
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.shared import Group
from flatout.tuning.training.stack import TrialStack
from flatout.tuning.training.unfolded import GROUPED

STEPS = 8
_GRADIENT, _UPDATE, _LOSS = 1e-3, 1e-3, 1e-3  # largest relative differences; correct stacks differed by 3e-6 in float32
_SCORE = 0.05  # of few rows a metric that counts them changes much by one that lies at the border


@dataclass(frozen=True)
class StackProof:
    """`why`: what differs, or that a stack can't be built; empty if it passed. The figures are the largest differences."""

    passed: bool
    why: str = ""
    gradient: float = 0.0
    update: float = 0.0
    loss: float = 0.0

    @property
    def words(self) -> str:
        if not self.passed:
            return self.why
        if not max(self.gradient, self.update, self.loss):
            return "equal to trials alone, bit for bit"
        return f"equal to trials alone: gradients within {self.gradient:.1g}, {STEPS} losses within {self.loss:.1g}"


def prove(group: Group, candidates: Sequence[TrialCandidate], convolutions: str = GROUPED) -> StackProof:
    """Two or three trials are enough: a stack treats all alike. In fp32, where only a mistake is larger than rounding."""
    if why := cannot_be_stacked(group):
        return StackProof(False, f"trials of this recipe can't be stacked: {why}")
    group = group.in_precision("fp32")
    if group.device.type == "cpu":
        group = group.in_threads(1)  # so few steps gain nothing from more, which wait for each other on busy cores
    try:
        stack, alone = TrialStack(group, candidates, convolutions), Alone(group, candidates)
        stack.train(1)
        alone.train(1)
        gradient = max(_apart(stack.gradients_of(one.number), alone.gradients_of(one.number)) for one in candidates)
        first = max(
            _apart_since(
                stack.weights_of(one.number),
                dict(alone.model(one.number).named_parameters()),
                group.model(one.seed).state_dict(),
            )
            for one in candidates
        )
        losses = _losses_apart(stack, alone, candidates)
        scores = _scores_apart(stack, alone, candidates)
    except Exception as error:  # vmap refuses what a model may do: control flow by values, random numbers, unknown operators
        words = str(error).strip().partition("\n")[0]
        return StackProof(False, f"trials of this model can't be stacked: {words}")
    found = StackProof(True, "", gradient, first, losses)
    for what, size, limit in (
        ("gradients", gradient, _GRADIENT),
        ("updates", first, _UPDATE),
        ("losses", losses, _LOSS),
        ("scores", scores, _SCORE),
    ):
        if not size <= limit:  # also NaN
            return StackProof(False, f"stacked trials differ from trials alone: {what} by {size:.2g}", gradient, first, losses)
    return found


def cannot_be_stacked(group: Group) -> str:
    """What a stack has not built in, in words; empty: nothing."""
    if group.job.ema is not None:
        return "ema averages the weights of one model"
    if callable(group.recipe.optimizer):
        return "the optimizer is your own"
    if group.settings.precision in ("fp16", "fp8"):
        return f"precision {group.settings.precision} scales the gradients of one model"
    return ""


def _losses_apart(stack: TrialStack, alone: Alone, candidates: Sequence[TrialCandidate]) -> float:
    stack.train(STEPS)
    alone.train(STEPS)
    worst = 0.0
    for one in candidates:
        ours, theirs = stack.losses(one.number).last, alone.losses(one.number).last
        assert ours is not None and theirs is not None
        worst = max(worst, abs(ours - theirs) / max(abs(theirs), 1e-12))
    return worst


def _scores_apart(stack: TrialStack, alone: Alone, candidates: Sequence[TrialCandidate]) -> float:
    name, found = stack.group.measure.metric, stack.metrics()
    worst = 0.0
    for one in candidates:
        ours, theirs = (scores.get(name, math.nan) for scores in (found[one.number], alone.metrics(one.number)))
        if math.isfinite(ours) or math.isfinite(theirs):  # some metrics need more classes than a half may have
            worst = max(worst, abs(ours - theirs) / max(abs(theirs), 1e-3))
    return worst


def _apart(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Of all parameters together, relative to their length."""
    difference = torch.stack([(ours[name] - theirs[name]).double().norm() for name in theirs]).norm()
    whole = torch.stack([one.double().norm() for one in theirs.values()]).norm()
    return float(difference / whole.clamp_min(1e-30))


def _apart_since(ours: dict[str, Tensor], theirs: dict[str, Tensor], before: dict[str, Tensor]) -> float:
    moved = {name: one.detach() - before[name].to(one.device) for name, one in theirs.items() if one.requires_grad}
    return _apart({name: ours[name] - before[name].to(ours[name].device) for name in moved}, moved)
