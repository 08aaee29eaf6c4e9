"""Measurements of single rates, each a short benchmark on random data: zeros would flatter hardware that saves power on them.

Every function returns seconds of repeats or rates of them; none leaves a setting or a random state changed behind it.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout.measure.clock import synchronize, time_repeats
from flatout.measure.counts import count_step
from flatout.measure.groups import ATTENTION, CONVOLUTIONS, PRODUCTS

MATMUL_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}
_FEWEST, _MOST = 5, 50
_BEARABLE_S = 1.0
_REST_S, _BURST = 0.2, 20  # a GPU at its power limit slows down: a ceiling is what a short burst after a rest reaches
_OPS_A_REPEAT = 500
_TINY_LAYERS = 10

CURVED, RANDOM = "curved functions", "random numbers"
COMPUTING = (PRODUCTS, CONVOLUTIONS, ATTENTION)  # bound by arithmetic; all other kinds are bound by bytes


class Unavailable(Exception):
    """There is nothing to measure here; the message says why. It never leaves this layer."""


def matmul_flops_per_s(name: str, device: torch.device, limit_s: float, largest: int) -> tuple[list[float], str]:
    """Rates of square products, and their size: `largest`, or as far as a slow format can be taken in bearable time."""
    if device.type == "cpu" and name in ("tf32", "fp8"):
        raise Unavailable("a format of GPUs")
    if name == "tf32" and device.type != "cuda":
        raise Unavailable(f"{device.type} has no such format")
    with _tf32(name == "tf32", device):
        size = 256
        while True:
            try:
                product = _product(MATMUL_DTYPES[name], size, device)
                product()
                once_s = min(time_repeats(product, 2, 0, device))
            except (RuntimeError, NotImplementedError) as error:
                raise Unavailable(_first_line(error)) from error
            if size >= largest or once_s * 8 * _FEWEST > _BEARABLE_S:
                break
            size *= 2
        if device.type != "cpu":
            time.sleep(_REST_S)
        seconds = _repeat_for(product, device, limit_s, most=_BURST)
    return [2 * size**3 / s for s in seconds], f"{size} x {size}"


def copy_bytes_per_s(device: torch.device, limit_s: float) -> list[float]:
    """Memory to memory on one device; bytes read and bytes written both count."""
    size_bytes = 2**28 if device.type == "cpu" else 2**29
    source = _random_bytes(size_bytes, device)
    target = torch.empty_like(source)
    return [2 * size_bytes / s for s in _repeat_for(lambda: target.copy_(source), device, limit_s)]


def link_bytes_per_s(device: torch.device, limit_s: float, *, pinned: bool, to_device: bool) -> list[float]:
    """Between the host's memory and the device's."""
    if device.type == "cpu":
        raise Unavailable("no accelerator")
    size_bytes = 2**28
    here = _random_bytes(size_bytes, torch.device("cpu"))
    if pinned:
        try:
            here = here.pin_memory()
        except RuntimeError as error:
            raise Unavailable(f"memory can't be pinned: {_first_line(error)}") from error
    there = _random_bytes(size_bytes, device)
    source, target = (here, there) if to_device else (there, here)
    return [size_bytes / s for s in _repeat_for(lambda: target.copy_(source, non_blocking=pinned), device, limit_s)]


def peer_bytes_per_s(device: torch.device, limit_s: float) -> list[float]:
    """From this accelerator to the next one."""
    count = 0 if device.type == "cpu" else torch.accelerator.device_count()
    if count < 2:
        raise Unavailable("fewer than two accelerators")
    size_bytes = 2**28
    source = _random_bytes(size_bytes, device)
    target = torch.empty_like(source, device=torch.device(device.type, ((device.index or 0) + 1) % count))
    return [size_bytes / s for s in _repeat_for(lambda: target.copy_(source, non_blocking=True), device, limit_s)]


def launch_seconds(device: torch.device, limit_s: float) -> list[float]:
    """What one small operator costs when Python calls it: below this much work an operator is all overhead."""
    value = _random_bytes(64, device).float()

    def many() -> None:
        for _ in range(_OPS_A_REPEAT):
            value.neg_()
        synchronize(device)

    return [s / _OPS_A_REPEAT for s in _repeat_for(many, torch.device("cpu"), limit_s)]


def operator_seconds(device: torch.device, limit_s: float) -> list[float]:
    """What one operator costs within a step, forward and back: in a chain of layers so small that nothing else counts."""
    generator = torch.Generator(device).manual_seed(0)
    layers = [nn.utils.skip_init(nn.Linear, 8, 8, device=device) for _ in range(_TINY_LAYERS)]
    chain = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    for weights in chain.parameters():
        weights.detach().normal_(generator=generator)
    x = torch.randn(8, 8, device=device, generator=generator)

    def step() -> None:
        chain.zero_grad()
        chain(x).sum().backward()
        synchronize(device)

    operators = count_step(step).operators
    return [s / operators for s in _repeat_for(step, torch.device("cpu"), limit_s)]


def kernel_seconds(device: torch.device, limit_s: float) -> list[float]:
    """What one small kernel takes where nobody has to call it: in a graph that is replayed."""
    if device.type != "cuda":
        raise Unavailable("only CUDA has graphs of kernels")
    value = _random_bytes(64, device).float().neg_()  # a kernel that was never called can't be loaded into a graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        for _ in range(_OPS_A_REPEAT):
            value.neg_()
    return [s / _OPS_A_REPEAT for s in _repeat_for(graph.replay, device, limit_s)]


def share_name(kind: str, named: str) -> str:
    """What a typical kernel is kept under: its kind, and its format if that is not fp32."""
    return kind if named == "fp32" else f"{kind} {named}"


def typical_kernels(device: torch.device) -> Iterator[tuple[str, str]]:
    """Kind and format of all kernels that are worth a measurement here."""
    for named in ("fp32", "bf16") if device.type == "cpu" else ("fp32", "tf32", "bf16", "fp16"):
        for kind in _KERNELS:
            if kind in COMPUTING or named != "tf32":  # a format of products
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
    with _tf32(named == "tf32", device), random, warnings.catch_warnings():
        # the thread of a process' first backward looks for a context of its own, and says so
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
        try:
            inputs, forward = _KERNELS[kind](drawn, device.type != "cpu")
            counts = count_step(both_ways)
            seconds = _few_or_more(both_ways, device, limit_s)
        except (RuntimeError, NotImplementedError) as error:
            raise Unavailable(_first_line(error)) from error
    return [(counts.flops if kind in COMPUTING else counts.bytes) / s for s in seconds]


def disk_bytes_per_s(folder: Path, size_bytes: int, repeats: int) -> tuple[list[float], str]:
    """Reading a fresh file front to back, the page cache dropped before each pass where the system allows it."""
    rates = []
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(os.urandom(size_bytes))
            os.fsync(file.fileno())
            piece = bytearray(2**22)
            for _ in range(repeats):
                if sys.platform == "linux":
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.seek(0)
                began_s = time.perf_counter()
                while file.readinto(piece):
                    pass
                rates.append(size_bytes / (time.perf_counter() - began_s))
    except OSError as error:
        raise Unavailable(f"{folder} can't be written: {error.strerror or error}") from error
    if _is_in_memory(folder):
        return rates, f"{folder} is in memory, not on a disk"
    return rates, str(folder) if sys.platform == "linux" else "from the page cache, which can't be dropped here"


def _is_in_memory(folder: Path) -> bool:
    whole = folder.resolve()
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    nearest = next((mounts[place] for place in (whole, *whole.parents) if place in mounts), "")
    return nearest in ("tmpfs", "ramfs")


def _repeat_for(fn: Callable[[], object], device: torch.device, limit_s: float, most: int = _MOST) -> list[float]:
    """As many repeats as fit the limit, within reason."""
    fn()
    once_s = max(min(time_repeats(fn, 2, 0, device)), 1e-6)
    return time_repeats(fn, max(_FEWEST, min(most, math.floor(limit_s / once_s))), 0, device)


def _few_or_more(fn: Callable[[], object], device: torch.device, limit_s: float) -> list[float]:
    """As above, of something that has been called: there is much to measure, and on busy cores all of it is slow."""
    seconds = time_repeats(fn, 3, 1, device)
    more = min(_MOST, math.floor(limit_s / max(min(seconds), 1e-6))) - len(seconds)
    return seconds + (time_repeats(fn, more, 0, device) if more > 0 else [])


def _product(dtype: torch.dtype, size: int, device: torch.device) -> Callable[[], object]:
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    if dtype == torch.float8_e4m3fn:
        scale = torch.ones((), device=device)
        columns = b.t()  # the hardware takes the second factor by columns
        return lambda: torch._scaled_mm(a, columns, scale, scale, out_dtype=torch.bfloat16, use_fast_accum=True)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


@contextmanager
def _tf32(on: bool, device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if on else "ieee"
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=on):
            yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def _random_bytes(size_bytes: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(0)
    block_bytes = min(size_bytes, 2**22)  # drawing all of it would take longer than the measurement
    block = torch.randint(0, 256, (block_bytes,), dtype=torch.uint8, device=device, generator=generator)
    return block.repeat(size_bytes // block_bytes)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


Drawn = Callable[..., Tensor]  # of a shape
Kernel = tuple[tuple[Tensor, ...], Callable[[], Tensor]]  # what gets a gradient, and the way forward


def _linear(drawn: Drawn, large: bool) -> Kernel:
    x, weight = (drawn(2**15, 768), drawn(3072, 768)) if large else (drawn(512, 256), drawn(256, 256))
    return (x, weight), lambda: F.linear(x, weight)


def _convolution(drawn: Drawn, large: bool) -> Kernel:
    """In the order of its kernels: turning other orders into it is a matter of bytes."""
    shapes = ((256, 128, 28, 28), (128, 128, 3, 3)) if large else ((32, 32, 16, 16), (32, 32, 3, 3))
    x, weight = (drawn(*shape).detach().to(memory_format=torch.channels_last).requires_grad_() for shape in shapes)
    return (x, weight), lambda: F.conv2d(x, weight, padding=1)


def _attention(drawn: Drawn, large: bool) -> Kernel:
    q, k, v = (drawn(32, 12, 1024, 64) if large else drawn(16, 4, 64, 32) for _ in range(3))
    return (q, k, v), lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _curved(drawn: Drawn, large: bool) -> Kernel:
    x = _handed_on(drawn, large)
    return (x,), lambda: F.gelu(F.gelu(x, approximate="tanh")).softmax(-1)


def _random(drawn: Drawn, large: bool) -> Kernel:
    x = _handed_on(drawn, large).detach()
    return (), lambda: x.bernoulli_(0.9)


def _handed_on(drawn: Drawn, large: bool) -> Tensor:
    """From layer to layer. In small models too much for the nearest cache of a core, in large ones for any cache of a GPU."""
    return drawn(2**15, 1024) if large else drawn(4096, 128)


_KERNELS: dict[str, Callable[[Drawn, bool], Kernel]] = {
    PRODUCTS: _linear,
    CONVOLUTIONS: _convolution,
    ATTENTION: _attention,
    CURVED: _curved,
    RANDOM: _random,
}
