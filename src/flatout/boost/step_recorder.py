"""Records a trial's step times, its losses, and how its first steps change the weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from flatout.boost.hooks import Hooks, learns
from flatout.doctor import where
from flatout.doctor.marks import Marks
from flatout.doctor.observing.stepping import Stepping
from flatout.doctor.patches import Patches
from flatout.doctor.seen import ScriptRecord
from flatout.measure.clock import synchronize
from flatout.measure.differences import StepSnapshot

_Moment = tuple[float, Any]  # host time, and a device event or None on a CPU
_SETTLES_AT = 3
_DROPS = (nn.modules.dropout._DropoutNd,)


@dataclass
class _First:
    """The first weight-changing step of each optimizer."""

    losses: list[float] = field(default_factory=list)
    loss_dtype: str = "float32"
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    updates: dict[str, Tensor] = field(default_factory=dict)
    expected: dict[str, Tensor] = field(default_factory=dict)
    before: dict[str, Tensor] = field(default_factory=dict)


class StepRecorder:
    """Calls `when_done` at the end of step `steps`. Dropout is off during the first step, because its randomness would hide
    differences in that step."""

    def __init__(
        self,
        steps: int,
        when_done: Callable[[], None],
        on_step: Callable[[int], None] = lambda step: None,
        evaluates: Iterable[tuple[str, bool]] = (),
        losses: int | None = None,
    ) -> None:
        """`evaluates`: lines that evaluate, and whether in training mode; their calls are timed. `losses`: keep those of
        this many steps; None: of all."""
        self.steps_done = 0
        self._steps, self._when_done, self._on_step = steps, when_done, on_step
        self._with_losses = steps if losses is None else losses
        self._stepping = Stepping(Marks(), ScriptRecord(), self._step_over)
        self._first, self._proven = _First(), WeakSet[torch.optim.Optimizer]()
        self._numbers: dict[int, int] = {}
        self._names = WeakIdKeyDictionary()  # of weights
        self._taken: set[str] = set()
        self._main = threading.get_ident()
        self._spans: list[tuple[_Moment, _Moment]] = []  # from the end of the previous step, or from the resume
        self._last: _Moment | None = None
        self._losses: list[Tensor] = []
        self._per_step: list[list[Tensor]] = []
        self._inside = False
        self._dropped: list[tuple[nn.Module, str, Any]] = []
        self._drops = self._proves = self._puts_back = True
        self._models: list[nn.Module] = []
        self._by_hand: list[tuple[str, Tensor]] | None = None  # weights that the script updates without an optimizer
        self.device = torch.device("cpu")
        self.began_s = time.perf_counter()
        self.first_s: float | None = None
        self.last_loss: Tensor | None = None
        self._evaluates = frozenset(evaluates)
        self._evaluations: list[tuple[_Moment, _Moment]] = []

    def install(self, patches: Patches, hooks: Hooks) -> None:
        hooks.prepare.insert(0, self._without_dropout)
        hooks.inputs.insert(0, self._next_call)
        if self._evaluates:
            hooks.around.insert(0, self._timed)
        patches.wrap(torch.autograd, "backward", self._backward)
        register_optimizer_step_pre_hook(self._before)  # before the hook that counts steps
        register_optimizer_step_post_hook(self._after)
        self._stepping.install(patches)

    def leaves_dropout_off(self) -> None:
        """Switches dropout off for the whole trial, so that the order of random draws does not matter."""
        self._puts_back = False

    def keeps_dropout(self) -> None:
        """Leaves dropout on, for the user's real run, which proves nothing."""
        self._drops = self._proves = False

    def snapshot(self) -> StepSnapshot:
        first = self._first
        return StepSnapshot(
            tuple(first.losses), first.loss_dtype, 1.0, None, first.gradients, first.updates, first.expected, {}, first.before
        )

    def losses(self) -> list[float]:
        return [float(torch.stack([loss.float().mean() for loss in step]).mean()) for step in self._per_step if step]

    def steps_s(self, skipped: int) -> list[float]:
        """Seconds of each step after the first `skipped`."""
        synchronize(self.device)
        return [_between(*span) for span in self._spans[skipped:]]

    def paused_by(self, pause: Callable[[], None]) -> None:
        """Calls `pause` between two steps; its time counts for neither."""
        pause()
        self._last = self._now()

    def evaluations_s(self) -> list[float]:
        """Seconds of each evaluating call."""
        synchronize(self.device)
        return [_between(*span) for span in self._evaluations]

    @contextmanager
    def _timed(self, module: nn.Module) -> Iterator[None]:
        if (where.caller(), module.training) not in self._evaluates:
            yield
            return
        began = self._now()
        yield
        self._evaluations.append((began, self._now()))

    def _now(self) -> _Moment:
        if self.device.type != "cuda":
            return time.perf_counter(), None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return time.perf_counter(), event

    # losses

    def _backward(self, original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **named: Any) -> Any:
            root = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
            if threading.get_ident() == self._main and isinstance(root, Tensor) and root.numel() == 1:
                self.last_loss = root.detach()
                if self.steps_done < self._with_losses:
                    self._losses.append(self.last_loss.clone())
                    if not self._proven:
                        self._first.loss_dtype = str(root.dtype).removeprefix("torch.")
            result = original(tensors, *args, **named)
            if self._proves and not self._proven and threading.get_ident() == self._main:
                self._note_by_hand()
            self._stepping.after_backward()
            return result

        return backward

    # first steps

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, named: Any) -> Any:
        """With a closure, gradients exist only after the optimizer has called it."""
        if self._inside or not self._proves or optimizer in self._proven or _stands_still(optimizer):
            return None
        given = named.get("closure") or (args[1] if len(args) > 1 else None)
        if not callable(given):
            self._note_gradients(optimizer)
            return None

        def closure() -> Any:
            result = given()
            if optimizer not in self._proven and id(optimizer) not in self._numbers:
                self._note_gradients(optimizer)
            return result

        return (args[0], closure), {name: value for name, value in named.items() if name != "closure"}

    def _note_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        number = self._numbers.setdefault(id(optimizer), len(self._numbers))
        if not number:
            self._first = _First(loss_dtype=self._first.loss_dtype)  # an optimizer steps after all
            self._first.losses = [float(loss.float().mean()) for loss in self._losses]
        weights = self._weights(optimizer, number)
        for name, weight in weights:
            self._first.before[name] = weight.detach().float().clone()
            self._first.gradients[name] = None if weight.grad is None else weight.grad.detach().float().clone()
        self._inside = self._stepping.paused = True
        try:
            with torch.no_grad():
                self._first.expected.update(_expected(optimizer, weights))
        finally:
            self._inside = self._stepping.paused = False

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, named: Any) -> None:
        if self._inside or not self._proves or optimizer in self._proven or _stands_still(optimizer):
            return
        self._proven.add(optimizer)
        self._models.clear()
        self._by_hand = None
        if id(optimizer) not in self._numbers:  # the optimizer did not call its closure
            return
        for name, weight in self._weights(optimizer, self._numbers[id(optimizer)]):
            if self._first.gradients[name] is None:
                self._first.expected.pop(name, None)
                continue
            self._first.updates[name] = weight.detach().float() - self._first.before[name]
            self._first.expected.setdefault(name, self._first.updates[name].clone())
            self.device = weight.device
        self._with_dropout()

    def _weights(self, optimizer: torch.optim.Optimizer, number: int) -> list[tuple[str, Tensor]]:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        return [(self._name(weight, f"weight {number}.{at}"), weight) for at, weight in enumerate(weights)]

    def _name(self, weight: Tensor, by_its_place: str) -> str:
        """The weight's name in the model, or its position if no known model has it."""
        return str(self._names.get(weight, by_its_place))

    def _note_names(self, module: nn.Module) -> None:
        """Gives each name once. Models are called in the same order in every trial."""
        for name, weight in module.named_parameters():
            free = [one for one in (name, f"{name} of {type(module).__name__}") if one not in self._taken]
            if free and weight not in self._names:
                self._names[weight] = free[0]
                self._taken.add(free[0])

    # the same without an optimizer

    def _note_by_hand(self) -> None:
        """At every backward pass of the first step, because the update is only known afterwards."""
        ours = [weight for model in self._models for weight in model.parameters()]
        weights: list[tuple[str, Tensor]] = [(self._name(weight, f"weight 0.{at}"), weight) for at, weight in enumerate(ours)]
        if not any(weight.grad is not None for _, weight in weights):
            return
        for name, weight in weights:  # each backward pass may add models
            if name not in self._first.before:
                self._first.before[name] = weight.detach().float().clone()
        self._by_hand, self.device = weights, weights[0][1].device
        self._first.losses = [float(loss.float().mean()) for loss in self._losses]
        self._first.gradients = {
            name: None if weight.grad is None else weight.grad.detach().float().clone() for name, weight in weights
        }

    def _next_call(
        self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._by_hand is None or not self._proves or self._numbers:
            return args, named
        changed = {
            name: weight.detach().float() - self._first.before[name]
            for name, weight in self._by_hand
            if self._first.gradients[name] is not None
        }
        if any(bool(update.any()) for update in changed.values()):
            self._first.updates = changed
            self._first.expected = {name: update.clone() for name, update in changed.items()}
            self._proves, self._by_hand = False, None
            self._models.clear()
            self._with_dropout()
        return args, named

    def _without_dropout(self, module: nn.Module) -> bool:
        self._note_names(module)
        if learns(module) and self._proves and not self._proven:
            self._models.append(module)
        if not self._drops:
            return True
        for part in module.modules():
            for name in ("p",) if isinstance(part, _DROPS) else ("dropout",):
                if isinstance(getattr(part, name, None), float) and getattr(part, name):
                    self._dropped.append((part, name, getattr(part, name)))
                    setattr(part, name, 0.0)
        return True

    def _with_dropout(self) -> None:
        if not self._puts_back:
            return
        self._drops = False
        for part, name, value in self._dropped:
            setattr(part, name, value)
        self._dropped.clear()

    # steps

    def _step_over(self) -> None:
        if self._inside or threading.get_ident() != self._main:
            return
        self.steps_done += 1
        if self.steps_done == 1:
            self.first_s = time.perf_counter() - self.began_s
        if self.steps_done == _SETTLES_AT:
            self._stepping.settle()
        if self.steps_done <= self._steps:
            now = self._now()
            if self._last is not None:
                self._spans.append((self._last, now))
            self._last = now
        if self.steps_done <= self._with_losses:
            self._per_step.append(self._losses)
        self._losses = []
        self._on_step(self.steps_done)
        if self.steps_done == self._steps:
            self._when_done()


def _between(a: _Moment, b: _Moment) -> float:
    if a[1] is None or b[1] is None:
        return b[0] - a[0]
    return float(a[1].elapsed_time(b[1])) / 1e3


def _stands_still(optimizer: torch.optim.Optimizer) -> bool:
    """A warm-up schedule may start with a learning rate of 0: that step shows nothing."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    return all(rate is not None and float(rate) == 0.0 for rate in rates)


def _expected(optimizer: torch.optim.Optimizer, weights: list[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The update that an unmodified torch optimizer makes from these gradients. For the script's own optimizers there is no
    expected update, and theirs is compared with itself."""
    if not type(optimizer).__module__.startswith("torch.optim") or type(optimizer).__name__ == "LBFGS":
        return {}
    groups, clones = [], []
    for group in optimizer.param_groups:
        mine = []
        for weight in group["params"]:
            clone = weight.detach().clone().requires_grad_()
            clone.grad = None if weight.grad is None else weight.grad.detach().clone()
            mine.append(clone)
        clones += mine
        plainly = {"fused": False, "foreach": False} if "fused" in group else {}
        groups.append({**group, **plainly, "params": mine})
    try:
        plain: torch.optim.Optimizer = type(optimizer)(groups)  # type: ignore[call-arg]
        for (_, weight), clone in zip(weights, clones, strict=True):
            if weight in optimizer.state:
                plain.state[clone] = deepcopy(optimizer.state[weight])
        plain.step()
    except (TypeError, RuntimeError, ValueError, AssertionError):
        return {}
    return {
        name: (clone.detach() - weight.detach()).float()
        for (name, weight), clone in zip(weights, clones, strict=True)
        if weight.grad is not None
    }
