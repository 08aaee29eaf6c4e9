"""Where a call's time goes: microseconds by operator, as onnxruntime's profiler has them, and of the whole call."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from flatout.packaging.onnx_libraries import library

_CALLS, _MOST_S = 60, 1.0
_DEVICE_CALLS = 20


def profiled(model: Path, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    runtime = library("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    plain = runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    whole_us, calls = _timed_us(plain, given)
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    watched = runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    for _ in range(calls):
        watched.run(None, given)
    file = Path(watched.end_profiling())
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in json.loads(file.read_text()):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times[event["args"]["op_name"], event["name"]].append(event["dur"])
    file.unlink()
    spent: dict[str, float] = defaultdict(float)
    for (operator, _), some in times.items():
        spent[operator] += _usual_us(some)
    share = min(1.0, whole_us / max(sum(spent.values()), 1e-9))  # the profiler slows short operators
    return {"whole_us": whole_us, "operators_us": {name: share * us for name, us in spent.items()}}


def _usual_us(times: list[float]) -> float:
    """The mean without the slowest quarter: other processes hit any operator, and the first calls are slow. The profiler counts
    whole microseconds, so a median would say 0 of a short one."""
    usual = sorted(times)[: max(1, 3 * len(times) // 4)]
    return sum(usual) / len(usual)


def _timed_us(session: Any, given: dict[str, Any]) -> tuple[float, int]:
    for _ in range(3):
        session.run(None, given)
    times: list[float] = []
    while len(times) < _CALLS and (sum(times) < _MOST_S or len(times) < 5):
        began_s = time.perf_counter()
        session.run(None, given)
        times.append(time.perf_counter() - began_s)
    return 1e6 * sorted(times)[len(times) // 2], len(times)


_PRODUCT = ("gemm", "nvjet", "cutlass", "scaled_mm", "conv", "xmma", "_mm")  # in names of kernels


def profiled_on_device(call: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """As `profiled`, with kernels by kind: products and others. Of a device without kernels, the whole call alone."""
    for _ in range(3):
        call()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        activities = [torch.profiler.ProfilerActivity.CUDA]
    began_s = time.perf_counter()
    for _ in range(_DEVICE_CALLS):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    whole_us = 1e6 * (time.perf_counter() - began_s) / _DEVICE_CALLS
    with torch.profiler.profile(activities=activities, acc_events=True) as seen:
        for _ in range(_DEVICE_CALLS):
            call()
    spent = {"MatMul": 0.0, "Other": 0.0}
    for event in seen.key_averages():
        us = event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total
        spent["MatMul" if any(part in event.key.lower() for part in _PRODUCT) else "Other"] += us / _DEVICE_CALLS
    share = min(1.0, whole_us / max(sum(spent.values()), 1e-9))
    return {"whole_us": whole_us, "operators_us": {name: share * us for name, us in spent.items()}}
