"""Observes the module calls that the script makes directly, not nested ones, and the backward passes."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from flatout.doctor import where
from flatout.doctor.marks import BACKWARD, FORWARD, Marks
from flatout.doctor.observing.stepping import Stepping
from flatout.doctor.patches import Patches
from flatout.doctor.seen import Calls, Period, ScriptRecord, is_odd

_BY_MODE = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
_RARE = 0.5  # a line that runs in a smaller share of steps is not part of a step


class _How(NamedTuple):
    """How a module is called. It tells training from evaluation if a library's loop runs both from one line of the script."""

    line: str
    training: bool
    gradient: bool


class Calling:
    def __init__(self, marks: Marks, seen: ScriptRecord, stepping: Stepping) -> None:
        self._marks, self._seen, self._stepping = marks, seen, stepping
        self._main = threading.get_ident()
        self._inside = False
        self._by_key: dict[tuple[Any, ...], Calls] = {}
        self._gap: dict[_How, tuple[int, int, int]] = {}  # calls, beginning of the first, end of the last
        self._gaps: list[dict[_How, tuple[int, int, int]]] = []
        self._gap_count = 0
        self._between: dict[_How, int] = defaultdict(int)  # number of steps with such a call
        self._learned: set[_How] = set()  # calls that got a gradient
        self._classes: set[type[nn.Module]] = set()
        self._narrow: Patches | None = None
        self._all = Patches()

    def install(self, patches: Patches) -> None:
        self._all.wrap(nn.Module, "__call__", self._observed)

        def backward(original: Any) -> Any:
            def run(*args: Any, **named: Any) -> Any:
                if threading.get_ident() != self._main:
                    return original(*args, **named)
                if self._stepping.looking is not None:
                    self._stepping.looking.before_backward(args[0] if args else named.get("tensors", ()))
                with self._marks.mark(BACKWARD):
                    result = original(*args, **named)
                self._stepping.after_backward()
                return result

            return run

        patches.wrap(torch.autograd, "backward", backward)  # Tensor.backward calls it, too

        def scaled(original: Any) -> Any:
            def scale(*args: Any, **named: Any) -> Any:
                self._seen.scaler = self._seen.scaler or bool(getattr(args[0], "_enabled", True))
                return original(*args, **named)

            return scale

        patches.wrap(torch.amp.GradScaler, "scale", scaled)

    def narrow(self) -> None:
        """From here on, observe only classes that the script calls directly, which is cheaper."""
        self._all.restore()
        self._narrow = Patches()
        for kind in self._classes:
            self._narrow.wrap(kind, "__call__", self._observed)

    def remove(self) -> None:
        self._all.restore()
        if self._narrow is not None:
            self._narrow.restore()

    def step_over(self) -> None:
        self._gap_count += 1
        if self._gap:
            if self._gap_count > 1:  # calls before the first step are only tests of the model
                self._gaps.append(self._gap)
                for how in self._gap:
                    self._between[how] += 1
            self._gap = {}

    def periods(self) -> list[Period]:
        """The evaluations: calls between steps, or after the last, that most steps do not make and without a backward pass."""
        gaps = [*self._gaps, *([self._gap] if self._gap and self._gap_count else [])]
        steps = max(self._gap_count, 1)
        every = {how for gap in gaps for how in gap}
        rare = {how for how in every - self._learned if self._between[how] <= max(_RARE * steps, 1)}
        never_learns = {
            how for how in every if not how.training and not how.gradient and max(gap[how][0] for gap in gaps if how in gap) > 1
        }
        found = []
        for gap in gaps:
            inside = {how: seen for how, seen in gap.items() if how in rare | never_learns}
            if inside:
                how = max(inside, key=lambda one: inside[one][0])
                start, end = min(seen[1] for seen in inside.values()), max(seen[2] for seen in inside.values())
                found.append(Period(start, end, how.line, how.training, how.gradient))
        return found

    def calls(self) -> list[Calls]:
        for call in self._by_key.values():
            call.between = self._between[_How(call.where, call.training, call.gradient)]
        return list(self._by_key.values())

    def _observed(self, original: Any) -> Any:
        inside_of = self

        def __call__(module: nn.Module, *args: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(module, *args, **named)
            looking = inside_of._stepping.looking
            if looking is not None and looking.open and threading.get_ident() == inside_of._main:
                looking.called(module, args, not inside_of._inside)
            if inside_of._inside or threading.get_ident() != inside_of._main:
                return original(module, *args, **named)
            return inside_of._outermost(original, module, args, named)

        return __call__

    def _outermost(self, original: Any, module: nn.Module, args: Any, named: Any) -> Any:
        line = where.caller()
        how = _How(line, module.training, torch.is_grad_enabled())
        self._inside = True
        self._seen.outer_calls += 1
        began = time.time_ns()
        try:
            with self._marks.mark(FORWARD):
                result = original(module, *args, **named)
            if how.gradient and how not in self._learned:
                self._look_for_a_gradient(result, how)
            return result
        finally:
            ended = time.time_ns()
            self._inside = False
            count, first, _ = self._gap.get(how, (0, began, 0))
            self._gap[how] = (count + 1, first, ended)
            self._note(module, line, args, named, ended - began)

    def _look_for_a_gradient(self, result: Any, how: _How) -> None:
        """A line that runs rarely may still train: an occasional loss term, for example."""
        for one in tree_leaves(result):
            if isinstance(one, Tensor) and one.grad_fn is not None:
                one.register_hook(lambda _: self._learned.add(how))

    def _note(self, module: nn.Module, line: str, args: Any, named: Any, spent_ns: int) -> None:
        gradient = torch.is_grad_enabled()
        key = (line, type(module), module.training, gradient)
        call = self._by_key.get(key)
        if call is None:
            call = self._by_key[key] = _described(module, line, gradient, args, named)
            self._classes.add(type(module))
        call.count += 1
        call.seconds += spent_ns / 1e9


def _described(module: nn.Module, line: str, gradient: bool, args: Any, named: Any) -> Calls:
    first = next(module.parameters(), None)
    device = "cpu" if first is None else first.device.type
    tensors = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
    images = [t for t in tensors if t.dim() == 4]
    inner = getattr(module, "_orig_mod", None)
    parts = list((inner or module).modules())
    convolutions = [m for m in parts if isinstance(m, nn.modules.conv._ConvNd)]
    return Calls(
        type(inner or module).__name__,
        line,
        module.training,
        gradient,
        _autocast_of(device),
        "" if first is None else str(first.dtype).removeprefix("torch."),
        device,
        has_convolutions=any(isinstance(m, nn.Conv2d) for m in convolutions),
        channels_last=_channels_last(images, convolutions) if images else None,
        compiled=inner is not None or getattr(module, "_compiled_call_impl", None) is not None,
        batch=tensors[0].shape[0] if tensors and tensors[0].dim() else 0,
        parallel=isinstance(module, nn.DataParallel),
        spread=isinstance(module, nn.DataParallel) and not is_wrapper(module),
        mode_matters=any(isinstance(m, _BY_MODE) for m in parts),
        of_torch=is_of_torch(inner or module),
        odd_products=any(isinstance(m, nn.Linear) and is_odd(m.out_features) for m in parts),
    )


def is_wrapper(module: nn.Module) -> bool:
    """nn.DataParallel on one device, or none: it calls the module inside as it is."""
    return isinstance(module, nn.DataParallel) and len(module.device_ids) < 2


def is_of_torch(module: nn.Module) -> bool:
    """Is its forward one of torch's layers or containers? Traced and exported modules are not."""
    forward = next((vars(kind)["forward"] for kind in type(module).__mro__ if "forward" in vars(kind)), None)
    return (getattr(forward, "__module__", None) or "").startswith("torch.nn.")


def _autocast_of(device: str) -> str:
    if not torch.is_autocast_enabled(device) or torch.get_autocast_dtype(device) == torch.float32:
        return ""
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def _channels_last(images: list[Tensor], convolutions: Sequence[nn.Module]) -> bool:
    """One channels-last input or weight is enough: the convolution's output is then channels-last, too."""
    weights = [p for module in convolutions for p in module.parameters() if p.dim() == 4 and p.shape[1] > 1]
    return any(
        t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous()
        for t in (*weights, *(image for image in images if image.shape[1] > 1))
    )
