"""The first part of a proof: one step of a candidate compared with one of the reference, from one state and batch, dropout off.

Losses alone show neither a doubled gradient under Adam nor a skipped bias. So each parameter's gradient, update and buffer is
compared with the reference (fp32, eager): exactly where it must be equal, else within the rounding error of the precision.
The second part, many steps, is in `paired`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flatout.base.errors import UsageError, did_you_mean
from flatout.measure.differences import (
    Difference,
    StepSnapshot,
    differences,
    faults,
    length,
    not_finite,
    percent,
    rounding,
    typical_element,
)
from flatout.measure.step_noise import APART, StepNoise

__all__ = ["LIMITS", "DifferenceLimits", "StepSnapshot", "StepCheck", "check_step", "repeat_noise"]

Allowed = Mapping[tuple[str, str], float]  # by kind and place


@dataclass(frozen=True)
class StepCheck:
    """If `passed` is False, `why` says what is wrong, or begins with "not enough evidence", which is a rejection too."""

    passed: bool
    why: str
    figures: dict[str, float | str]


@dataclass(frozen=True)
class DifferenceLimits:
    """The largest difference allowed for each kind. `noise`: share of a typical gradient element below which none counts."""

    loss: float
    norm: float
    length: float
    angle: float
    noise: float
    buffer: float
    update: float = 1e-3  # the optimizer always works in fp32; fused kernels differed only by rounding


# The largest differences measured between correct steps and eager fp32, with torch.autocast on a CPU. Small: an MLP, a convnet
# with batch norm, GPTs of 2 and 12 layers, at steps 0 to 600; deep: a ResNet-50 on 32 pixels, 16 or 64 images a batch, step 40.
#
#                                   loss     norm     length    cosine     noise     buffer
#   fp32    small, channels_last*   2e-7              1.000     1.0000     6e-7      2e-7
#           deep, channels_last     1e-7     1.000    1.002     0.9998               4e-7
#   fp16    small                   4e-4     1.001    1.004     0.9992     5e-4      3e-4
#           deep, 16                2e-5     1.000    1.02      0.985
#   bf16    small                   8e-3     1.01     1.03      0.993      5e-3      2e-3
#           deep                    1e-3     1.004    1.24      0.953                4e-4
#
# * also compiled and in micro-batches; compiled bf16 was within 1e-5 of the cosines of eager bf16. "noise" is a bias before
# batch norm, or of the keys in attention. At step 0 the deep model can't be judged in bf16 (cosines near 0; 0.9986 even in
# fp32): prove from a state that has trained a little. The limits lie between these figures and those of a bug: a ratio of 2,
# a cosine near 0. tf32 and fp8 were not measured: tf32 has fp16's digits and its limits, fp8 has bf16's limits, widened.
LIMITS = {
    "fp32": DifferenceLimits(loss=1e-4, norm=0.01, length=0.05, angle=math.acos(0.99), noise=1e-4, buffer=1e-3),
    "tf32": DifferenceLimits(loss=2e-3, norm=0.03, length=0.1, angle=math.acos(0.96), noise=4e-3, buffer=0.01),
    "fp16": DifferenceLimits(loss=2e-3, norm=0.03, length=0.1, angle=math.acos(0.96), noise=4e-3, buffer=0.01),
    "bf16": DifferenceLimits(loss=0.02, norm=0.05, length=0.3, angle=math.acos(0.9), noise=0.02, buffer=0.03),
    "fp8": DifferenceLimits(loss=0.05, norm=0.15, length=0.4, angle=math.acos(0.8), noise=0.1, buffer=0.1),
}
# Above these limits a doubled gradient or a skipped bias would pass, so nothing can be proven.
_USELESS = {"loss": 0.2, "norm": math.log(1.6), "length": math.log(1.6), "angle": math.acos(0.5), "update": 0.5, "buffer": 0.5}
_OF_A_GRADIENT = ("length", "angle", APART)
_FIGURES = {
    "loss": "loss_error", "norm": "norm_ratio", "length": "worst_norm_ratio", "angle": "worst_cosine",
    "update": "worst_update_error", "buffer": "worst_buffer_error",
}  # fmt: skip
_WIDENING = 3.0  # the repeat is one sample of the reference's noise, the candidate is another
_UNTOLD_SHARE = 0.1
_COUNTS = 0.1
_LITTLE = 0.1  # of a typical element: the gradient of a parameter without effect, such as a bias before batch norm
_SHOWN = 4


def check_step(
    reference: StepSnapshot,
    candidate: StepSnapshot,
    precision: str,
    again: StepSnapshot | None = None,
    noise: StepNoise | None = None,
) -> StepCheck:
    """Did `candidate` compute the same as `reference`, within the rounding of `precision`?

    `again` is a second step of the reference; its differences widen the limits. For a model that is not deterministic it is a
    plain repeat; for an ill-conditioned model, a step from weights rounded to the candidate's format. `noise`: such
    differences, already measured. A gradient whose direction is lost in this noise is judged by its size, compared with the
    model's typical gradient.
    """
    if precision not in LIMITS:
        raise UsageError(f"unknown precision {precision!r}; {did_you_mean(precision, LIMITS)}")
    limits = LIMITS[precision]
    if doubt := _no_evidence(reference, again):
        return StepCheck(False, f"not enough evidence: {doubt}", {"precision": precision})
    own = noise or StepNoise()
    if again is not None:
        own = own.with_more(repeat_noise(reference, again, precision))
    measured = differences(reference, candidate, limits.noise)
    hidden = _hidden(own)
    allowed = {
        (d.kind, d.at): _limit(limits, d.kind) + _WIDENING * max(own.size(d.kind, d.at), own.usual(d.kind)) for d in measured
    }
    # noise within the limit still counts in the figures
    within = [d for d in measured if not d.is_noise or d.size <= allowed[d.kind, d.at]]
    found = [d for d in within if (d.kind == APART) == (d.at in hidden) or d.kind not in _OF_A_GRADIENT]
    figures = _figures(found, allowed, precision)
    figures["gradients_lost_in_noise"] = float(len({d.at for d in measured if d not in within} | hidden))
    if own.repeats:
        figures["repeats_of_the_baseline"] = float(own.repeats)
    if wrong := [*faults(reference, candidate), *_too_large(found, allowed)]:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        return StepCheck(False, "; ".join(wrong[:_SHOWN]) + more, figures)
    if doubt := _untold([d for d in within if d.kind != APART], allowed, _without_effect(reference)):
        return StepCheck(False, f"not enough evidence: {doubt}", figures)
    return StepCheck(True, _agreement(figures), figures)


def repeat_noise(reference: StepSnapshot, again: StepSnapshot, precision: str) -> StepNoise:
    return StepNoise.of(differences(reference, again, LIMITS[precision].noise))


def counts(noise: StepNoise, precision: str) -> bool:
    """Is it a tenth of a limit somewhere? Then one repeat may have been close by luck."""
    limits = LIMITS[precision]
    return any(size > _COUNTS * _limit(limits, kind) for (kind, _), size in noise.sizes.items())


def _limit(limits: DifferenceLimits, kind: str) -> float:
    return limits.noise if kind == APART else float(getattr(limits, kind))


def _hidden(own: StepNoise) -> frozenset[str]:
    """Parameters whose gradient's direction is not the same in two runs of the baseline."""
    return frozenset(at for (kind, at), size in own.sizes.items() if kind == "angle" and _WIDENING * size > _USELESS["angle"])


