"""Everything that changes while a run trains, as one tree: what a checkpoint holds and a resume puts back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.base.errors import StoreError
from flatout.base.kinds import check_kinds
from flatout.data.order.keyed import keyed
from flatout.engine.ema import Average
from flatout.engine.offload import HostOptimizer
from flatout.engine.parallel.local import LocalUpdates
from flatout.engine.precision import LossScale
from flatout.engine.progress import Progress
from flatout.engine.surroundings import read_random_state, reseed, restore_random_state, seed_of
from flatout.engine.update import trained_by
from flatout.store.tensors import local_part
from flatout.world.world import World


class TrainState:
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | HostOptimizer,
        average: Average | None,
        scale: LossScale | None,
        device: torch.device,
        made_by: str = "",
        world: World | None = None,
        seed: int = 0,
        local: LocalUpdates | None = None,
    ) -> None:
        """`made_by`: what makes rows of the data's files."""
        self.world, self.seed = world or World(), seed
        self.model = model
        self.optimizer = optimizer
        self.average = average
        self.scale = scale
        self.device = device
        self.made_by = made_by
        self.local = local
        self._state_is_new = False  # made to read a checkpoint into

    def tree(self, progress: Progress, stream: str | None = None) -> dict[str, Any]:
        """`stream`: where an iterable is, which no position alone can say."""
        own = {"optimizer": by_name(self.optimizer, self.model), "scale": self.scale.state() if self.scale else None}
        return {
            "progress": progress.to_dict(),
            "stream": stream,
            "random": read_random_state(self.device),
            "random_of_others": self._random_of_others(),
            "model": self.weights(),
            **(own if self.local is None else {"exchange": self.local.tree(own)}),
            "average": self.average.by_name() if self.average else None,
            "made_by": self.made_by,
            "topology": self._topology(),
        }

    def tree_to_fill(self, progress: Progress, stream: str | None = None) -> dict[str, Any]:
        """With a place for all that a checkpoint may hold: of split weights, each process reads its own parts into it."""
        self._state_is_new = isinstance(self.optimizer, Optimizer) and make_state(self.optimizer)
        return self.tree(progress, stream)

    def nothing_to_fill(self) -> None:
        """There was no checkpoint after all."""
        if self._state_is_new:
            self.optimizer.state.clear()

    def weights(self) -> dict[str, Any]:
        """That a run is about: those of all, where processes have weights of their own."""
        return dict(self.model.state_dict()) if self.local is None else self.local.weights()

    def restore(self, tree: dict[str, Any]) -> Progress:
        """Put a checkpoint's tree back, in place where a graph may hold the tensors."""
        try:
            self.model.load_state_dict(tree["model"])
        except RuntimeError as error:
            raise StoreError(f"the checkpoint's weights do not fit the model: {error}") from error
        own = tree if self.local is None else self.local.restore(tree["exchange"])
        self._restore_optimizer(by_number(own["optimizer"], self.optimizer, self.model))
        with torch.no_grad():
            if self.average is not None:
                self.average.restore(tree["average"])
            if self.scale is not None:
                self.scale.scale.copy_(own["scale"]["scale"])
                self.scale.growth.copy_(own["scale"]["growth"])
        check_kinds(Progress, tree["progress"])
        progress = Progress(**tree["progress"])
        self._restore_random(tree, progress.step)
        return progress

    def _restore_random(self, tree: dict[str, Any], step: int) -> None:
        """Onto as many processes as there were: as it was. Onto others, each begins a sequence of its own from here."""
        others = tree.get("random_of_others", [])
        if len(others) + 1 != self.world.token_size:
            reseed(keyed(seed_of(self.seed, self.world), f"step {step}"), self.device)
        elif self.world.token_rank == 0:
            restore_random_state(tree["random"], self.device)
        else:
            from flatout.engine.parallel.random_states import restore_own_random  # here: one process starts sooner without it

            restore_own_random(others[self.world.token_rank - 1], self.device)

    def _random_of_others(self) -> list[Any]:
        if self.world.token_size == 1:
            return []
        from flatout.engine.parallel.random_states import random_of_others

        return random_of_others(self.world, self.device)

    def differences(self, tree: dict[str, Any]) -> list[str]:
        """What differs from where the checkpoint was written: with any of these a resume is exact in data, not in bits."""
        here = self._topology()
        return [f"{name} was {was}, is {here.get(name, 1)}" for name, was in tree["topology"].items() if here.get(name) != was]

    def _topology(self) -> dict[str, Any]:
        here = {"device": self.device.type, "threads": torch.get_num_threads(), "torch": torch.__version__}
        return here if self.world.size == 1 else {**here, "processes": self.world.size}

    def _restore_optimizer(self, saved: dict[str, Any]) -> None:
        groups = self.optimizer.param_groups
        state = self.optimizer.state
        before = {id(p): dict(state[p]) for group in groups for p in group["params"] if p in state}
        rates = [group["lr"] for group in groups]
        self.optimizer.load_state_dict(saved)
        # the rate is set before every step, and may be a tensor that a graph reads: it stays the one it was
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._keep_tensors(before)

    def _keep_tensors(self, before: dict[int, dict[str, Any]]) -> None:
        """Where the optimizer already had tensors, copy into those: a captured graph reads these and no others."""
        with torch.no_grad():
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    for name, old in before.get(id(parameter), {}).items():
                        new = self.optimizer.state[parameter].get(name)
                        if isinstance(old, Tensor) and isinstance(new, Tensor) and old.shape == new.shape:
                            self.optimizer.state[parameter][name] = old.copy_(new)

    # for a graph's warm-up

    def copies(self) -> list[Tensor]:
        self._random = read_random_state(self.device)
        return [tensor.clone() for tensor in self._changing()]

    def put_back(self, copies: list[Tensor]) -> None:
        """What the optimizer has made since is zeroed: fused AdamW and SGD are born with zeros."""
        with torch.no_grad():
            now = self._changing()
            for tensor, copy in zip(now, copies, strict=False):
                tensor.copy_(copy)
            for tensor in now[len(copies) :]:
                tensor.zero_()
        restore_random_state(self._random, self.device)

    def _changing(self) -> list[Tensor]:
        tensors = [tensor.detach() for tensor in (*self.model.parameters(), *self.model.buffers())]
        tensors += self.average.average if self.average else []
        tensors += list(self.scale.state().values()) if self.scale else []
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                tensors += [value for value in self.optimizer.state.get(parameter, {}).values() if isinstance(value, Tensor)]
        return tensors


