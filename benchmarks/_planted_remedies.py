"""Remedies that only benchmarks/boost_proof.py applies: harmless ones, and bugs that a remedy could have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from _noisy_kernels import _noisy
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.all import REMEDIES
from flatout.boost.remedies.remedy import Offer, Remedy
from flatout.doctor.diagnosis import Diagnosis

Apply = Callable[[Hooks], None]


class Planted(Remedy):
    def __init__(self, name: str, apply: Apply, precision: str) -> None:
        self.name, self._apply, self.precision = name, apply, precision

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        return []

    def apply(self, value: Any, hooks: Hooks) -> None:
        self._apply(hooks)


def _weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]


def _on_gradients(change: Callable[[list[Tensor]], None]) -> Apply:
    def apply(hooks: Hooks) -> None:
        def before(optimizer: Any, args: Any, named: Any) -> None:
            with torch.no_grad():
                change(_weights(optimizer))

        register_optimizer_step_pre_hook(before)

    return apply


def _on_updates(change: Callable[[Tensor, Tensor], Tensor]) -> Apply:
    """Gets a weight before and after the step."""

    def apply(hooks: Hooks) -> None:
        held: dict[int, list[Tensor]] = {}

        def before(optimizer: Any, args: Any, named: Any) -> None:
            if optimizer.param_groups[0].get("foreach") is not False:  # that is the plain one that an update is compared with
                held[id(optimizer)] = [weight.detach().clone() for weight in _weights(optimizer)]

        def after(optimizer: Any, args: Any, named: Any) -> None:
            for weight, was in zip(_weights(optimizer), held.pop(id(optimizer), []), strict=False):
                weight.data.copy_(change(was, weight.detach()))

        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)

    return apply


def _on_inputs(change: Callable[[Tensor], Tensor]) -> Apply:
    def apply(hooks: Hooks) -> None:
        hooks.inputs.append(
            lambda module, args, named: (
                (change(args[0]), *args[1:]) if args and any(True for _ in module.parameters()) else args,
                named,
            )
        )

    return apply


def _on_outputs(change: Callable[[Tensor], Tensor]) -> Apply:
    def changed(module: nn.Module, found: Any) -> Any:
        return change(found) if isinstance(found, Tensor) and found.requires_grad else found

    return lambda hooks: hooks.outputs.append(changed)


def _on_parts(kind: Any, change: Callable[[nn.Module], None]) -> Apply:
    def apply(hooks: Hooks) -> None:
        def prepare(module: nn.Module) -> bool:
            for part in module.modules():
                if isinstance(part, kind):
                    change(part)
            return True

        hooks.prepare.append(prepare)

    return apply


def _doubled(weights: list[Tensor]) -> None:
    for weight in weights:
        weight.grad.mul_(2)  # type: ignore[union-attr]


def _skipped_bias(weights: list[Tensor]) -> None:
    biases = [weight for weight in weights if weight.ndim == 1]
    if biases:
        biases[-1].grad.zero_()  # type: ignore[union-attr]


def _frozen(weights: list[Tensor]) -> None:
    max(weights, key=Tensor.numel).grad = None


def _turned(weights: list[Tensor]) -> None:
    middle = [weight for weight in weights if weight.ndim > 1]
    middle[len(middle) // 2].grad.neg_()  # type: ignore[union-attr]


def _clipped(weights: list[Tensor]) -> None:
    torch.nn.utils.clip_grad_norm_(weights, 0.01)


def _stale(hooks: Hooks) -> None:
    def zero_grad(self: Any, *args: Any, **named: Any) -> None:
        return None

    hooks.patches.wrap(torch.optim.Optimizer, "zero_grad", lambda original: zero_grad)


def _unmasked(hooks: Hooks) -> None:
    def wrap(original: Any) -> Any:
        def attend(query: Tensor, key: Tensor, value: Tensor, *args: Any, **named: Any) -> Tensor:
            found: Tensor = original(query, key, value)
            return found

        return attend

    hooks.patches.wrap(F, "scaled_dot_product_attention", wrap)


def _twice_updated(norm: nn.Module) -> None:
    norm.momentum = 2 * norm.momentum  # type: ignore[assignment, operator]


def _kept_statistics(norm: nn.Module) -> None:
    norm.train = lambda mode=True: norm  # type: ignore[method-assign]
    for part in norm.modules():
        part.training = False


def _few_digits(layer: nn.Module) -> None:
    layer.register_forward_pre_hook(lambda module, args: (args[0] + (args[0] * 8).round() / 8 - args[0].detach(),))


def _as_tf32(hooks: Hooks) -> None:
    """Products of inputs with ten bits after the point."""
    for name in ("conv2d", "conv_transpose2d", "linear"):

        def wrap(original: Any) -> Any:
            def rounded(x: Tensor, weight: Tensor, *args: Any, **named: Any) -> Tensor:
                found: Tensor = original(_short(x), _short(weight), *args, **named)
                return found

            return rounded

        hooks.patches.wrap(F, name, wrap)


def _short(tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.float32:
        return tensor
    bits = tensor.detach().contiguous().view(torch.int32)
    rounded = ((bits + 4096) & ~8191).view(torch.float32)
    return tensor + (rounded - tensor.detach())


def _reordered(hooks: Hooks) -> None:
    """Another order of sums."""
    hooks.outputs.append(lambda module, found: _noisy(found, 1e-6) if isinstance(found, Tensor) else found)


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)

HARMLESS: dict[str, tuple[Apply, str]] = {"as tf32": (_as_tf32, "tf32"), "another order of sums": (_reordered, "fp32")}
BUGS: dict[str, tuple[Apply, str, tuple[str, ...]]] = {  # with the kinds of models that can have it; empty: all
    "doubled gradients": (_on_gradients(_doubled), "fp32", ()),
    "a bias without a gradient": (_on_gradients(_skipped_bias), "fp32", ()),
    "the largest layer frozen": (_on_gradients(_frozen), "fp32", ()),
    "one layer learns backwards": (_on_gradients(_turned), "fp32", ()),
    "clipped to a hundredth": (_on_gradients(_clipped), "fp32", ()),
    "more weight decay": (_on_updates(lambda was, now: now - 1e-3 * was), "fp32", ()),
    "half the learning rate": (_on_updates(lambda was, now: (was + now) / 2), "fp32", ()),
    "gradients of old steps": (_stale, "fp32", ()),
    "half the batch, twice": (_on_inputs(lambda x: torch.cat([x[: len(x) // 2]] * 2)), "fp32", ()),
    "labels of other rows": (_on_inputs(lambda x: x.roll(1, 0)), "fp32", ("cnn", "transformer", "mlp", "rnn")),
    "half of the gradient detached": (_on_outputs(lambda y: (y + y.detach()) / 2), "fp32", ()),
    "outputs twice as large": (_on_outputs(lambda y: 2 * y), "fp32", ()),
    "no mask": (_unmasked, "fp32", ("transformer",)),
    "statistics updated twice": (_on_parts(NORMS, _twice_updated), "fp32", ("cnn", "mlp", "gan")),
    "statistics as in evaluation": (_on_parts(NORMS, _kept_statistics), "fp32", ("cnn", "mlp", "gan")),
    "inputs with three digits": (_on_parts(LAYERS, _few_digits), "fp32", ("cnn", "mlp", "gan", "transformer")),
    "doubled gradients in bf16": (_on_gradients(_doubled), "bf16", ()),
    "half of the gradient detached in bf16": (_on_outputs(lambda y: (y + y.detach()) / 2), "bf16", ()),
    "one layer learns backwards in bf16": (_on_gradients(_turned), "bf16", ()),
    "labels of other rows in bf16": (_on_inputs(lambda x: x.roll(1, 0)), "bf16", ("cnn", "transformer", "mlp", "rnn")),
}


def register() -> None:
    """Before trials are forked."""
    for name, (apply, precision) in HARMLESS.items():
        REMEDIES[name] = Planted(name, apply, precision)
    for name, (apply, precision, _) in BUGS.items():
        REMEDIES[name] = Planted(name, apply, precision)


def bugs_of(kind: str) -> Iterator[str]:
    return (name for name, (_, _, kinds) in BUGS.items() if not kinds or kind in kinds)
