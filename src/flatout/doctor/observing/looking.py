"""A close look at two steps of the warm-up: what the losses get, where gradients go, and which lines call a module repeatedly.

Its hooks are too slow for the steps that are timed, so they are removed before.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from flatout.doctor import where
from flatout.doctor.patches import Patches
from flatout.doctor.seen import CloseLook, Lookup, ScriptRecord

_MOST_NODES = 200_000
_PASSED_THROUGH = (
    "View", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Permute", "TBackward", "Alias", "Clone", "ToCopy", "Contiguous",
    "Slice", "Select", "Expand", "Flatten",
)  # fmt: skip
_BATCH, _CLASSES = 8, 4  # fewer samples may be of one class by chance
_SOFTMAX, _SIGMOID = "softmax", "sigmoid"
# what a loss must not be given, since it computes the same itself or needs the logarithm
_REFUSED = {
    "cross_entropy": (_SOFTMAX, _SIGMOID),
    "binary_cross_entropy_with_logits": (_SOFTMAX, _SIGMOID),
    "nll_loss": (_SOFTMAX, _SIGMOID),
    "kl_div": (_SOFTMAX, _SIGMOID),
}
_PAIRED = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


class Looking:
    def __init__(self, seen: ScriptRecord, optimizers: Callable[[], list[torch.optim.Optimizer]]) -> None:
        """`optimizers`: all that the script made so far."""
        self._seen, self._optimizers = seen, optimizers
        self._main = threading.get_ident()
        self._patches = Patches()
        self._outer: list[ref[nn.Module]] = []
        self._indices: list[Tensor] = []  # given to embeddings in this step
        self._causal = False
        self._in_this_step: dict[tuple[str, str], Counter[int]] = {}
        self._clean: dict[int, bool] = {}  # by optimizer: were its gradients empty before a backward pass of this step?
        self._backward_since: set[int] = set()
        self._updated: set[int] = set()  # optimizers that made a step in this look
        self._trained: set[int] = set()  # weights of optimizers
        self._reached: set[int] = set()  # weights that a backward pass reached
        self._cleared_at = ""
        self.open = False

    def begin(self) -> None:
        self.open = True
        self._seen.look = CloseLook()
        for name in (*_REFUSED, *_PAIRED):
            self._patches.wrap(nn.functional, name, partial(self._loss, name))
        for name in ("__sub__", "__rsub__"):
            self._patches.wrap(Tensor, name, self._difference)
        self._patches.wrap(Tensor, "detach", self._cut)
        self._patches.wrap(nn.functional, "scaled_dot_product_attention", self._attention)
        for owner in (torch.optim.Optimizer, nn.Module):
            self._patches.wrap(owner, "zero_grad", self._clearing)

    def end(self) -> None:
        if self.open:
            self._note_registered()
        self.open = False
        self._patches.restore()
        self._outer.clear()
        self._indices.clear()

    def step_over(self) -> None:
        look = self._look
        look.steps += 1
        for (line, kind), calls in self._in_this_step.items():
            number, most, _ = look.repeated.get(line, (0, 0, kind))
            look.repeated[line] = (max(number, len(calls)), max(most, *calls.values()), kind)
        self._in_this_step.clear()
        self._indices.clear()

    @property
    def _look(self) -> CloseLook:
        assert self._seen.look is not None
        return self._seen.look

    def _elsewhere(self) -> bool:
        if not self.open or threading.get_ident() != self._main or torch.compiler.is_compiling():
            return True
        return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()  # values can't be read then

    def _safely(self, look: Callable[..., None], *args: Any) -> None:
        """A tensor inside a transform such as vmap has no values to look at; the script must not notice that."""
        if not self._elsewhere():
            with suppress(RuntimeError, NotImplementedError):
                look(*args)

    # modules

    def called(self, module: nn.Module, args: tuple[Any, ...], outermost: bool) -> None:
        if outermost and not any(known() is module for known in self._outer):
            self._outer.append(ref(module))
        if torch.is_grad_enabled():
            self._look.computed_with.update(id(p) for p in module._parameters.values() if p is not None and p.requires_grad)
            calls = self._in_this_step.setdefault((where.caller(), type(module).__name__), Counter())
            calls[id(module)] += 1
        if isinstance(module, nn.Embedding) and args and isinstance(args[0], Tensor):
            self._indices.append(args[0])
            if not module.sparse and module.weight.requires_grad:
                found = Lookup(where.caller(), module.num_embeddings, module.weight.numel(), args[0].numel())
                known = self._look.lookups.get(id(module))
                self._look.lookups[id(module)] = found if known is None else known.more(found.looked_up / 2)  # of two steps

    # losses

    def _loss(self, name: str, original: Any) -> Any:
        def loss(*args: Any, **named: Any) -> Any:
            self._safely(self._look_at_loss, name, *_two(args, named))
            return original(*args, **named)

        return loss

    def _look_at_loss(self, name: str, given: Tensor | None, target: Tensor | None) -> None:
        if given is None:
            return
        if (kind := _made_by(given)) in _REFUSED.get(name, ()):
            self._look.refused.setdefault(where.caller(), (name, kind))
        if target is not None and name in _PAIRED:
            self._note_broadcast(given, target)
        if target is not None and name == "cross_entropy" and _is_plain(target):
            if _is_one_class(given, target):
                self._look.one_class.append(where.caller())
            if self._copies(target):
                self._look.copied.append(where.caller())

    def _copies(self, target: Tensor) -> bool:
        """Is a model that sees only what came before asked for the very tokens that it was given?"""
        if not self._causal or target.is_floating_point() or target.numel() < 2:
            return False
        return any(
            one.dim() > 1
            and one.shape[-1] > 1
            and one.numel() == target.numel()
            and bool((one.flatten() == target.flatten()).all())
            for one in self._indices
        )

    def _attention(self, original: Any) -> Any:
        def attention(*args: Any, **named: Any) -> Any:
            mask = named.get("attn_mask", args[3] if len(args) > 3 else None)
            self._safely(self._look_at_attention, mask, named.get("is_causal", args[5] if len(args) > 5 else False))
            return original(*args, **named)

        return attention

    def _look_at_attention(self, mask: Any, causal: Any) -> None:
        self._causal = self._causal or bool(causal) or _is_causal(mask)

    def _difference(self, original: Any) -> Any:
        def difference(one: Tensor, other: Any) -> Any:
            if isinstance(other, Tensor):
                self._safely(self._note_broadcast, one, other)
            return original(one, other)

        return difference

    def _note_broadcast(self, one: Tensor, other: Tensor) -> None:
        """A prediction of shape (N, 1) and a target of shape (N,) make N x N differences."""
        shapes = sorted((tuple(one.shape), tuple(other.shape)), key=len)
        if len(shapes[0]) != 1 or shapes[1] != (*shapes[0], 1) or shapes[0][0] < 2 or one.requires_grad == other.requires_grad:
            return
        given, target = (one, other) if one.requires_grad else (other, one)
        self._look.broadcast.setdefault(where.caller(), (tuple(given.shape), tuple(target.shape)))

    # gradients

    def _cut(self, original: Any) -> Any:
        def detach(tensor: Tensor) -> Tensor:
            if not self._elsewhere() and tensor.requires_grad and torch.is_grad_enabled():
                self._look.cut.append(where.caller())
            result: Tensor = original(tensor)
            return result

        return detach

    def _clearing(self, original: Any) -> Any:
        def zero_grad(*args: Any, **named: Any) -> Any:
            if not self._elsewhere():
                self._cleared_at = where.caller()
            return original(*args, **named)

        return zero_grad

    def before_backward(self, tensors: Any) -> None:
        self._safely(self._look_at_gradients, tensors)

    def _look_at_gradients(self, tensors: Any) -> None:
        self._cleared_at = ""
        optimizers = self._optimizers()
        for optimizer in optimizers:
            self._backward_since.add(id(optimizer))
            if not self._clean.get(id(optimizer), False):
                self._clean[id(optimizer)] = not any(_has_gradient(p) for p in _some(_tensors(optimizer)))
        roots = [tensors] if isinstance(tensors, Tensor) else [one for one in tensors if isinstance(one, Tensor)]
        if any(_is_plain(root) and root.is_floating_point() and not bool(torch.isfinite(root).all()) for root in roots):
            self._look.not_finite.append(where.caller())
        if optimizers:
            self._follow(roots, {id(p) for optimizer in optimizers for p in _tensors(optimizer)})

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        self._safely(self._look_at_update, optimizer)

    def _look_at_update(self, optimizer: torch.optim.Optimizer) -> None:
        for frame in where.own_frames(sys._getframe(1)):
            self._look.step_lines.add(where.place(frame.f_code.co_filename, frame.f_lineno))
        tensors, number = list(_tensors(optimizer)), id(optimizer)
        if number in self._backward_since:
            look = self._look
            look.updates += 1
            if not any(_has_gradient(p) for p in tensors):
                look.without_gradient.append(self._cleared_at or where.caller())
            if not self._clean.get(number, True) and number in self._updated:
                look.kept_gradients.append(where.caller())
            self._updated.add(number)
        self._backward_since.discard(number)
        self._clean.pop(number, None)

    def _follow(self, roots: Iterable[Tensor], trained: set[int]) -> None:
        """Which weights this backward pass reaches, and which of its nodes lead to no weight that an optimizer updates."""
        order, leaves = _nodes(root.grad_fn for root in roots)
        if not order:
            return
        ours = {node: id(leaf) in trained or not isinstance(leaf, nn.Parameter) for node, leaf in leaves.items()}
        if not any(id(leaf) in trained for leaf in leaves.values()):
            return
        useful: dict[Any, bool] = {}
        for node in order:  # a node comes after those that it leads to
            useful[node] = ours[node] if node in ours else any(useful.get(one, True) for one, _ in node.next_functions if one)
        look = self._look
        self._trained |= trained
        self._reached |= {id(leaf) for leaf in leaves.values()}
        for leaf in leaves.values():
            if isinstance(leaf, nn.Parameter) and id(leaf) not in trained:
                look.untrained[id(leaf)] = (leaf.numel(), True)
        for node in order:
            if node not in leaves:
                needless, whole = look.nodes.get(node.name(), (0, 0))
                look.nodes[node.name()] = (needless + (not useful[node]), whole + 1)

    def _note_registered(self) -> None:
        registered = {id(p) for known in self._outer if (module := known()) is not None for p in module.parameters()}
        look = self._look
        look.untrained = {one: (elements, one in registered) for one, (elements, _) in look.untrained.items()}
        look.stale = bool(registered and self._trained - registered - self._reached)


def _two(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    given = args[0] if args else named.get("input")
    target = args[1] if len(args) > 1 else named.get("target")
    return given if isinstance(given, Tensor) else None, target if isinstance(target, Tensor) else None


def _is_one_class(scores: Tensor, target: Tensor) -> bool:
    """Of several: where there are two, one of them may be rare."""
    if (
        target.dim() != 1
        or target.is_floating_point()
        or len(target) < _BATCH
        or scores.dim() != 2
        or scores.shape[1] < _CLASSES
    ):
        return False
    return bool((target == target[0]).all())


def _made_by(tensor: Tensor) -> str:
    """Whether the tensor is the result of a softmax or a sigmoid."""
    node = tensor.grad_fn
    for _ in range(8):
        if node is None:
            return ""
        name = node.name()
        if name.startswith("Softmax"):
            return _SOFTMAX
        if name.startswith("Sigmoid"):
            return _SIGMOID
        following = [one for one, _ in node.next_functions if one is not None]
        if not name.startswith(_PASSED_THROUGH) or len(following) != 1:
            return ""
        node = following[0]
    return ""


def _is_causal(mask: Any) -> bool:
    if not isinstance(mask, Tensor) or mask.dim() < 2 or mask.shape[-1] < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    first, last = mask.reshape(-1, *mask.shape[-2:])[0, 0, -1], mask.reshape(-1, *mask.shape[-2:])[0, -1, 0]
    if mask.dtype == torch.bool:
        return not bool(first) and bool(last)
    return bool(first < -1e3) and bool(last > -1e3)


def _tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _some(tensors: Iterable[Tensor], count: int = 8) -> list[Tensor]:
    every = list(tensors)
    return every[:: max(len(every) // count, 1)]


def _has_gradient(tensor: Tensor) -> bool:
    gradient = tensor.grad
    return gradient is not None and (not _is_plain(gradient) or gradient.layout != torch.strided or bool(gradient.any()))


def _is_plain(tensor: Tensor) -> bool:
    """A DTensor's values are on several processes, and only one of them is observed: asking for them would wait for ever."""
    return type(tensor) in (Tensor, nn.Parameter)


def _nodes(roots: Iterable[Any]) -> tuple[list[Any], dict[Any, Tensor]]:
    """The nodes of a graph, each after those that it leads to, and the leaf of each that has one. Empty if it is too large."""
    order: list[Any] = []
    leaves: dict[Any, Tensor] = {}
    seen: set[Any] = set()
    stack = [(root, False) for root in roots if root is not None]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
            continue
        if node in seen:
            continue
        if len(seen) >= _MOST_NODES:
            return [], {}
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves[node] = leaf
        stack.append((node, True))
        stack.extend((one, False) for one, _ in node.next_functions if one is not None and one not in seen)
    return order, leaves
