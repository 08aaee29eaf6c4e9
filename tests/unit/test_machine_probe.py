"""Ceilings, the probe's cache and table, and advice on made-up machines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout.base.tree import to_data, to_text
from flatout.machine import probe as probing
from flatout.machine.advice import advise
from flatout.machine.ceilings import RATES, Ceilings, MeasuredRate, measure_ceilings
from flatout.machine.facts import CpuFacts, Facts
from flatout.machine.nvml import GpuFacts
from flatout.machine.probe import doc, probe
from flatout.machine.rates import MATMUL_DTYPES, Unavailable, disk_bytes_per_s, matmul_flops_per_s
from flatout.measure.counts import count_step
from flatout.world.links import ring_bytes_per_s
from flatout.world.world import World

CPU = torch.device("cpu")
GPU = GpuFacts(
    name="NVIDIA H200", uuid="GPU-1", device="cuda:0", memory_bytes=150 * 10**9, capability="9.0",
    pcie_generation=5, pcie_generation_max=5, pcie_width=16, pcie_width_max=16, power_limit_w=700.0, power_limit_max_w=700.0,
    clock_mhz=1980, clock_max_mhz=1980, throttle_reasons=("software power cap",), ecc=True,
)  # fmt: skip
HEALTHY = Facts(
    python="3.11.7", platform="Linux", torch="2.13.0+cu130", cuda="13.0", driver="580.95", accelerators=1,
    gpus=(GPU,), why_no_gpus="",
    cpu=CpuFacts("A CPU", physical_cores=16, logical_cores=32, affinity_cores=32, cgroup_cores=16.0),
    memory_total_bytes=128 * 10**9, memory_available_bytes=100 * 10**9, memory_limit_bytes=None, swap_used_bytes=0,
    shm_bytes=64 * 10**9, open_files_limit=65536, torch_threads=16, libraries={},
)  # fmt: skip
RATE = MeasuredRate(1e11, 0.9e11, 1.1e11, 20)
ON_GPU = Ceilings("cuda:0", {"fp32": RATE, "bf16": RATE}, RATE, RATE, RATE, RATE, None, None, replace(RATE, value=1e-5), RATE)
ON_CPU = replace(ON_GPU, device="cpu")


def with_gpu(**changes: Any) -> Facts:
    return replace(HEALTHY, gpus=(replace(GPU, **changes),))


SICK = {
    "unused GPU": (replace(with_gpu(device=None), accelerators=0, cuda=None), ON_CPU),
    "old driver": (replace(HEALTHY, driver="535.12"), ON_GPU),
    "slow link": (with_gpu(pcie_width=8), ON_GPU),
    "throttled": (with_gpu(throttle_reasons=("hardware thermal slowdown",)), ON_GPU),
    "power cap": (with_gpu(power_limit_w=400.0), ON_GPU),
    "no pinned memory": (HEALTHY, replace(ON_GPU, unavailable={"host_to_device_pinned_bytes_per_s": "memory can't be pinned"})),
    "too many threads": (replace(HEALTHY, torch_threads=32), ON_GPU),
    "idle cores": (replace(HEALTHY, torch_threads=1), ON_CPU),
    "small /dev/shm": (replace(HEALTHY, shm_bytes=64 * 2**20), ON_GPU),
    "few open files": (replace(HEALTHY, open_files_limit=256), ON_GPU),
    "swap in use": (replace(HEALTHY, swap_used_bytes=4 * 10**9), ON_GPU),
}


@pytest.mark.parametrize("name", SICK)
def test_each_problem_gets_its_advice(name: str) -> None:
    (advice,) = advise(*SICK[name])
    assert advice.name == name and advice.what and advice.cost and advice.remedy


def test_a_healthy_machine_gets_no_advice() -> None:
    assert advise(HEALTHY, ON_GPU) == advise(HEALTHY, ON_CPU) == []
    unknown = GpuFacts(name="a GPU", uuid="GPU-2", device="cuda:0")  # a virtual machine that reports nothing
    assert advise(replace(HEALTHY, gpus=(unknown,), shm_bytes=None, open_files_limit=None, driver=None), ON_GPU) == []


def test_advice_on_a_slow_link_has_its_cost() -> None:
    (advice,) = advise(with_gpu(pcie_generation=4, pcie_width=8), ON_GPU)
    assert "PCIe 4 x8" in advice.what and "PCIe 5 x16" in advice.what and "25%" in advice.cost


def test_ceilings_survive_json() -> None:
    whole = replace(ON_GPU, operator_s=RATE, kernel_s=RATE, operators={"0123": 1e-5, "4567": None})
    for ceilings in (ON_GPU, whole):
        assert Ceilings.from_dict(json.loads(json.dumps(ceilings.to_dict()))) == ceilings


def test_ceilings_of_older_versions_can_be_read() -> None:
    older = {name: value for name, value in ON_GPU.to_dict().items() if name not in ("operator_s", "kernel_s", "operators")}
    assert Ceilings.from_dict(older) == ON_GPU


# the probe


class Measurer:
    """Replaces measure_ceilings and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, device: torch.device, quick: bool = False, *, folder: Path | None = None) -> Ceilings:
        self.calls += 1
        return ON_CPU


