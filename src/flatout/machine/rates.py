"""Measures single rates with short benchmarks on random data: zeros would be too fast on hardware that saves power on them.

Every function returns the seconds or rates of its repeats. None changes a setting or a random state.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from torch import nn

from flatout.machine.energy import device_energy
from flatout.machine.onednn import onednn_kept
from flatout.measure.clock import synchronize, time_repeats
from flatout.measure.counts import count_step

MATMUL_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}
# A CPU without bf16 instructions warns with 20 lines of C++ stack; torch continues with a slower kernel.
NO_SUCH_KERNEL = r"(?s)mkldnn_\w+ failed, switching to"
_FEWEST, _MOST = 5, 50
_BEARABLE_S = 1.0
_SMALLEST = 64  # a format without instructions takes 0.1 s for a product of 256 x 256
_REST_S, _BURST = 0.2, 20  # a GPU slows down at its power limit: the ceiling is the rate of a short burst after a pause
_OPS_A_REPEAT = 500
_TINY_LAYERS = 10


class Unavailable(Exception):
    """Not measurable here; the message says why. Caught inside this package."""


def matmul_flops_per_s(name: str, device: torch.device, limit_s: float, largest: int) -> tuple[list[float], str]:
    """Rates of square products, and their size: `largest`, or smaller if the format is too slow."""
    if device.type == "cpu" and name in ("tf32", "fp8"):
        raise Unavailable("GPUs only")
    if name == "tf32" and device.type != "cuda":
        raise Unavailable(f"{device.type} does not support this format")
    with tf32_products(name == "tf32", device), onednn_kept(MATMUL_DTYPES[name]):
        size = _SMALLEST
        bearable_s = min(_BEARABLE_S, 2.5 * limit_s) if device.type == "cpu" else _BEARABLE_S
        while True:
            try:
                product = _product(MATMUL_DTYPES[name], size, device)
                product()
                once_s = min(time_repeats(product, 2, 0, device))
            except (RuntimeError, NotImplementedError) as error:
                raise Unavailable(first_line(error)) from error
            if size >= largest or once_s * 8 * _FEWEST > bearable_s:
                break
            size *= 2
        if device.type != "cpu":
            time.sleep(_REST_S)
        seconds = _repeat_for(product, device, limit_s, most=_BURST)
    return [2 * size**3 / s for s in seconds], f"{size} x {size}"


def idle_watts(device: torch.device, limit_s: float) -> list[float]:
    """While nothing runs, with the device open to this process, as it is between two steps."""
    meter = device_energy(device)
    if meter.why_unavailable:
        raise Unavailable(meter.why_unavailable)
    torch.empty(1, device=device)
    synchronize(device)
    time.sleep(_REST_S)
    found = []
    for _ in range(3):
        began_j, began_s = meter.read_j(), time.monotonic()
        time.sleep(max(limit_s, 5 * meter.resolution_s))
        ended_j, took_s = meter.read_j(), time.monotonic() - began_s
        if began_j is not None and ended_j is not None:
            found.append((ended_j - began_j) / took_s)
    meter.close()
    if not found:
        raise Unavailable(f"the {meter.name} stopped answering")
    return found


def copy_bytes_per_s(device: torch.device, limit_s: float) -> list[float]:
    """Memory to memory on one device, counting bytes read and written."""
    size_bytes = 2**28 if device.type == "cpu" else 2**29
    source = _random_bytes(size_bytes, device)
    target = torch.empty_like(source)
    return [2 * size_bytes / s for s in _repeat_for(lambda: target.copy_(source), device, limit_s)]


def link_bytes_per_s(device: torch.device, limit_s: float, *, pinned: bool, to_device: bool) -> list[float]:
    """Between host and device memory."""
    if device.type == "cpu":
        raise Unavailable("no accelerator")
    size_bytes = 2**28
    here = _random_bytes(size_bytes, torch.device("cpu"))
    if pinned:
        try:
            here = here.pin_memory()
        except RuntimeError as error:
            raise Unavailable(f"memory can't be pinned: {first_line(error)}") from error
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
    """Cost of one small operator called from Python: smaller operators are all overhead."""
    value = _random_bytes(64, device).float()

    def many() -> None:
        for _ in range(_OPS_A_REPEAT):
            value.neg_()
        synchronize(device)

    return [s / _OPS_A_REPEAT for s in _repeat_for(many, torch.device("cpu"), limit_s)]


def operator_seconds(device: torch.device, limit_s: float) -> list[float]:
    """Cost of one operator in a step, forward and backward, measured on layers so small that only overhead counts."""
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
    """Time of one small kernel in a replayed graph, without a call from Python."""
    if device.type != "cuda":
        raise Unavailable("CUDA graphs only")
    value = _random_bytes(64, device).float().neg_()  # a kernel must run once before it can be captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        for _ in range(_OPS_A_REPEAT):
            value.neg_()
    return [s / _OPS_A_REPEAT for s in _repeat_for(graph.replay, device, limit_s)]


def disk_bytes_per_s(folder: Path, size_bytes: int, repeats: int) -> tuple[list[float], str]:
    """Read a new file from start to end, with the page cache dropped before each pass if the system allows it."""
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
        return rates, f"{folder} is in memory (tmpfs), not on a disk"
    return rates, str(folder) if sys.platform == "linux" else "read from the page cache, which can't be dropped on this system"


def _is_in_memory(folder: Path) -> bool:
    whole = folder.resolve()
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    nearest = next((mounts[place] for place in (whole, *whole.parents) if place in mounts), "")
    return nearest in ("tmpfs", "ramfs")


def _repeat_for(fn: Callable[[], object], device: torch.device, limit_s: float, most: int = _MOST) -> list[float]:
    """As many repeats as fit the time limit, between `_FEWEST` and `most`."""
    fn()
    once_s = max(min(time_repeats(fn, 2, 0, device)), 1e-6)
    return time_repeats(fn, max(_FEWEST, min(most, math.floor(limit_s / once_s))), 0, device)


def _product(dtype: torch.dtype, size: int, device: torch.device) -> Callable[[], object]:
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    if dtype == torch.float8_e4m3fn:
        scale = torch.ones((), device=device)
        columns = b.t()  # the hardware needs the second factor in column order
        return lambda: torch._scaled_mm(a, columns, scale, scale, out_dtype=torch.bfloat16, use_fast_accum=True)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


@contextmanager
def tf32_products(on: bool, device: torch.device) -> Iterator[None]:
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
    block_bytes = min(size_bytes, 2**22)  # random numbers for all of it would take longer than the measurement
    block = torch.randint(0, 256, (block_bytes,), dtype=torch.uint8, device=device, generator=generator)
    return block.repeat(size_bytes // block_bytes)


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
