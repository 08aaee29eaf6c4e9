"""Everything that changes while a run trains, as one tree: the content of a checkpoint, restored by a resume.

The optimizer's state is stored by parameter names, because numbers mean other parameters in a process that has only some of
them. A tied weight has its state under each of its names, since a process with a part of the model may know only one of them.
Its tensors are stored once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.base.errors import StoreError
from flatout.base.kinds import check_kinds
from flatout.data.order.keyed import keyed
from flatout.engine.ema import Average
from flatout.engine.offload import HostOptimizer
from flatout.engine.precision import LossScale
from flatout.engine.progress import Progress
from flatout.engine.surroundings import read_random_state, reseed, restore_random_state, seed_of
from flatout.engine.update import trained_by
from flatout.store.tensors import local_part
from flatout.world.world import World

if TYPE_CHECKING:
    from flatout.engine.parallel.local import LocalUpdates


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
        """`made_by`: the decoder that makes rows from the data's files."""
        self.world, self.seed = world or World(), seed
        self.model = model
        self.optimizer = optimizer
        self.average = average
        self.scale = scale
        self.device = device
        self.made_by = made_by
        self.local = local
        self._state_is_new = False  # created only to read a checkpoint into

    def tree(self, progress: Progress, stream: str | None = None) -> dict[str, Any]:
        """`stream`: the state of an iterable dataset, which a position can't describe."""
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
        """A tree to read a checkpoint into: with split weights, each process reads its own parts."""
        self._state_is_new = isinstance(self.optimizer, Optimizer) and make_state(self.optimizer)
        return self.tree(progress, stream)

    def nothing_to_fill(self) -> None:
        """Undo `tree_to_fill`: there was no checkpoint."""
        if self._state_is_new:
            self.optimizer.state.clear()

    def weights(self) -> dict[str, Any]:
        """The weights of the run; the global ones if processes train separately between exchanges."""
        return dict(self.model.state_dict()) if self.local is None else self.local.weights()

    def restore(self, tree: dict[str, Any]) -> Progress:
        """Restore a checkpoint's tree, in place where a graph may use the tensors."""
        try:
            self.model.load_state_dict(tree["model"])
        except RuntimeError as error:
            raise StoreError(f"the weights in the checkpoint do not fit the model: {error}") from error
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
        """With the same number of processes: exactly. Otherwise each process starts a new sequence from here."""
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
        """What differs from where the checkpoint was written. If anything does, a resume is exact in data, but not in bits."""
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
        # the rate is set before every step and may be a tensor that a graph reads: keep the same object
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._keep_tensors(before)

    def _keep_tensors(self, before: dict[int, dict[str, Any]]) -> None:
        """Copy into tensors that the optimizer already had: a captured graph reads only these."""
        with torch.no_grad():
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    for name, old in before.get(id(parameter), {}).items():
                        new = self.optimizer.state[parameter].get(name)
                        if isinstance(old, Tensor) and isinstance(new, Tensor) and old.shape == new.shape:
                            self.optimizer.state[parameter][name] = old.copy_(new)

    # ---- for the warm-up of a graph ----

    def copies(self) -> list[Tensor]:
        self._random = read_random_state(self.device)
        return [tensor.clone() for tensor in self._changing()]

    def put_back(self, copies: list[Tensor]) -> None:
        """State that the optimizer created since then becomes zeros, as fused AdamW and SGD start with."""
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
    """Whether all weights and running statistics are finite. Waits for the device."""
    both = [local_part(tensor) for tensor in (*model.parameters(), *model.buffers())]
    changing = [tensor.detach() for tensor in both if tensor.is_floating_point() and tensor.numel()]
    norms = torch._foreach_norm(changing, float("inf"))  # the largest value: unlike a sum of squares it can't overflow
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())


# ---- an optimizer's state by parameter names ----


_MARK = "by_name"


def by_name(optimizer: Any, model: nn.Module) -> dict[str, Any]:
    """Like `state_dict`, but by name."""
    saved: dict[str, Any] = optimizer.state_dict()
    names = _names(optimizer, model)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in saved["param_groups"]]
    states = {name: state for number, state in saved["state"].items() for name in names[number]}
    return {_MARK: states, "param_groups": groups}


def by_number(kept: dict[str, Any], optimizer: Any, model: nn.Module) -> dict[str, Any]:
    """From the result of `by_name`, of any process that had these parameters, to what `load_state_dict` takes."""
    if _MARK not in kept:
        return kept
    here: dict[str, Any] = optimizer.state_dict()
    names, states = _names(optimizer, model), kept[_MARK]  # parameters that were never trained have no state
    groups = [{**group, **_like(group, kept["param_groups"])} for group in here["param_groups"]]
    known = {number: next((name for name in own if name in states), None) for number, own in enumerate(names)}
    state = {number: states[name] for number, name in known.items() if name is not None}
    return {"state": state, "param_groups": groups}


def _like(group: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The matching group. Positions don't match: other processes may have other groups, or in another order."""
    alike = (other for other in groups if all(other.get(key) == group.get(key) for key in ("weight_decay", "factor", "stage")))
    return next(alike, {})


@torch.no_grad()
def make_state(optimizer: Optimizer) -> bool:
    """Create the state that an optimizer would create in its first step. Weights don't change.

    A checkpoint is read into existing tensors with the layout of the weights. Returns whether there was no state before.
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
    """All names of each parameter, in the order of the optimizer."""
    known: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        known.setdefault(id(parameter), []).append(name)
    return [known.get(id(parameter), [f"parameter {number}"]) for number, parameter in enumerate(trained_by(optimizer))]
