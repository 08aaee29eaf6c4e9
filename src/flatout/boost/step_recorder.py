"""Records a trial's step times and its losses, beside the steps that are compared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flatout.boost.compared_steps import ComparedSteps
from flatout.boost.hooks import Hooks
from flatout.doctor import where
from flatout.doctor.marks import Marks
from flatout.doctor.observing.stepping import Stepping
from flatout.doctor.patches import Patches
from flatout.doctor.seen import ScriptRecord
from flatout.measure.clock import synchronize

_Moment = tuple[float, Any]  # host time, and a device event or None on a CPU
_SETTLES_AT = 3
WARM_UP = 8  # steps that are not timed; the first of them compile


class StepRecorder:
    """Calls `when_done` at the end of step `steps`, or later if steps after the warm-up had to be compared."""

    def __init__(
        self,
        steps: int,
        when_done: Callable[[], None],
        on_step: Callable[[int], None] = lambda step: None,
        evaluates: Iterable[tuple[str, bool]] = (),
        losses: int | None = None,
        compared: ComparedSteps | None = None,
    ) -> None:
        """`evaluates`: lines that evaluate, and whether in training mode; their calls are timed. `losses`: keep those of
        this many steps; None: of all. `compared`: None in the user's real run, which proves nothing."""
        self.steps_done = 0
        self._steps, self._when_done, self._on_step = steps, when_done, on_step
        self._with_losses = steps if losses is None else losses
        self._stepping = Stepping(Marks(), ScriptRecord(), self._step_over)
        self._main = threading.get_ident()
        self._compared = compared
        self._late = 0  # steps of the comparison after the warm-up
        # from the end of the previous step, or from the resume; None for a step that was compared
        self._spans: list[tuple[_Moment, _Moment] | None] = []
        self._last: _Moment | None = None
        self._losses: list[Tensor] = []
        self._per_step: list[list[Tensor]] = []
        self.began_s = time.perf_counter()
        self.first_s: float | None = None
        self.last_loss: Tensor | None = None
        self._evaluates = frozenset(evaluates)
        self._evaluations: list[tuple[_Moment, _Moment]] = []

    def install(self, patches: Patches, hooks: Hooks) -> None:
        if self._compared is not None:
            self._compared.install(patches, hooks, self._not_observed)
        if self._evaluates:
            hooks.around.insert(0, self._timed)
        patches.wrap(torch.autograd, "backward", self._backward)
        self._stepping.install(patches)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self._compared is None else self._compared.device

    @property
    def is_comparing(self) -> bool:
        return self._compared is not None and not self._compared.is_over

    def losses(self) -> list[float]:
        """From the place where steps are compared, where all trials have the same weights."""
        first = 0 if self._compared is None else self._compared.losses_from
        kept = self._per_step[first : first + self._with_losses]
        return [float(torch.stack([loss.float().mean() for loss in step]).mean()) for step in kept if step]

    def steps_s(self, skipped: int) -> list[float]:
        """Seconds of each step after the first `skipped`."""
        synchronize(self.device)
        return [_between(*span) for span in self._spans[skipped:] if span is not None]

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
                if self.steps_done < self._losses_until:
                    self._losses.append(self.last_loss.clone())
            result = original(tensors, *args, **named)
            if self._compared is not None:
                self._compared.after_backward(self.last_loss if root is not None and root.numel() == 1 else None)
            self._stepping.after_backward()
            return result

        return backward

    # steps

    @property
    def _losses_until(self) -> int:
        return self._with_losses + (0 if self._compared is None else self._compared.last_place + self._late + WARM_UP)

    @contextmanager
    def _not_observed(self) -> Iterator[None]:
        """For steps of our own."""
        self._stepping.paused = True
        try:
            yield
        finally:
            self._stepping.paused = False

    def _step_over(self) -> None:
        if threading.get_ident() != self._main:
            return
        self.steps_done += 1
        if self.steps_done == 1:
            self.first_s = time.perf_counter() - self.began_s
        if self.steps_done == _SETTLES_AT:
            self._stepping.settle()
        was_compared = self.is_comparing
        if self._compared is not None:
            self._compared.step_over(self.steps_done)
            self._late = max(0, (self._compared.ended_at or self.steps_done) - WARM_UP)
        if self.steps_done <= self._steps + self._late:
            now = self._now()
            if self._last is not None:
                self._spans.append(None if was_compared else (self._last, now))
            self._last = now
        if self.steps_done <= self._losses_until:
            self._per_step.append(self._losses)
        self._losses = []
        self._on_step(self.steps_done)
        if self.steps_done == self._steps + self._late and not self.is_comparing:
            self._when_done()


def _between(a: _Moment, b: _Moment) -> float:
    if a[1] is None or b[1] is None:
        return b[0] - a[0]
    return float(a[1].elapsed_time(b[1])) / 1e3
