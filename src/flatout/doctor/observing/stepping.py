"""Finds the boundaries of steps from the optimizers' steps, or from backward passes if there is no optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from flatout.doctor import where
from flatout.doctor.marks import STEP, Marks
from flatout.doctor.observing.looking import Looking
from flatout.doctor.patches import Patches
from flatout.doctor.seen import Optimizer, ScriptRecord

_FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}  # torch's optimizers with a fused kernel
# options that change how much an update computes
_OPTIONS = {"momentum", "dampening", "nesterov", "weight_decay", "betas", "eps", "maximize", "lr_decay"}
# the leader is no longer used after this many steps of another optimizer, and this many times its usual interval
_GONE, _GONE_FACTOR = 20, 5
_TINY = 1e-5  # of the highest learning rate
_NO_OPTIMIZER = 5  # after this many backward passes without an optimizer, each one is a step


class Stepping:
    """Decides when a step is over. Of several optimizers (in a GAN, for example), the one that steps least often leads.
    If it is no longer used, the next one leads."""

    def __init__(self, marks: Marks, seen: ScriptRecord, on_step: Callable[[], None]) -> None:
        self._marks, self._seen, self._on_step = marks, seen, on_step
        self._known: WeakKeyDictionary[torch.optim.Optimizer, Optimizer] = WeakKeyDictionary()
        self._made: WeakKeyDictionary[torch.optim.Optimizer, str] = WeakKeyDictionary()
        self._learned: WeakKeyDictionary[torch.optim.Optimizer, set[int]] = WeakKeyDictionary()  # tensors that had a gradient
        self._leader: Optimizer | None = None
        self._since: dict[int, int] = {}  # steps of each other optimizer since the leader's last step
        self._most_between = 0
        self._gone: set[int] = set()  # former leaders
        self._open: list[Any] = []
        self._hooks: list[Any] = []
        self.looking: Looking | None = None
        self.paused = False  # ignores optimizers that are not the script's

    def install(self, patches: Patches) -> None:
        self._hooks = [register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)]

        def made(original: Any) -> Any:
            def __init__(optimizer: torch.optim.Optimizer, *args: Any, **named: Any) -> None:
                original(optimizer, *args, **named)
                self._made[optimizer] = where.caller()

            return __init__

        patches.wrap(torch.optim.Optimizer, "__init__", made)

        def scheduling(original: Any) -> Any:
            def __init__(scheduler: Any, *args: Any, **named: Any) -> None:
                original(scheduler, *args, **named)
                self._seen.scheduled = where.caller()

            return __init__

        patches.wrap(torch.optim.lr_scheduler.LRScheduler, "__init__", scheduling)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def settle(self) -> None:
        """From here on, the optimizer that steps least often defines the steps."""
        if self._leader is not None:
            used = [one for one in self._seen.optimizers if id(one) not in self._gone]
            rarest = min(used, key=lambda one: one.steps)
            if rarest.steps < self._leader.steps - 1:  # an optimizer one step behind may be about to step
                self._leader = rarest

    def after_backward(self) -> None:
        self._seen.backwards += 1
        if not self._seen.optimizers and self._seen.backwards > _NO_OPTIMIZER:
            if self._seen.backwards == _NO_OPTIMIZER + 1:
                self._seen.steps += _NO_OPTIMIZER
            self._on_step()

    def note_gradients(self) -> None:
        """Counts the tensors without a gradient in all observed steps."""
        for optimizer, known in self._known.items():
            tensors = [p for group in optimizer.param_groups for p in group["params"]]
            learned = self._learned.get(optimizer, set())
            without = [p for p in tensors if p.requires_grad and id(p) not in learned and p not in optimizer.state]
            computed = set() if self._seen.look is None else self._seen.look.computed_with
            known.cut_off = sum(id(p) in computed for p in without) if learned else 0
            known.without_gradient = len(without) if learned else 0
            known.without_gradient_elements = sum(p.numel() for p in without) if learned else 0

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return list(self._known)

    def made(self) -> list[torch.optim.Optimizer]:
        """All optimizers that the script has, whether they have made a step or not."""
        return [*self._known, *(one for one in self._made if one not in self._known)]

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, named: Any) -> None:
        if self.looking is not None and not self.paused:
            self.looking.before_update(optimizer)
        if self._marks.recording and not self.paused:
            learned = self._learned.setdefault(optimizer, set())
            learned.update(id(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
            self._open.append(self._marks.begin(STEP))

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, named: Any) -> None:
        if self.paused:
            return
        known = self._known.get(optimizer)
        if known is None:
            known = self._known[optimizer] = self._described(optimizer)
            self._seen.optimizers.append(known)
            if self._leader is None:
                self._leader = known
        known.steps += 1
        rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
        if isinstance(rate, float):
            known.highest_rate = max(known.highest_rate, rate)
            known.tiny_rates += rate < _TINY * known.highest_rate
        if self._open:
            mark = self._open.pop()
            if mark is not None:
                mark.__exit__(None, None, None)
        since = self._since[id(known)] = self._since.get(id(known), 0) + 1
        if known is not self._leader and since > max(_GONE, _GONE_FACTOR * self._most_between):
            self._gone.add(id(self._leader))
            self._gone.discard(id(known))
            self._leader = known
            self._since.clear()  # counts of the previous leader do not apply
        if known is self._leader:
            self._most_between = max(self._most_between, *self._since.values(), 0)
            self._since.clear()
            self._on_step()

    def _described(self, optimizer: torch.optim.Optimizer) -> Optimizer:
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        group = optimizer.param_groups[0] if optimizer.param_groups else {}
        kind = type(optimizer).__name__
        own = type(optimizer).__module__.startswith("torch.optim")
        sparse = any(p.grad is not None and p.grad.layout != torch.strided for p in tensors)  # fused kernels refuse these
        return Optimizer(
            kind,
            self._made.get(optimizer, ""),
            where.caller(),
            fused=bool(group.get("fused")),
            foreach=bool(group.get("foreach")),
            capturable=bool(group.get("capturable")),
            tensors=len(tensors),
            elements=sum(p.numel() for p in tensors),
            can_fuse=own and kind in _FUSED and not group.get("differentiable") and not group.get("amsgrad") and not sparse,
            on=tensors[0].device.type if tensors else "cpu",
            sizes=tuple(p.numel() for p in tensors),
            dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else "float32",
            options={name: value for name, value in group.items() if name in _OPTIONS},
        )
