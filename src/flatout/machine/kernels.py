"""Typical kernels: how much of the ceilings each kind reaches. They are measured for the kinds that a model has.

The first convolution of a process takes seconds, while algorithms are tried: a model without any does not wait for that.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.machine.rates import MATMUL_DTYPES, Unavailable, first_line, tf32_products
from flatout.measure.clock import time_repeats
from flatout.measure.counts import count_step
from flatout.measure.groups import ATTENTION, CONVOLUTIONS, PRODUCTS

CURVED, RANDOM = "curved functions", "random numbers"
COMPUTING = (PRODUCTS, CONVOLUTIONS, ATTENTION)  # bound by arithmetic; all other kinds are bound by bytes
_MOST = 50

Kernel = tuple[str, str]  # kind and format


def share_name(kind: str, named: str) -> str:
    """What a typical kernel is kept under: its kind, and its format if that is not fp32."""
    return kind if named == "fp32" else f"{kind} {named}"


def typical_kernels(device: torch.device, kinds: Collection[str] | None = None, *, quick: bool = False) -> Iterator[Kernel]:
    """Those that are worth a measurement here, of all kinds or of some. `quick`: in the formats that a plan begins with."""
    for named in ("fp32", "bf16") if quick or device.type == "cpu" else ("fp32", "tf32", "bf16", "fp16"):
        for kind in _KINDS:
            asked = kinds is None or kind in kinds
            if asked and (kind in COMPUTING or named != "tf32"):  # a format of products
                yield kind, named


def kernel_per_s(kind: str, named: str, device: torch.device, limit_s: float) -> list[float]:
    """FLOP/s of a typical kernel where its kind computes, else bytes/s as counted; forward and back where there is a back."""
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, generator=generator).to(MATMUL_DTYPES[named]).requires_grad_()

    def both_ways() -> None:
        output = forward()
        if output.requires_grad:
            torch.autograd.grad(output, inputs, output.detach())

    random = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with tf32_products(named == "tf32", device), random, warnings.catch_warnings():
        # the thread of a process' first backward looks for a context of its own, and says so
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
        try:
            inputs, forward = _KINDS[kind](drawn, device.type != "cpu")
            counts = count_step(both_ways)
            seconds = _few_or_more(both_ways, device, limit_s)
        except (RuntimeError, NotImplementedError) as error:
            raise Unavailable(first_line(error)) from error
    return [(counts.flops if kind in COMPUTING else counts.bytes) / s for s in seconds]


def _few_or_more(fn: Callable[[], object], device: torch.device, limit_s: float) -> list[float]:
    """Of something that has been called: there is much to measure, and on busy cores all of it is slow."""
    seconds = time_repeats(fn, 3, 1, device)
    more = min(_MOST, math.floor(limit_s / max(min(seconds), 1e-6))) - len(seconds)
    return seconds + (time_repeats(fn, more, 0, device) if more > 0 else [])


Drawn = Callable[..., Tensor]  # of a shape
Made = tuple[tuple[Tensor, ...], Callable[[], Tensor]]  # what gets a gradient, and the way forward


def _linear(drawn: Drawn, large: bool) -> Made:
    x, weight = (drawn(2**15, 768), drawn(3072, 768)) if large else (drawn(512, 256), drawn(256, 256))
    return (x, weight), lambda: F.linear(x, weight)


def _convolution(drawn: Drawn, large: bool) -> Made:
    """In the order of its kernels: turning other orders into it is a matter of bytes."""
    shapes = ((256, 128, 28, 28), (128, 128, 3, 3)) if large else ((32, 32, 16, 16), (32, 32, 3, 3))
    x, weight = (drawn(*shape).detach().to(memory_format=torch.channels_last).requires_grad_() for shape in shapes)
    return (x, weight), lambda: F.conv2d(x, weight, padding=1)


def _attention(drawn: Drawn, large: bool) -> Made:
    q, k, v = (drawn(32, 12, 1024, 64) if large else drawn(16, 4, 64, 32) for _ in range(3))
    return (q, k, v), lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _curved(drawn: Drawn, large: bool) -> Made:
    x = _handed_on(drawn, large)
    return (x,), lambda: F.gelu(F.gelu(x, approximate="tanh")).softmax(-1)


def _random(drawn: Drawn, large: bool) -> Made:
    x = _handed_on(drawn, large).detach()
    return (), lambda: x.bernoulli_(0.9)


def _handed_on(drawn: Drawn, large: bool) -> Tensor:
    """From layer to layer. In small models too much for the nearest cache of a core, in large ones for any cache of a GPU."""
    return drawn(2**15, 1024) if large else drawn(4096, 128)


_KINDS: dict[str, Callable[[Drawn, bool], Made]] = {
    PRODUCTS: _linear,
    CONVOLUTIONS: _convolution,
    ATTENTION: _attention,
    CURVED: _curved,
    RANDOM: _random,
}