@pytest.fixture
def measurer(monkeypatch: pytest.MonkeyPatch) -> Measurer:
    measurer = Measurer()
    monkeypatch.setattr(probing, "measure_ceilings", measurer)
    monkeypatch.setattr(probing, "read_facts", lambda: HEALTHY)
    monkeypatch.setattr(probing, "_gpus_under_load", lambda device: HEALTHY.gpus)
    return measurer


def test_the_second_probe_measures_nothing(measurer: Measurer, tmp_path: Path) -> None:
    first, second = probe(CPU, tmp_path / "new"), probe(CPU, tmp_path / "new")
    assert (first.cached, second.cached, measurer.calls) == (False, True, 1)
    assert second.ceilings == first.ceilings and second.facts == first.facts and not first.notes
    assert not probe(CPU, tmp_path / "new", fresh=True).cached
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".json"]  # nothing half-written stays


def test_operators_are_timed_when_a_model_has_them(measurer: Measurer, tmp_path: Path) -> None:
    x = torch.ones(8, 8)
    relu, tanh = (count_step(step).operations for step in (x.relu, x.tanh))
    few = probe(CPU, tmp_path, quick=True, operations=lambda ceilings: relu).ceilings
    assert len(few.operators) == 1
    more = probe(CPU, tmp_path, quick=True, operations=lambda ceilings: (*relu, *tanh)).ceilings
    assert len(more.operators) == 2 and few.operators.items() < more.operators.items()  # earlier times are kept
    again = probe(CPU, tmp_path, quick=True, operations=lambda ceilings: tanh)
    assert again.cached and again.ceilings == more and measurer.calls == 1


