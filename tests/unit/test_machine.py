"""Devices, facts, meters, a world of one process, and NVML."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from nvml_stub import NvmlStub

from flatout.base.errors import MachineError, UsageError
from flatout.machine import host
from flatout.machine.device import device_name, pick_device
from flatout.machine.facts import LIBRARIES, fingerprint, read_facts
from flatout.machine.meters import Meters
from flatout.machine.nvml import NoGpus, NvmlGpus
from flatout.machine.reading import MeterReading
from flatout.world.world import World

CPU = torch.device("cpu")


# devices


@pytest.fixture
def cpu_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)


@pytest.fixture
def gpu_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)


@pytest.mark.usefixtures("cpu_box")
def test_without_a_gpu_only_the_cpu_can_be_chosen() -> None:
    assert pick_device() == pick_device("cpu") == pick_device(CPU) == CPU
    assert device_name(CPU)
    with pytest.raises(MachineError, match=r"'cuda:1' .* no accelerator.* set device to 'auto' or 'cpu'"):
        pick_device("cuda:1")
    with pytest.raises(UsageError, match="'auto' or 'cpu'; got 'gpu'"):
        pick_device("gpu")


@pytest.mark.usefixtures("gpu_box")
def test_only_existing_gpus_can_be_chosen() -> None:
    assert pick_device() == pick_device("cuda") == torch.device("cuda:0")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    assert pick_device("cpu") == CPU
    with pytest.raises(MachineError, match="this machine has 2 cuda devices; set device to 'cuda:0' to 'cuda:1'"):
        pick_device("cuda:2")
    with pytest.raises(MachineError, match="2 cuda devices; set device to 'auto', 'cpu' or 'cuda'"):
        pick_device("mps")


def test_one_process_is_a_world() -> None:
    world = World()
    total = torch.ones(3)
    world.barrier()
    assert world.sum_(total) is total and world.is_first and (world.rank, world.size) == (0, 1)


# facts


def test_facts_of_this_machine_are_complete_and_json() -> None:
    facts = read_facts()
    assert facts.cpu.model and 1 <= facts.cpu.usable_cores <= facts.cpu.logical_cores
    assert 0 < facts.memory_available_bytes <= facts.memory_total_bytes
    assert set(facts.libraries) == set(LIBRARIES) and facts.libraries["numpy"]
    assert json.loads(json.dumps(facts.to_dict()))["torch"] == torch.__version__


def test_fingerprint_depends_only_on_what_ceilings_depend_on() -> None:
    facts = read_facts()
    assert fingerprint(facts) == fingerprint(replace(facts, memory_available_bytes=1, swap_used_bytes=5, libraries={}))
    assert fingerprint(facts) != fingerprint(replace(facts, torch_threads=facts.torch_threads + 1))
    assert fingerprint(facts) != fingerprint(replace(facts, driver="999.1"))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_container_limits_are_read_in_both_versions(tmp_path: Path) -> None:
    write(tmp_path / "v2/cpu.max", "150000 100000\n")
    write(tmp_path / "v2/memory.max", "1000000\n")
    write(tmp_path / "open/cpu.max", "max 100000\n")
    write(tmp_path / "open/memory.max", "max\n")
    write(tmp_path / "v1/cpu/cpu.cfs_quota_us", "400000\n")
    write(tmp_path / "v1/cpu/cpu.cfs_period_us", "100000\n")
    write(tmp_path / "v1/memory/memory.limit_in_bytes", str(2**63 - 4096))
    assert host.cgroup_cores(tmp_path / "v2") == 1.5 and host.cgroup_memory_bytes(tmp_path / "v2") == 1_000_000
    assert host.cgroup_cores(tmp_path / "open") is None and host.cgroup_memory_bytes(tmp_path / "open") is None
    assert host.cgroup_cores(tmp_path / "v1") == 4.0 and host.cgroup_memory_bytes(tmp_path / "v1") is None
    assert host.cgroup_cores(tmp_path / "none") is None


# NVML


def test_gpus_are_matched_by_uuid_when_only_some_are_visible() -> None:
    gpus = NvmlGpus(NvmlStub(), lambda: {"GPU-1": "cuda:0"})  # as with CUDA_VISIBLE_DEVICES=1
    hidden, visible = gpus.facts()
    assert (hidden.device, visible.device) == (None, "cuda:0")
    assert gpus.driver == "580.95" and visible.capability == "9.0"
    assert visible.throttle_reasons == ("hardware thermal slowdown",)  # idle is not throttling
    assert visible.pcie_width is None  # not supported: unknown
    meters = Meters(torch.device("cuda:0"), gpus)
    assert meters.read() == MeterReading(123.4, 5.0, 41.0, 1501.0, 0.5, 10**8)
    assert meters.why_unavailable == ""


def test_an_unreadable_gpu_meter_is_none_and_named() -> None:
    meters = Meters(
        torch.device("cuda:0"), NvmlGpus(NvmlStub(unknown=("nvmlDeviceGetTemperature",)), lambda: {"GPU-1": "cuda:0"})
    )
    assert meters.read().temperature_c is None and meters.read().power_w == 123.4
    assert "temperature_c" in meters.why_unavailable and "cuda:0" in meters.why_unavailable


def test_without_nvml_everything_is_unavailable_with_a_reason() -> None:
    meters = Meters(torch.device("cuda:0"), NoGpus("no driver answers"))
    assert meters.read() == MeterReading() and meters.why_unavailable == "no driver answers"
    assert "mps" in Meters(torch.device("mps")).why_unavailable


# the host's meters


def test_host_energy_keeps_counting_when_the_counter_wraps(tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    write(zone / "max_energy_range_uj", "10000000")
    write(zone / "energy_uj", "9000000")
    write(tmp_path / "intel-rapl:0:0/energy_uj", "1")  # a part of the package: counting it would count twice
    meters = Meters(CPU, powercap=tmp_path)
    first = meters.read()
    write(zone / "energy_uj", "1000000")
    second = meters.read()
    assert (first.energy_j, second.energy_j) == (9.0, 11.0)
    assert first.power_w is None and second.power_w is not None and second.power_w > 0
    assert meters.why_unavailable == "" and second.memory_used_bytes


def test_unreadable_host_energy_is_none_with_a_reason(tmp_path: Path) -> None:
    absent = Meters(CPU, powercap=tmp_path)
    assert absent.read().energy_j is None and absent.read().power_w is None and "no energy counter" in absent.why_unavailable
    write(tmp_path / "intel-rapl:0/max_energy_range_uj", "1000")
    forbidden = Meters(CPU, powercap=tmp_path)
    assert forbidden.read().energy_j is None and "only root" in forbidden.why_unavailable
