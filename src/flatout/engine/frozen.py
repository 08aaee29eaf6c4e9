"""Which parameters are frozen, and when some of them start to train.

A frozen parameter has no gradient and no optimizer state. A batch norm all of whose weights are frozen keeps its running
statistics too, and uses them: in training it would normalize by the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MethodType

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from flatout.base.budget import Budget


@dataclass(frozen=True)
class Frozen:
    """Names of the frozen parameters, and for some of them when they start to train: at the earliest of several times."""

    names: frozenset[str] = frozenset()
    until: Mapping[str, tuple[Budget, ...]] = field(default_factory=dict)

    def starts(self, epoch_samples: int, batch: float, tokens_per_row: float) -> tuple[list[int], dict[str, int]]:
        """In samples, the earliest first, when more parameters start to train; and by parameter, the number of its start."""
        counted = {
            name: min(one.samples(epoch_samples, batch, tokens_per_row) for one in when) for name, when in self.until.items()
        }
        starts = sorted(set(counted.values()))
        return starts, {name: starts.index(samples) + 1 for name, samples in counted.items()}

    def words(self, model: nn.Module) -> str:
        """For people: how much of the model is frozen; empty if nothing is."""
        sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
        held, total = sum(one.numel() for one in model.parameters() if not one.requires_grad), sum(sizes.values())
        if not held:
            return ""
        later: dict[str, int] = {}
        for name, times in self.until.items():
            when = " or ".join(map(str, times))
            later[when] = later.get(when, 0) + sizes[name]
        then = "".join(f"; {count:,} of them train after {when}" for when, count in later.items())
        return f"frozen: {held:,} of {total:,} weights{then}"


def set_frozen(model: nn.Module, names: frozenset[str]) -> None:
    """These parameters don't train, all others of `model` that ever do, do; their batch norms stand still."""
    for name, parameter in model.named_parameters():
        if name in names:
            parameter.requires_grad_(False)
            parameter.grad = None
    hold_statistics(model, names)


def set_training(model: nn.Module, names: frozenset[str], still_frozen: frozenset[str]) -> None:
    """These parameters start to train."""
    for name, parameter in model.named_parameters():
        if name in names:
            parameter.requires_grad_(True)
    hold_statistics(model, still_frozen)


def hold_statistics(model: nn.Module, frozen: frozenset[str]) -> None:
    """Batch norms of frozen parts stay in evaluation mode, whatever `model.train()` says; others follow it."""
    inside = {path: [name for name, _ in module.named_parameters(path)] for path, module in model.named_modules()}
    for path, module in model.named_modules():
        if not isinstance(module, _BatchNorm):
            continue
        module.__dict__.pop("train", None)
        place = path
        while place and not inside[place]:  # without weights of its own it belongs to the part around it
            place = place.rpartition(".")[0]
        own = inside[place]
        if own and frozen.issuperset(own):
            module.eval()
            module.train = MethodType(_stays, module)  # type: ignore[method-assign]
        else:
            module.train(model.training)


def _stays(module: nn.Module, mode: bool = True) -> nn.Module:
    return module
