"""Compares two training steps: faults where both must be equal, sizes where rounding may differ."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

_RESOLUTION = 2.0**-23  # of a float32 weight; an update is the difference of two weights


@dataclass(frozen=True)
class StepSnapshot:
    """The results of one step, from one state and one batch, with dropout off. Tensors are floats, by parameter name."""

    losses: tuple[float, ...]  # mean loss of the step's batch, then of further batches from the same state
    loss_dtype: str  # of the scalar that backward was called on, such as "float32"
    weight: float  # samples or tokens that the loss is a mean of
    norm: float | None  # of all gradients, before clipping; None: not clipped or not known
    gradients: Mapping[str, Tensor | None]  # as the optimizer saw them, after clipping
    updates: Mapping[str, Tensor]  # weight after minus before
    expected: Mapping[str, Tensor]  # the update that torch's own fp32 optimizer computes from these gradients
    buffers: Mapping[str, Tensor]  # after the step
    before: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # weights and buffers before the step; if given, more checks are possible
    # several steps from the same weights, each with its own batch: the first dimension of gradients and updates counts them
    stacked: bool = False

    def to(self, device: torch.device | str) -> StepSnapshot:
        def moved(tensors: Mapping[str, Any]) -> dict[str, Any]:
            return {name: None if tensor is None else tensor.to(device) for name, tensor in tensors.items()}

        gradients, updates, expected = moved(self.gradients), moved(self.updates), moved(self.expected)
        return replace(
            self,
            gradients=gradients,
            updates=updates,
            expected=expected,
            buffers=moved(self.buffers),
            before=moved(self.before),
        )


@dataclass(frozen=True)
class Difference:
    """`size` is 0 for no difference. Kinds: loss, norm (of all gradients), length and angle (of one gradient; |ln(ratio)| and
    radians), apart (of one gradient, as a multiple of the model's typical gradient element), update, buffer (as shares)."""

    kind: str
    at: str
    size: float
    words: str
    is_noise: bool = False  # too small, compared with the model's other gradients, to count


# must be equal


def faults(reference: StepSnapshot, other: StepSnapshot) -> Iterator[str]:
    yield from not_finite(other, reference.buffers)
    if other.weight != reference.weight:
        yield (
            f"the loss covers {other.weight:.10g} samples or tokens, the baseline's covers {reference.weight:.10g}: "
            "part of the batch is missing or counted twice"
        )
    yield from _loss_faults(reference, other)
    if (other.norm is None) != (reference.norm is None):
        has, lacks = ("the baseline", "the candidate") if other.norm is None else ("the candidate", "the baseline")
        yield f"{has} reports a gradient norm and {lacks} does not: clip gradients in both or in neither"
    yield from _missing(reference, other)
    yield from _misshapen(reference, other)
    yield from _not_moved(reference, other)


def not_finite(snapshot: StepSnapshot, known_buffers: Mapping[str, Tensor]) -> Iterator[str]:
    """A buffer may contain infinities, as masks do: only infinities that the reference does not have are faults."""
    if not snapshot.losses or not all(map(math.isfinite, snapshot.losses)):
        yield f"the loss is not finite: {', '.join(map(str, snapshot.losses)) or 'no loss was returned'}"
    if snapshot.norm is not None and not math.isfinite(snapshot.norm):
        yield f"the gradient norm is not finite: {snapshot.norm}"
    for what, tensors in (("gradient", snapshot.gradients), ("update", snapshot.updates)):
        for name, tensor in tensors.items():
            if tensor is not None and not math.isfinite(length(tensor)):
                yield f"the {what} of {name} is not finite"
    for name, buffer in snapshot.buffers.items():
        known = known_buffers.get(name)
        if buffer.isnan().any() or (buffer.isinf().any() and (known is None or not torch.equal(buffer.isinf(), known.isinf()))):
            yield f"the buffer {name} is not finite"


def _loss_faults(reference: StepSnapshot, other: StepSnapshot) -> Iterator[str]:
    if len(other.losses) != len(reference.losses):
        yield f"got {len(other.losses)} losses, the baseline has {len(reference.losses)}"
    if other.loss_dtype != reference.loss_dtype:
        yield f"the loss was computed in {other.loss_dtype}, the baseline's in {reference.loss_dtype}"
        return
    for short in (torch.bfloat16, torch.float16):
        if _all_fit(other.losses, short) and not _all_fit(reference.losses, short):
            yield f"the loss was computed in {str(short).removeprefix('torch.')}, then widened: all its values fit that format"
            return


def _all_fit(losses: tuple[float, ...], dtype: torch.dtype) -> bool:
    wide = torch.tensor(losses, dtype=torch.float64)
    return bool(wide.isfinite().all()) and torch.equal(wide.to(dtype).double(), wide)


def _missing(reference: StepSnapshot, other: StepSnapshot) -> Iterator[str]:
    for name in sorted(reference.gradients.keys() | other.gradients.keys()):
        asked, got = reference.gradients.get(name), other.gradients.get(name)
        if asked is not None and got is None:
            yield f"{name} has no gradient, but has one in the baseline: was the parameter skipped?"
        elif asked is None and got is not None:
            yield f"{name} has a gradient, but has none in the baseline"
    for what, wanted, given in (("update", reference.updates, other.updates), ("buffer", reference.buffers, other.buffers)):
        for name in sorted(wanted.keys() ^ given.keys()):
            yield f"the {what} of {name} exists only in the {'baseline' if name in wanted else 'candidate'}"
    for name in sorted(other.updates.keys() ^ other.expected.keys()):
        yield f"the update of {name} can't be compared: it must be in both updates and expected"


def _misshapen(reference: StepSnapshot, other: StepSnapshot) -> Iterator[str]:
    kinds: tuple[tuple[str, Mapping[str, Tensor | None], Mapping[str, Tensor | None]], ...] = (
        ("gradient", other.gradients, reference.gradients),
        ("update", other.updates, other.expected),
        ("buffer", other.buffers, reference.buffers),
    )
    for what, given, wanted in kinds:
        for name in sorted(given.keys() & wanted.keys()):
            got, asked = given[name], wanted[name]
            if got is not None and asked is not None and got.shape != asked.shape:
                yield f"the {what} of {name} has shape {tuple(got.shape)}, expected {tuple(asked.shape)}"


def _not_moved(reference: StepSnapshot, other: StepSnapshot) -> Iterator[str]:
    for name, after, asked in _both(other.buffers, reference.buffers):
        before = other.before.get(name)
        if torch.equal(after, asked):
            continue
        if before is not None and torch.equal(after, before):
            yield f"the buffer {name} is stale: the step did not change it, the baseline's step did"
        elif not asked.is_floating_point():
            yield f"the buffer {name} differs from the baseline's, and integers must be equal: was it not updated?"
    for name, update, expected in _both(other.updates, other.expected):
        if not update.any() and length(expected) > rounding(other, name):
            yield f"{name} did not change, but the optimizer should have changed it: is its parameter group frozen?"


# may differ by rounding


def differences(reference: StepSnapshot, other: StepSnapshot, noise: float) -> list[Difference]:
    """Sizes of all differences. Values that are missing or not finite are left out: `faults` reports them."""
    found = (
        *_loss_differences(reference, other),
        *_gradient_differences(reference, other, noise),
        *(_update_difference(other, name, update, expected) for name, update, expected in _both(other.updates, other.expected)),
        *_buffer_differences(reference, other),
    )
    return [difference for difference in found if math.isfinite(difference.size)]


def _loss_differences(reference: StepSnapshot, other: StepSnapshot) -> Iterator[Difference]:
    typical = sum(map(abs, reference.losses)) / len(reference.losses)
    for batch, (asked, got) in enumerate(zip(reference.losses, other.losses, strict=False)):
        off = _share(abs(got - asked), max(abs(asked), typical))
        words = f"the loss is {got:.6g}, the baseline's is {asked:.6g}: off by {percent(off)}"
        yield Difference("loss", f"batch {batch}", off, words)
    if reference.norm is not None and other.norm is not None:
        ratio = _share(other.norm, reference.norm)
        words = (
            f"the gradient norm before clipping is {ratio:.4g} times the baseline's ({other.norm:.4g}, {reference.norm:.4g})"
        )
        yield Difference("norm", "all parameters", _log_ratio(other.norm, reference.norm), words)


def _gradient_differences(reference: StepSnapshot, other: StepSnapshot, noise: float) -> Iterator[Difference]:
    """Some true gradients are zero (a key bias in attention, a bias before batch norm), so only noise of random direction is
    left. A difference is marked as noise if it is small compared with the model's typical non-zero element; zeros are left out
    because an embedding has gradients only in the rows that were read. A bias's difference is also marked if it is no larger,
    per element, than its weight's: both sum the same terms, and the weight is judged."""
    known = [gradient for gradient in reference.gradients.values() if gradient is not None]
    typical = typical_element(known)
    weight, off = torch.empty(0), 0.0  # the previous parameter, and its mean difference per element
    first = int(reference.stacked)  # dimension of the parameter itself
    for name, got, asked in _both(other.gradients, reference.gradients):
        apart, theirs, ours = length(got - asked), length(asked), length(got)
        is_its_bias = asked.ndim - first == 1 < weight.ndim - first and asked.shape[first] in weight.shape[first : first + 2]
        is_noise = apart <= max(noise * typical, off if is_its_bias else 0.0) * math.sqrt(asked.numel())
        weight, off = asked, apart / math.sqrt(max(asked.numel(), 1))
        angle = _angle(theirs, ours, apart)
        longer = f"the gradient of {name} is {_share(ours, theirs):.4g} times as long as the baseline's"
        yield Difference("length", name, _log_ratio(ours, theirs), longer, is_noise)
        elsewhere = f"the gradient of {name} has another direction: cosine {math.cos(angle):.4f}"
        yield Difference("angle", name, angle, elsewhere, is_noise)
        far = _share(apart, typical * math.sqrt(max(asked.numel(), 1)))
        off_by = (
            f"the gradient of {name}, whose direction is lost in noise, is off by {percent(far)} of the model's typical one"
        )
        yield Difference("apart", name, far, off_by, is_noise)


def _update_difference(snapshot: StepSnapshot, name: str, update: Tensor, expected: Tensor) -> Difference:
    """Compared with the update expected from the candidate's own gradients: their noise cancels, so the limit can be tight."""
    rest = update - expected
    off = _share(max(length(rest) - rounding(snapshot, name), 0.0), length(expected))
    words = f"the update of {name} does not match its gradient: off by {percent(off)}"
    return Difference("update", name, off, words + _likely_cause(update, expected, rest, snapshot.before.get(name)))


def _likely_cause(update: Tensor, expected: Tensor, rest: Tensor, weight: Tensor | None) -> str:
    if weight is not None and _alike(rest, weight) > 0.9:
        return ", in the direction of the weight (different weight decay?)"
    if _alike(update, expected) > 0.9999:
        return f", {_share(length(update), length(expected)):.3g} times as long (different learning rate?)"
    return ""


def _buffer_differences(reference: StepSnapshot, other: StepSnapshot) -> Iterator[Difference]:
    for name, got, asked in _both(other.buffers, reference.buffers):
        if asked.is_floating_point() and not torch.equal(got, asked):
            off = _share(
                length((got - asked).nan_to_num(0.0, math.inf, math.inf)), _buffer_scale(name, asked, reference.buffers)
            )
            yield Difference("buffer", name, off, f"the buffer {name} is off by {percent(off)} of its size")


def _buffer_scale(name: str, buffer: Tensor, buffers: Mapping[str, Tensor]) -> float:
    """A running mean may be near zero, so its scale also includes the running standard deviation."""
    size = length(buffer[buffer.isfinite()])
    variance = buffers.get(name.removesuffix("running_mean") + "running_var") if name.endswith("running_mean") else None
    return size if variance is None else max(size, 0.1 * length(variance.clamp(min=0).sqrt()))


# geometry


def typical_element(gradients: Collection[Tensor]) -> float:
    elements = sum(int(gradient.count_nonzero()) for gradient in gradients)
    return math.hypot(*map(length, gradients)) / math.sqrt(max(elements, 1))


def length(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def rounding(snapshot: StepSnapshot, name: str) -> float:
    """The largest update length that rounding of the weights alone can cause. Unknown weights count as 1."""
    weight = snapshot.before.get(name)
    return _RESOLUTION * (length(weight) if weight is not None else math.sqrt(snapshot.expected[name].numel()))


def percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 10 else f"{share:.3g} times"


def _both(
    given: Mapping[str, Tensor] | Mapping[str, Tensor | None], wanted: Mapping[str, Tensor] | Mapping[str, Tensor | None]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    for name, got in given.items():
        asked = wanted.get(name)
        if got is not None and asked is not None and got.shape == asked.shape:
            yield name, got, asked


def _angle(a: float, b: float, apart: float) -> float:
    """By the law of cosines, which stays precise for nearly equal vectors."""
    if not a or not b:
        return math.pi / 2 if a or b else 0.0
    lost = (apart**2 - (a - b) ** 2) / (2 * a * b)
    return math.acos(1 - min(max(lost, 0.0), 2.0))


def _alike(a: Tensor, b: Tensor) -> float:
    """|cosine|."""
    whole = length(a) * length(b)
    return abs(float((a.double() * b.double()).sum())) / whole if whole else 0.0


def _share(part: float, whole: float) -> float:
    return part / max(whole, 1e-30)


def _log_ratio(a: float, b: float) -> float:
    return abs(math.log(max(a, 1e-30) / max(b, 1e-30)))