def _without_effect(reference: StepSnapshot) -> frozenset[str]:
    known = {name: gradient for name, gradient in reference.gradients.items() if gradient is not None}
    little = _LITTLE * typical_element(known.values())
    return frozenset(name for name, one in known.items() if length(one) < little * math.sqrt(max(one.numel(), 1)))


def _no_evidence(reference: StepSnapshot, again: StepSnapshot | None) -> str | None:
    if broken := next(not_finite(reference, reference.buffers), None):
        return f"the baseline is broken: {broken}"
    if not any(gradient is not None and gradient.any() for gradient in reference.gradients.values()):
        return "all gradients of the baseline are zero"
    if not any(length(update) > 2 * rounding(reference, name) for name, update in reference.expected.items()):
        return "no update is larger than the rounding of its weights: use the full learning rate for this step"
    if again is not None and (odd := next(faults(reference, again), None)):
        return f"two runs of the baseline differ: {odd}"
    return None


def _untold(found: list[Difference], allowed: Allowed, without_effect: frozenset[str]) -> str | None:
    """A few parameters may be lost in the reference's noise if the others can be judged."""
    for kind, useless in _USELESS.items():
        ours = [d.at for d in found if d.kind == kind]
        noisy = [at for at in ours if allowed[kind, at] > useless and at not in without_effect]
        if len(noisy) > _UNTOLD_SHARE * len(ours):
            return f"two runs of the baseline differ too much ({kind} at {noisy[0]}, {len(noisy)} in all)"
    return None


def _too_large(found: list[Difference], allowed: Allowed) -> Iterator[str]:
    """The worst difference of each kind, and the number of others."""
    for kind in (*_USELESS, APART):
        over = [d for d in found if d.kind == kind and d.size > allowed[kind, d.at]]
        if over:
            worst = max(over, key=lambda d: d.size / allowed[kind, d.at])
            others = f" (and {len(over) - 1} more)" if len(over) > 1 else ""
            yield f"{worst.words}; {_bound(kind, allowed[kind, worst.at])}{others}"


def _bound(kind: str, limit: float) -> str:
    if kind == "angle":
        return f"at least {_figure(kind, limit):.4g} is required"
    if kind in ("norm", "length"):
        return f"{math.exp(-limit):.4g} to {math.exp(limit):.4g} are allowed"
    return f"{percent(limit)} is allowed"


def _figures(found: list[Difference], allowed: Allowed, precision: str) -> dict[str, float | str]:
    """The worst of each kind in its usual unit, its place, and the limit there."""
    figures: dict[str, float | str] = {"precision": precision}
    for kind, name in _FIGURES.items():
        worst = max((d for d in found if d.kind == kind), key=lambda d: d.size, default=Difference(kind, "", 0.0, ""))
        figures[name] = _figure(kind, worst.size)
        figures[f"{name}_at"] = worst.at
        figures[f"{name}_allowed"] = _figure(kind, allowed.get((kind, worst.at), _limit(LIMITS[precision], kind)))
    return figures


def _figure(kind: str, size: float) -> float:
    """An angle as its cosine, a logarithm as its ratio (longer over shorter), a share unchanged."""
    if kind == "angle":
        return math.cos(min(size, math.pi))
    return math.exp(size) if kind in ("norm", "length") else size


def _agreement(figures: Mapping[str, float | str]) -> str:
    def of(kind: str) -> float:
        return float(figures[_FIGURES[kind]])

    where = f" ({figures['worst_cosine_at']})" if figures["worst_cosine_at"] else ""
    return (
        f"one step agrees within {figures['precision']}: loss within {percent(of('loss'))}, cosine of each gradient at least "
        f"{of('angle'):.5g}{where}, lengths within {percent(of('length') - 1)}, updates within {percent(of('update'))}, "
        f"buffers within {percent(of('buffer'))}"
    )
