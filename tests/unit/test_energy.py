"""Meters of energy, and what a run says that it used."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from nvml_stub import NvmlStub
from typer.testing import CliRunner

import flatout as fo
from flatout.cli.main import app
from flatout.machine import energy
from flatout.machine.energy import SampledPower, device_energy, host_energy
from flatout.machine.meters import Meters
from flatout.machine.nvml import NoGpus, NvmlGpus
from flatout.machine.rates import Unavailable, idle_watts
from flatout.measure.joules import EnergyLedger
from flatout.measure.ledger import Ledger

GPU = torch.device("cuda:0")


def gpu(stub: NvmlStub) -> NvmlGpus:
    return NvmlGpus(stub, lambda: {"GPU-1": "cuda:0"})


# meters


def test_a_gpu_with_a_counter_is_metered_by_it() -> None:
    seconds = iter((10.0, 10.0, 70.0))
    meter = device_energy(GPU, gpu(NvmlStub(clock=lambda: next(seconds))))
    began = meter.read_j()
    assert meter.name == "NVML energy counter" and not meter.why_unavailable
    assert meter.read_j() - began == pytest.approx(60 * 123.4, rel=1e-5)
    assert meter.error(60.0) == pytest.approx(0.1 / 60)


@pytest.mark.parametrize("stub", [NvmlStub(unknown=("nvmlDeviceGetTotalEnergyConsumption",)), NvmlStub(clock=lambda: 0.0)])
def test_a_gpu_without_a_counter_or_with_a_dead_one_is_sampled(stub: NvmlStub) -> None:
    meters = Meters(GPU, gpu(stub))
    began_j, began_s = meters.read().energy_j, time.monotonic()
    time.sleep(0.25)
    used, took_s = meters.read().energy_j - began_j, time.monotonic() - began_s
    meters.close()
    assert meters.energy.name == "NVML power readings, 10 a second"
    assert used == pytest.approx(123.4 * took_s, rel=0.2) and 0.05 <= meters.energy.error(took_s) <= 1


def test_sampled_power_follows_a_changing_load_and_states_what_it_can_miss() -> None:
    clock = iter([number / 10 for number in range(200)])
    steady, uneven = iter([300.0] * 200), iter([100.0, 500.0] * 100)
    calm = sampled(lambda: next(steady), lambda: next(clock), 100)
    assert calm.read_j() == pytest.approx(300 * 10, rel=0.02)
    clock = iter([number / 10 for number in range(200)])
    wild = sampled(lambda: next(uneven), lambda: next(clock), 100)
    assert wild.read_j() == pytest.approx(300 * 10, rel=0.05)
    assert calm.error(10) < 0.06 <= wild.error(10)


def sampled(read_w: Callable[[], float | None], clock: Callable[[], float], count: int) -> SampledPower:
    made = SampledPower(read_w, clock)
    made.close()  # the thread would take samples of its own
    for _ in range(count - 1):
        made.sample()
    return made


def test_a_reading_that_fails_is_bridged_by_the_next() -> None:
    clock, watts = iter((0.0, 1.0, 3.0)), iter((200.0, 200.0, None, 200.0))
    made = SampledPower(lambda: next(watts), lambda: next(clock))
    made.close()
    made.sample()
    made.sample()
    assert made.read_j() == pytest.approx(600.0)


def test_no_gpu_no_driver_and_other_vendors_have_a_reason() -> None:
    for device, gpus, word in (
        (GPU, NoGpus("no NVIDIA driver responds"), "no NVIDIA driver responds"),
        (torch.device("mps"), None, "mps"),
        (
            GPU,
            gpu(NvmlStub(unknown=("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"))),
            "neither energy nor power",
        ),
    ):
        meter = device_energy(device, gpus)
        assert meter.read_j() is None and meter.error(1.0) is None and word in meter.why_unavailable


# the host


class Powercap:
    """A folder like /sys/class/powercap of a machine with two packages, whose counters run at `watts` each."""

    def __init__(self, path: Path, watts: float = 40.0) -> None:
        self.path, self._watts, self._end = path, watts, threading.Event()
        self._began_s = time.monotonic()
        for name, kind in (("intel-rapl:0", "package-0"), ("intel-rapl:1", "package-1"), ("intel-rapl:2", "psys")):
            (path / name).mkdir(parents=True)
            (path / name / "name").write_text(f"{kind}\n")
            (path / name / "max_energy_range_uj").write_text("262143328850\n")
        (path / "intel-rapl:0:0").mkdir()
        (path / "intel-rapl:0:0" / "name").write_text("core\n")
        self._write()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        for place in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:2", "intel-rapl:0:0"):
            made = self.path / f".{place}"
            made.write_text(f"{int(1e6 + 1e6 * self.joules() / 2)}\n")
            made.rename(self.path / place / "energy_uj")

    def _run(self) -> None:
        while not self._end.wait(0.005):
            self._write()

    def joules(self) -> float:
        """Of both packages since this began."""
        return 2 * self._watts * (time.monotonic() - self._began_s)

    def close(self) -> None:
        self._end.set()
        self._thread.join()


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Powercap]:
    made = Powercap(tmp_path / "powercap")
    monkeypatch.setattr(energy, "POWERCAP", made.path)
    yield made
    made.close()


def test_the_host_counts_its_packages_and_neither_their_parts_nor_the_board(powercap: Powercap) -> None:
    meter = host_energy()
    began, was = meter.read_j(), powercap.joules()
    time.sleep(0.1)
    assert meter.read_j() - began == pytest.approx(powercap.joules() - was, rel=0.3)
    assert idle_watts(torch.device("cpu"), 0.05) == pytest.approx([80.0] * 3, rel=0.5)


def test_a_host_without_rapl_or_rights_says_which(tmp_path: Path) -> None:
    assert "no RAPL" in host_energy(tmp_path).why_unavailable
    (tmp_path / "intel-rapl:0").mkdir()
    assert "only root" in host_energy(tmp_path).why_unavailable


def test_idle_power_without_a_meter_is_unavailable_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    with pytest.raises(Unavailable, match="no RAPL"):
        idle_watts(torch.device("cpu"), 0.1)


# by phase


def book(laps: list[tuple[str, float]], readings: list[float | None]) -> EnergyLedger:
    """A ledger with these laps, read before the first and after each."""
    now = [0.0]
    ledger, found = Ledger(lambda: now[0]), iter(readings)
    made = EnergyLedger(ledger, lambda: next(found))
    for row, seconds in laps:
        now[0] += seconds
        ledger.lap(row)
        made.read()
    return made


def test_joules_are_charged_to_the_work_between_two_readings() -> None:
    made = book([("compile", 10.0), ("step", 5.0), ("evaluation", 1.0)], [100.0, 900.0, 4900.0, 5100.0])
    assert made.by_row() == {"compile": 800.0, "step": 4000.0, "evaluation": 200.0} and made.joules == 5000.0
    made.split(("step", "device wait"), {"forward": 0.25, "backward": 0.75})
    assert made.by_row() == {"compile": 800.0, "forward": 1000.0, "backward": 3000.0, "evaluation": 200.0}


def test_work_too_short_for_the_meter_is_charged_with_the_work_after_it() -> None:
    now, counter = [0.0], [0.0]
    ledger = Ledger(lambda: now[0])
    made = EnergyLedger(ledger, lambda: counter[0], least_s=0.5)
    for row, seconds, joules in (("evaluation", 0.1, 0.0), ("step", 0.9, 300.0), ("checkpoint", 0.1, 20.0)):
        now[0], counter[0] = now[0] + seconds, counter[0] + joules
        ledger.lap(row)
        made.read()
    assert made.by_row() == pytest.approx({"evaluation": 30.0, "step": 270.0})
    made.read(last=True)
    assert made.by_row()["checkpoint"] == pytest.approx(20.0)


def test_time_without_a_reading_is_counted_as_such_and_never_as_nothing() -> None:
    made = book([("step", 4.0), ("step", 4.0), ("step", 4.0)], [0.0, 400.0, None, 900.0])
    assert made.joules == 400.0 and made.lost_s == 8.0
    assert book([("step", 4.0)], [500.0, 3.0]).lost_s == 4.0  # the counter began anew, as after a reset of the driver
    assert book([("step", 4.0)], [None, None]).joules is None


# a run


def recipe(**more: Any) -> fo.Recipe:
    keys: dict[str, Any] = {"budget": "60 steps", "evaluate": "30 steps", "price_per_hour": 3.6, "lr": 3e-3, **more}
    return fo.Recipe(data=fo.data.digits(holdout=0.2), model="mlp", batch=64, settings={"device": "cpu"}, **keys)


def command(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_says_what_it_used_where_and_by_which_meter(powercap: Powercap, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    began_j = powercap.joules()
    done = fo.run(recipe(), runs=runs, cache=None, planning="off")
    other = fo.run(recipe(lr=1e-3), runs=runs, cache=None, planning="off")
    used = done.result["energy"]["device"]
    assert used["meter"] == "RAPL counter of the CPU packages" and "host" not in done.result["energy"]  # the host is the device
    assert 0 < used["joules"] < powercap.joules() - began_j
    assert sum(used["by_phase"].values()) == pytest.approx(used["joules"]) and "evaluation" in used["by_phase"]
    assert used["joules"] == pytest.approx(80 * done.result["wall_seconds"], rel=0.5)
    assert done.result["energy_wh"] == pytest.approx(used["joules"] / 3600)
    assert used["per_epoch_j"] == pytest.approx(used["per_sample_j"] * len(recipe().load_data().train))

    shown = command("runs", "show", done.name, "--runs", str(runs))
    assert "RAPL counter of the CPU packages" in shown and "where the energy went" in shown and "per sample" in shown
    compared = command("runs", "compare", done.name, other.name, "--runs", str(runs))
    assert "RAPL counter" in compared and "energy to accuracy" in compared
    page = fo.report(done, out=tmp_path / "page.html").read_text()
    assert "RAPL counter of the CPU packages" in page and "mean power" in page
    assert "energy to accuracy" in fo.report(done, other, out=tmp_path / "two.html").read_text()


def test_a_resumed_run_counts_what_it_used_before(powercap: Powercap, tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if event["kind"] == "evaluation":
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(fo.FlatoutError, match="SIGTERM"):
        fo.run(recipe(), runs=tmp_path / "runs", cache=None, planning="off", observers=[stop])
    done = fo.run(recipe(), runs=tmp_path / "runs", cache=None, planning="off")
    used = done.result["energy"]["device"]
    points = [event["energy_j"] for event in done.events() if event["kind"] == "step"]
    assert all(later >= earlier for earlier, later in pairwise(points))
    assert used["joules"] == pytest.approx(80 * done.result["wall_seconds"], rel=0.5)


def test_a_run_without_a_meter_says_so_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "none")
    done = fo.run(recipe(), runs=tmp_path / "runs", cache=None, planning="off")
    assert done.result["energy_wh"] == "unavailable" and done.result["energy"]["device"]["meter"] == "unavailable"
    assert "unavailable (no energy counter" in command("runs", "show", done.name, "--runs", str(tmp_path / "runs"))
    assert "no energy counter: this system has no RAPL" in fo.report(done, out=tmp_path / "page.html").read_text()
