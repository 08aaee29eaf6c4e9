"""Steps of a trial that are compared with the unmodified script's: all from the same weights, each on its own batch.

A place is a number of steps after which they begin. There the weights and the optimizers' states are those of the unmodified
script's first run, whatever came before. With several optimizers, each is compared at its own next steps. After a compared step
its weights and state are put back, so that neither the next batch nor another optimizer depends on how rounding changed them.
Dropout is off until the last compared step, because its randomness would hide differences.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from flatout.boost import training_state as state
from flatout.boost.by_hand import StepByHand
from flatout.boost.compared_place import ComparedPlace
from flatout.boost.dropout_off import DropoutOff
from flatout.boost.hooks import Hooks, learns
from flatout.boost.plain_update import stands_still
from flatout.boost.weight_names import WeightNames
from flatout.doctor.patches import Patches
from flatout.measure.differences import StepSnapshot

_LATE = 8  # steps to wait for an optimizer that steps less often
_ELEMENTS = 80_000_000  # most of one kind held at once: larger models are compared on fewer batches

Copied = Mapping[str, Any]


class ComparedSteps:
    def __init__(
        self,
        places: Sequence[int] = (0,),
        batches: int = 1,
        known: Mapping[int, Copied] | None = None,
        *,
        shaken: float = 0.0,
        part: int = 0,
    ) -> None:
        """`batches`: compared steps at each place. `known`: states of the unmodified script by place, to begin from. `shaken`:
        the largest relative change of each weight at a place, to measure how much rounding changes a step. `part`: put the
        weights back every so many steps afterwards, so that noise has little time to grow; 0: never."""
        self._places, self._batches, self._known = sorted(places), batches, known or {}
        self._shaken, self._part = shaken, part
        self.places: dict[int, ComparedPlace] = {}
        self.states: dict[int, dict[str, Any]] = {}
        self.ended_at: int | None = None  # the step after which no more is compared
        self.dropout = DropoutOff()
        self.puts_dropout_back = True
        self._open: ComparedPlace | None = None
        self._round = 0
        self._made = WeakSet[torch.optim.Optimizer]()
        self._stepped: list[torch.optim.Optimizer] = []  # in the order of their first steps
        self._names = WeightNames()
        self._models: list[nn.Module] = []
        self._by_hand: StepByHand | None = StepByHand(self._names)
        self._base: dict[str, Any] | None = None  # for the parts
        self._inside = False
        self._alone: Callable[[], AbstractContextManager[None]] | None = None
        self._main = threading.get_ident()
        self.device = torch.device("cpu")
        if self._places[:1] == [0]:
            self._open = self.places[0] = ComparedPlace(0)

    def install(self, patches: Patches, hooks: Hooks, alone: Callable[[], AbstractContextManager[None]]) -> None:
        """`alone`: a context in which steps of an optimizer are not the script's."""
        self._alone = alone
        hooks.prepare.insert(0, self._first_call)
        hooks.inputs.insert(0, self._next_call)
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

        def made(original: Any) -> Any:
            def __init__(optimizer: torch.optim.Optimizer, *args: Any, **named: Any) -> None:
                original(optimizer, *args, **named)
                if not self._inside:
                    self._made.add(optimizer)

            return __init__

        patches.wrap(torch.optim.Optimizer, "__init__", made)

    @property
    def last_place(self) -> int:
        return self._places[-1]

    @property
    def losses_from(self) -> int:
        """From here on, losses depend on the same weights in every trial."""
        return self.last_place if not self._part or self.ended_at is None else self.ended_at

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    def snapshot(self, at: int) -> StepSnapshot | None:
        """Of the steps at a place; None if it was not reached."""
        place = self.places.get(at)
        if place is not None and self._by_hand is not None and self._by_hand.is_noted:
            return self._by_hand.snapshot(place.loss_dtype)
        return None if place is None or not place.gradients else place.snapshot()

    # calls of models

    def _first_call(self, module: nn.Module) -> bool:
        self._names.note(module)
        if learns(module) and not self.is_over:
            self._models.append(module)
            if self._shaken and self._open is not None and not self._round:
                self._shake(module.parameters())
        if self.dropout.is_off:
            self.dropout.prepare(module)
        return True

    def _next_call(
        self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._open is not None:
            if self._by_hand is not None and not self._stepped and self._by_hand.is_noted and self._by_hand.is_over():
                self._end()
            elif module in self._models:
                self._open.note_buffers_before(self._models.index(module), module)
        return args, named

    def after_backward(self, loss: Tensor | None) -> None:
        """`loss`: None if `backward` was called on something else."""
        if self._open is None or threading.get_ident() != self._main:
            return
        if loss is not None and self._round < self._open.at + self._batches:
            self._open.note_loss(loss)
        if self._by_hand is not None and not self._stepped:
            self._by_hand.after_backward(self._models, self._open.losses)
            self.device = next((weight.device for one in self._models for weight in one.parameters()), self.device)

    # steps of optimizers

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, named: Any) -> Any:
        """With a closure, gradients exist only after the optimizer has called it."""
        if self._inside or not self._is_compared(optimizer):
            return None
        given = named.get("closure") or (args[1] if len(args) > 1 else None)
        if not callable(given):
            self._note(optimizer)
            return None

        def closure() -> Any:
            result = given()
            if self._open is not None and not self._open.is_noted(optimizer):
                self._note(optimizer)
            return result

        return (args[0], closure), {name: value for name, value in named.items() if name != "closure"}

    def _is_compared(self, optimizer: torch.optim.Optimizer) -> bool:
        place = self._open
        return place is not None and place.steps_of(optimizer) < self._most(optimizer) and not stands_still(optimizer)

    def _most(self, optimizer: torch.optim.Optimizer) -> int:
        if not state.can_be_copied(optimizer):
            return 1
        elements = sum(weight.numel() for weight in state.weights_of(optimizer))
        return min(self._batches, max(1, _ELEMENTS // max(elements, 1)))

    def _note(self, optimizer: torch.optim.Optimizer) -> None:
        assert self._open is not None and self._alone is not None
        number = self._number(optimizer)
        weights = state.weights_of(optimizer)
        if weights:
            self.device = weights[0].device
        named = [(self._names.of(weight, f"weight {number}.{at}"), weight) for at, weight in enumerate(weights)]
        self._inside = True
        try:
            with self._alone(), torch.no_grad():
                self._open.note_gradients(optimizer, named, undoes=state.can_be_copied(optimizer))
        finally:
            self._inside = False

    def _number(self, optimizer: torch.optim.Optimizer) -> int:
        if not any(one is optimizer for one in self._stepped):
            self._stepped.append(optimizer)
            self._by_hand = None
        return next(at for at, one in enumerate(self._stepped) if one is optimizer)

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, named: Any) -> None:
        if self._inside:
            return
        if not self.is_over:
            self._number(optimizer)
        if self._open is not None and self._open.is_noted(optimizer):
            with torch.no_grad():
                self._open.note_updates(optimizer)

    # places

    def step_over(self, step: int) -> None:
        """At the end of each step of the script."""
        self._round = step
        if self._open is not None:
            self._open.step_over(self._models)
            if self._is_complete(self._open) or step >= self._open.at + self._batches + _LATE or step in self._places:
                self._close()
        elif self._base is not None and self.ended_at is not None and (step - self.ended_at) % self._part == 0:
            self._restore(self._base)
        if step in self._places and step not in self.places:
            if step in self._known:
                self._restore(self._known[step])
            else:
                self.states[step] = self._now()
            if self._shaken:
                self._shake(weight for optimizer in self._stepped for weight in state.weights_of(optimizer))
            self._open = self.places[step] = ComparedPlace(step)

    def _is_complete(self, place: ComparedPlace) -> bool:
        wanted = [one for one in {*self._made, *self._stepped} if one.param_groups]
        return bool(self._stepped) and all(place.steps_of(one) >= self._most(one) for one in wanted)

    def _close(self) -> None:
        self._open = None
        if self._round >= self._places[-1]:
            self._end()

    def _end(self) -> None:
        self._open, self.ended_at = None, self._round
        if self._part and all(state.can_be_copied(one) for one in self._stepped):
            self._base = self._now()
        if self.puts_dropout_back:
            self.dropout.back_on()
        if not self._part:
            self._models.clear()

    def _now(self) -> dict[str, Any]:
        tensors = state.beside(self._models, self._stepped)
        return {
            "optimizers": [state.copy_of(one) for one in self._stepped if state.can_be_copied(one)],
            "beside": [state.copies(one) for one in tensors],
        }

    def _restore(self, known: Copied) -> None:
        ours = [one for one in self._stepped if state.can_be_copied(one)]
        with torch.no_grad():
            for one, copied in zip(ours, known["optimizers"], strict=False):
                state.put_back(copied, one)
            for tensors, beside in zip(state.beside(self._models, self._stepped), known["beside"], strict=False):
                state.put_tensors_back(beside, tensors)

    def _shake(self, weights: Any) -> None:
        draw = torch.Generator("cpu").manual_seed(self._round + 1)
        with torch.no_grad():
            for weight in weights:
                if weight.is_floating_point():
                    change = torch.rand(weight.shape, generator=draw, device="cpu") * 2 - 1
                    weight.data.mul_(1 + self._shaken * change.to(weight.device, weight.dtype))