def test_another_machine_or_device_misses_the_cache(
    measurer: Measurer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(CPU, tmp_path)
    monkeypatch.setattr(probing, "read_facts", lambda: replace(HEALTHY, torch="2.12.0+cu130"))
    assert not probe(CPU, tmp_path).cached
    assert not probe(torch.device("cuda:0"), tmp_path).cached
    assert measurer.calls == 3


def test_a_full_measurement_serves_a_quick_probe_and_not_the_reverse(measurer: Measurer, tmp_path: Path) -> None:
    probe(CPU, tmp_path, quick=True)
    assert not probe(CPU, tmp_path).cached
    assert probe(CPU, tmp_path, quick=True).cached
    assert measurer.calls == 2


def test_an_idle_link_is_not_reported_as_slow(measurer: Measurer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe(CPU, tmp_path)
    monkeypatch.setattr(probing, "read_facts", lambda: with_gpu(pcie_generation=1, clock_mhz=345))
    again = probe(CPU, tmp_path)
    assert again.cached and again.facts.gpus[0].pcie_generation == 5 and not again.advice


def test_a_damaged_cache_is_reported_and_measured_again(measurer: Measurer, tmp_path: Path) -> None:
    probe(CPU, tmp_path)
    (entry,) = tmp_path.iterdir()
    entry.write_text('{"format": 1, "quick": false, "ceil')
    again = probe(CPU, tmp_path)
    assert not again.cached and "measured again" in again.notes[0] and measurer.calls == 2
    assert probe(CPU, tmp_path).cached


def test_ceilings_kept_in_an_older_format_are_measured_again(measurer: Measurer, tmp_path: Path) -> None:
    probe(CPU, tmp_path)
    (entry,) = tmp_path.iterdir()
    entry.write_text(json.dumps({**json.loads(entry.read_text()), "format": 1}))
    again = probe(CPU, tmp_path)
    assert not again.cached and again.notes == () and measurer.calls == 2


def test_a_read_only_cache_folder_is_reported_and_not_fatal(measurer: Measurer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    probed = probe(CPU, tmp_path / "file" / "cache")
    assert not probed.cached and "can't be written" in probed.notes[0]
    assert "can't be written" in to_text(doc(probed))
    assert probe(CPU, None).notes == ()


def test_a_quick_probe_of_a_cpu_and_its_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    state = torch.random.get_rng_state()
    two = World()
    two.size = 2
    ceilings = measure_ceilings(CPU, quick=True, folder=tmp_path, network=lambda: ring_bytes_per_s(two.sum_, two.size, CPU))
    assert torch.equal(state, torch.random.get_rng_state())
    assert list(tmp_path.iterdir()) == []
    found = [
        getattr(ceilings, name)
        for name in ("copy_bytes_per_s", "launch_s", "operator_s", "disk_read_bytes_per_s", "network_bytes_per_s")
    ]
    for measured in found:
        assert 0 < measured.low <= measured.value <= measured.high
    assert ceilings.matmul_flops["fp32"].value > 1e8 and ceilings.matmul_flops["bf16"].n >= 5
    assert set(ceilings.unavailable) >= {"matmul tf32", "matmul fp8", "host_to_device_pinned_bytes_per_s", "peer_bytes_per_s"}
    assert "CUDA" in ceilings.unavailable["kernel_s"]

    probed = probing.Probe(replace(HEALTHY, gpus=(), why_no_gpus="no driver answers", driver=None), ceilings, (), cached=False)
    text, data = to_text(doc(probed)), to_data(doc(probed))
    assert "unavailable" in text and "no accelerator" in text and "none: no driver answers" in text
    assert "No problems" in text
    rows = {row["name"]: row for row in data["ceilings"]}
    assert set(rows) == {*RATES, *(f"matmul {name}" for name in MATMUL_DTYPES)}
    assert (
        ceilings.launch_s and rows["launch_s"]["value"] == ceilings.launch_s.value and rows["peer_bytes_per_s"]["value"] is None
    )
    assert to_data(doc(probed))["facts"]["python"] == "3.11.7"


def test_a_disk_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="can't be written"):
        disk_bytes_per_s(tmp_path / "nowhere", 2**20, 1)


def test_advice_is_printed_with_cost_and_remedy() -> None:
    sick = replace(HEALTHY, shm_bytes=64 * 2**20, torch_threads=64)
    text = to_text(doc(probing.Probe(sick, ON_CPU, tuple(advise(sick, ON_CPU)), cached=True)))
    assert "2 problems" in text and "measured earlier" in text
    assert "    remedy  set OMP_NUM_THREADS=16" in text.splitlines()
    assert "  /dev/shm has 67.1 MB" in text.splitlines()
    assert max(map(len, text.splitlines())) <= 128


def test_measuring_changes_nothing_about_later_products() -> None:
    """torch turns its CPU library off for good after a product in a format that the CPU does not have."""
    left, right = (torch.randn(64, 96, generator=torch.Generator().manual_seed(seed)) for seed in range(2))
    before = left @ right.T
    matmul_flops_per_s("bf16", CPU, 0.01, 256)
    assert torch.equal(left @ right.T, before)