def finite(model: nn.Module) -> bool:
    """Whether every weight and every running statistic is a number. Waits for the device."""
    both = [local_part(tensor) for tensor in (*model.parameters(), *model.buffers())]
    changing = [tensor.detach() for tensor in both if tensor.is_floating_point() and tensor.numel()]
    norms = torch._foreach_norm(changing, float("inf"))  # the largest value, which can't overflow as a sum of squares can
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())


# ---- an optimizer's state by the names of its parameters: numbers mean other parameters in a process that has only some ----


_MARK = "by_name"


def by_name(optimizer: Any, model: nn.Module) -> dict[str, Any]:
    """As `state_dict`, for a checkpoint."""
    saved: dict[str, Any] = optimizer.state_dict()
    names = _names(optimizer, model)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in saved["param_groups"]]
    states = {name: state for number, state in saved["state"].items() for name in names[number]}
    return {_MARK: states, "param_groups": groups}


def by_number(kept: dict[str, Any], optimizer: Any, model: nn.Module) -> dict[str, Any]:
    """What `load_state_dict` takes, of what `by_name` made in any process that had these parameters."""
    if _MARK not in kept:
        return kept
    here: dict[str, Any] = optimizer.state_dict()
    names, states = _names(optimizer, model), kept[_MARK]  # of what was never trained there is none
    groups = [{**group, **_like(group, kept["param_groups"])} for group in here["param_groups"]]
    known = {number: next((name for name in own if name in states), None) for number, own in enumerate(names)}
    state = {number: states[name] for number, name in known.items() if name is not None}
    return {"state": state, "param_groups": groups}


def _like(group: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Processes that had other parameters may have had other groups, or these in another order: not their places tell."""
    alike = (other for other in groups if all(other.get(key) == group.get(key) for key in ("weight_decay", "factor")))
    return next(alike, {})


@torch.no_grad()
def make_state(optimizer: Optimizer) -> bool:
    """Of an optimizer that makes its state in its first step: as that step makes it. Weights stay as they are.

    A checkpoint is read into tensors that are there already, laid out as the weights are. Returns whether there was none.
    """
    parameters = trained_by(optimizer)
    if optimizer.state or not parameters:
        return False
    before = [parameter.detach().clone() for parameter in parameters]
    gradients = [parameter.grad for parameter in parameters]
    rates = [group["lr"] for group in optimizer.param_groups]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for parameter, gradient, kept in zip(parameters, gradients, before, strict=True):
        parameter.grad = gradient
        parameter.copy_(kept)
    return True


def _names(optimizer: Any, model: nn.Module) -> list[list[str]]:
    """All names of each, in the order that the optimizer counts them in."""
    known: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        known.setdefault(id(parameter), []).append(name)
    return [known.get(id(parameter), [f"parameter {number}"]) for number, parameter in enumerate(trained_by(optimizer))]
