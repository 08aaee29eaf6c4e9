"""Ceilings, energy and meters on a real GPU."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from flatout.base.tree import to_text
from flatout.machine.ceilings import Ceilings, measure_ceilings
from flatout.machine.device import device_name
from flatout.machine.meters import Meters
from flatout.machine.probe import doc, probe
from flatout.measure.clock import Stopwatch, time_repeats

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_products_are_faster_on_tensor_cores(ceilings: Ceilings, device: torch.device) -> None:
    rates = {name: measured.value for name, measured in ceilings.matmul_flops.items()}
    assert rates["fp32"] > 1e12
    if torch.cuda.get_device_capability(device) >= (8, 0):
        assert rates["bf16"] > 1.5 * rates["fp32"] and rates["fp16"] > 1.5 * rates["fp32"] and rates["tf32"] > rates["fp32"]
    if torch.cuda.get_device_capability(device) >= (9, 0):
        assert rates["fp8"] > rates["bf16"]
    assert max(rates.values()) < 1e16


def test_memory_links_and_launches_are_within_reason(ceilings: Ceilings) -> None:
    assert ceilings.copy_bytes_per_s is not None and 1e11 < ceilings.copy_bytes_per_s.value < 2e13
    pinned, pageable = ceilings.host_to_device_pinned_bytes_per_s, ceilings.host_to_device_pageable_bytes_per_s
    assert pinned is not None and pageable is not None and 1e9 < pinned.value < 1e12
    assert pageable.value < 1.1 * pinned.value
    assert ceilings.device_to_host_bytes_per_s is not None and ceilings.device_to_host_bytes_per_s.value > 1e9
    assert ceilings.launch_s is not None and 1e-6 < ceilings.launch_s.value < 1e-4


def test_kernels_and_calls_are_within_reason(ceilings: Ceilings) -> None:
    assert ceilings.launch_s is not None and ceilings.operator_s is not None and ceilings.kernel_s is not None
    assert ceilings.kernel_s.value < ceilings.operator_s.value < 1e-3 and ceilings.kernel_s.value < 2e-5


def test_measuring_leaves_precision_and_randomness_alone(device: torch.device) -> None:
    before, state = torch.backends.cuda.matmul.fp32_precision, torch.cuda.get_rng_state(device)
    convolving = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    measure_ceilings(device, quick=True)
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark) == convolving
    assert torch.backends.cuda.matmul.fp32_precision == before
    assert torch.equal(state, torch.cuda.get_rng_state(device))


def test_device_clock_agrees_with_the_wall(device: torch.device) -> None:
    a = torch.randn(4096, 4096, device=device)
    time_repeats(lambda: a @ a, 5, 5, device)
    with Stopwatch(device) as watch:
        seconds = time_repeats(lambda: a @ a, 50, 0, device)
    assert sum(seconds) == pytest.approx(watch.elapsed_s, rel=0.2)


def test_energy_rises_under_load_and_meters_read(device: torch.device) -> None:
    meters = Meters(device)
    before = meters.read()
    if before.energy_j is None:
        pytest.skip(meters.why_unavailable)
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    began_s = time.monotonic()
    while time.monotonic() - began_s < 1.0:
        a @ a
        torch.cuda.synchronize(device)
    after = meters.read()
    assert after.energy_j is not None and after.energy_j - before.energy_j > 20
    assert after.power_w is not None and after.power_w > 20
    assert after.memory_used_bytes is not None and after.memory_used_bytes > a.nbytes
    assert after.temperature_c is not None and 10 < after.temperature_c < 110
    assert after.clock_mhz is not None and after.utilization is not None


def test_the_probe_names_the_gpu_and_is_kept(device: torch.device, tmp_path: Path) -> None:
    first = probe(device, tmp_path, quick=True)
    print(to_text(doc(first)))
    assert [gpu.device for gpu in first.facts.gpus].count(str(device)) == 1
    assert device_name(device) in to_text(doc(first))
    second = probe(device, tmp_path, quick=True)
    assert second.cached and second.ceilings == first.ceilings
