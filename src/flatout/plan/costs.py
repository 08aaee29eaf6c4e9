"""Cost of one operator on a machine: arithmetic, memory traffic, and the call itself.

The probe measures the cost of a call and times the model's operators one by one. Operators that were not timed are assumed to
reach a share of the ceilings, which are those of large products and large copies. The shares below come from single operators
on one thread of a Xeon (CPU), and from steps of GPT-2, ResNet-50 and two small models on an H200 (GPU).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from flatout.engine.settings import Settings
from flatout.machine.ceilings import Ceilings, MeasuredRate
from flatout.measure.counts import Operation
from flatout.measure.groups import ATTENTION, CONVOLUTIONS, NORMALISATION, PRODUCTS

_FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float8_e4m3fn: "fp8"}
_COMPUTING = (PRODUCTS, CONVOLUTIONS, ATTENTION)  # limited by arithmetic; all other kinds by memory traffic
_CURVED, _RANDOM, _POOLING, _PLAIN = "curved functions", "random numbers", "pooling", "plain"
_NAMES = {
    _POOLING: ("pool",),
    _RANDOM: ("bernoulli", "dropout", "uniform", "normal_", "rand"),
    _CURVED: ("gelu", "tanh", "sigmoid", "silu", "exp", "log", "erf", "softmax", "pow", "sin", "cos"),
}
_NO_PART_OF_A_KERNEL = ("sort", "topk", "cumsum", "cumprod", "rnn", "lstm", "gru", "fft", "linalg")
_CPU_SHARES = {
    PRODUCTS: 0.9, CONVOLUTIONS: 0.8, ATTENTION: 0.35, NORMALISATION: 0.6, _CURVED: 0.4, _RANDOM: 0.06,
    _POOLING: 0.2, _PLAIN: 0.9,
}  # fmt: skip
_GPU_SHARES = {
    PRODUCTS: 0.8, CONVOLUTIONS: 0.42, ATTENTION: 0.45, NORMALISATION: 0.6, _CURVED: 0.8, _RANDOM: 0.8,
    _POOLING: 0.8, _PLAIN: 0.8,
}  # fmt: skip
# Factor on that share by format: slow units are easier to keep busy, tf32 reads twice the bytes it computes with, and small
# products do not fill the matrix unit of a CPU.
_CPU_FORMATS = {"bf16": 0.4, "fp16": 0.4}
_GPU_FORMATS = {"fp32": 1.2, "tf32": 0.75}
# In units of the launch ceiling: one operator in a step (autograd, views, Python around it), one in compiled code, entering
# compiled code in both passes, and on the device the start and end of any kernel.
_CPU_CALLS = (7.0, 3.0, 120.0, 0.0)
_GPU_CALLS = (3.3, 1.0, 30.0, 0.5)
# Upper limit for the gap between two kernels that the host launches one by one, however far ahead it is: a step of GPT-2 with
# 652 deterministic kernels took 119.25 ms on an H200, and 117.61 ms as a graph.
_GAP_S = 2.5e-6
# Passes over a convolution's input and output to convert them to the kernel's layout and back, without channels_last.
_REORDERED, _REORDERED_HALF = 2, 6


@dataclass(frozen=True)
class Cost:
    """Seconds. `start_s` is on the device, `call_s` on the host."""

    compute_s: float = 0.0
    memory_s: float = 0.0
    start_s: float = 0.0
    call_s: float = 0.0


@dataclass(frozen=True)
class Rates:
    """The rates that the operators reach under one set of settings."""

    products: Mapping[str, float]  # FLOP/s by format
    plain_format: str  # format in which float32 products are computed
    bytes_per_s: float
    operators: Mapping[str, float | None]  # seconds of the operators timed on this machine
    shares: Mapping[str, float]  # share of the ceilings by kind, for all other operators
    launch_s: float
    call_s: float
    start_s: float
    gap_s: float
    entry_s: float  # once per step
    channels_last: bool
    on_cpu: bool

    @classmethod
    def of(cls, ceilings: Ceilings, settings: Settings) -> Rates:
        on_cpu = torch.device(settings.device).type == "cpu"
        eager, compiled, entry, start = _CPU_CALLS if on_cpu else _GPU_CALLS
        is_compiled = settings.compile != "off"
        launch_s = _value(ceilings.launch_s)
        operator_s = _value(ceilings.operator_s) or launch_s * eager
        return cls(
            products={name: rate.value for name, rate in ceilings.matmul_flops.items()},
            plain_format="fp32" if settings.precision == "fp32" else "tf32",
            bytes_per_s=ceilings.copy_bytes_per_s.value if ceilings.copy_bytes_per_s else float("inf"),
            operators=ceilings.operators,
            shares=_CPU_SHARES if on_cpu else _GPU_SHARES,
            launch_s=launch_s,
            call_s=0.0 if settings.graph else launch_s * compiled if is_compiled else operator_s,
            start_s=_value(ceilings.kernel_s) or launch_s * start,
            gap_s=0.0 if on_cpu or settings.graph else min(_GAP_S, launch_s),
            entry_s=launch_s * entry if is_compiled and not settings.graph else 0.0,
            channels_last=settings.channels_last,
            on_cpu=on_cpu,
        )

    def cost(self, one: Operation) -> Cost:
        busy_s = self._busy_s(one)
        start_s = self.start_s + self.gap_s
        if busy_s is not None:
            computes = one.flops / self._peak(one) > one.bytes / self.bytes_per_s
            return Cost(busy_s * computes, busy_s * (not computes), start_s, self.call_s)
        moved_s = one.bytes / self.bytes_per_s
        if one.group not in _COMPUTING:
            parts = one.parts or (one,)
            alone_s = sum(self._arithmetic_s(part) for part in parts if _stays_alone(part))
            fused_s = max((self._arithmetic_s(part) for part in parts if not _stays_alone(part)), default=0.0)
            compute_s = alone_s + fused_s  # in a fused kernel the slowest part counts
            return Cost(compute_s, moved_s / self.shares[_PLAIN], start_s, self.call_s)
        compute_s = one.flops / self._flops_per_s(one)
        reordered_s = self._turns(one) * moved_s
        if compute_s >= moved_s:
            return Cost(compute_s, reordered_s, start_s, self.call_s)
        return Cost(0.0, moved_s + reordered_s, start_s, self.call_s)

    def _busy_s(self, one: Operation) -> float | None:
        """Measured time without the start of the kernel. Not used for tf32 products: they have the same key as float32 ones."""
        seconds = self.operators.get(one.key)
        tf32 = one.group in _COMPUTING and one.dtype == torch.float32 and self.plain_format == "tf32"
        if seconds is None or (tf32 and not self.on_cpu):
            return None
        return max(0.0, seconds - (self.launch_s if self.on_cpu else self.start_s))

    def _format(self, one: Operation) -> str:
        wanted = _FORMATS.get(one.dtype, self.plain_format)
        return wanted if wanted in self.products else "fp32"

    def _peak(self, one: Operation) -> float:
        return self.products.get(self._format(one), float("inf"))

    def _flops_per_s(self, one: Operation) -> float:
        of_format = (_CPU_FORMATS if self.on_cpu else _GPU_FORMATS).get(self._format(one), 1.0)
        return self._peak(one) * self.shares[one.group] * of_format

    def _turns(self, one: Operation) -> int:
        if one.group != CONVOLUTIONS or self.channels_last:
            return 0
        return _REORDERED if one.dtype == torch.float32 else _REORDERED_HALF

    def _arithmetic_s(self, one: Operation) -> float:
        """Time beyond moving its bytes: it remains when a compiler saves the bytes."""
        moved_s = one.bytes / self.bytes_per_s
        busy_s = self._busy_s(one)
        taken_s = moved_s / self.shares[_kind(one)] if busy_s is None else busy_s
        return max(0.0, taken_s - moved_s / self.shares[_PLAIN])


def _value(measured: MeasuredRate | None) -> float:
    return measured.value if measured else 0.0


def _kind(one: Operation) -> str:
    if one.group == NORMALISATION:
        return one.group
    return next((kind for kind, names in _NAMES.items() if any(name in one.name for name in names)), _PLAIN)


def _stays_alone(one: Operation) -> bool:
    """The compiler does not fuse it."""
    return any(name in one.name for name in _NO_PART_OF_A_KERNEL)
