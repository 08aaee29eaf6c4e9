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


def test_the_counter_agrees_with_sampled_power_and_idle_power_is_below_that_of_work(device: torch.device) -> None:
    from flatout.machine.energy import GpuCounter, SampledPower, device_energy
    from flatout.machine.nvml import open_gpus
    from flatout.machine.rates import idle_watts

    gpus = open_gpus()
    meter = device_energy(device)
    if not isinstance(meter, GpuCounter):
        pytest.skip(f"this GPU has no counter: {meter.why_unavailable or meter.name}")
    idle = idle_watts(device, 0.5)
    sampled = SampledPower(lambda: gpus.power_w(device))
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    began_s, before = time.monotonic(), (meter.read_j(), sampled.read_j())
    while time.monotonic() - began_s < 8.0:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize(device)
    counted, added_up = meter.read_j() - before[0], sampled.read_j() - before[1]
    took_s = time.monotonic() - began_s
    sampled.close()
    assert counted == pytest.approx(added_up, rel=0.15)  # NVML's power is the mean of the last second, which began idle
    assert 5 < min(idle) <= max(idle) < counted / took_s


def test_a_run_on_a_gpu_says_what_it_used(device: torch.device, tmp_path: Path) -> None:
    import flatout as fo

    recipe = fo.Recipe(data=fo.data.digits(), model="mlp", batch=64, lr=1e-3, budget="5 s", evaluate=None)
    result = fo.run(recipe, runs=tmp_path, cache=None, planning="off").result
    used = result["energy"]
    assert used["device"]["meter"].startswith("NVML") and "meter" in used["host"]
    assert 20 < used["device"]["joules"] / result["wall_seconds"] < 1500
    assert sum(used["device"]["by_phase"].values()) == pytest.approx(used["device"]["joules"])


def test_a_power_limit_is_set_and_put_back_or_says_why_not(device: torch.device) -> None:
    from flatout.machine.power_limit import limited_power, power_limits, why_not_settable

    limits = power_limits(device)
    assert limits is not None
    why = why_not_settable(device)
    with limited_power(limits.least_w, device) as unlimited:
        now = power_limits(device)
        assert now is not None and (bool(unlimited) == bool(why)) and (unlimited or now.now_w == limits.least_w)
    after = power_limits(device)
    assert after is not None and after.now_w == limits.now_w
