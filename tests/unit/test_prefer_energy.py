"""Settings chosen by energy: on made-up measurements, on a GPU whose limit may be set, and where there is no meter."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from nvml_stub import NvmlStub

import flatout as fo
from flatout.base.errors import RecipeError
from flatout.base.tree import to_text
from flatout.engine.settings import Settings
from flatout.machine import energy, power_limit
from flatout.machine.nvml import NvmlGpus
from flatout.machine.power_limit import limited_power
from flatout.measure.receipt import KEPT, REJECTED, Receipt
from flatout.plan.knobs import power_limit as knob
from flatout.plan.options import SearchTerms
from flatout.plan.plan import Prediction
from flatout.plan.receipt_view import receipt_doc
from flatout.plan.search import KnobSearch
from flatout.plan.situation import Situation
from flatout.plan.trial_energy import notes_on_energy
from flatout.plan.trials.bench import Bench
from flatout.plan.trials.reports import Ask, Losses, PeakMemory, TrialReport
from flatout.recipe.build import build_job

GPU = torch.device("cuda:0")
NOISE = (0.0, 0.004, -0.003, 0.002, -0.002, 0.001)
METER = "NVML energy counter"


class MeteredGpu:
    """A bench whose steps take `seconds` and `watts`, by their settings."""

    def __init__(self, seconds: Callable[[Mapping[str, Any]], float], watts: Callable[[Mapping[str, Any]], float]) -> None:
        self._seconds, self._watts, self.windows = seconds, watts, set[int]()

    def attempt(self, ask: Ask) -> TrialReport:
        self.windows.add(ask.energy_windows)
        step_s, watts = self._seconds(ask.settings), self._watts(ask.settings)
        joules = tuple(step_s * watts * (1 + noise) for noise in NOISE[: ask.energy_windows]) if watts else ()
        repeats, check = tuple(step_s * (1 + noise) for noise in NOISE), {"passed": True, "why": "gradients agree"}
        report = TrialReport(dict(ask.settings), first_s=0.5, steps_s=repeats, check=check, took_s=1.0)
        return replace(report, steps_j=joules, meter=METER if watts else "")

    def held(self, settings: Mapping[str, Any], rows: int) -> PeakMemory:
        return PeakMemory(rows, 1, 10**12)

    def losses(self, settings: Mapping[str, Any], steps: int, seed: int, after: int = 0) -> Any:
        draw = torch.Generator().manual_seed(0)
        return Losses(dict(settings), tuple(2 - 0.02 * n + 0.05 * float(torch.randn((), generator=draw)) for n in range(steps)))


def situation(prefer: str) -> Situation:
    job = build_job(fo.Recipe(data="digits", model="mlp", batch=64, lr=1e-3, budget="40 steps"))
    return Situation(job, GPU, {}, None, Prediction(step_s=0.01), prefer=prefer)


def searched(prefer: str, machine: MeteredGpu, knobs: list[Any]) -> Receipt:
    start = Settings(device="cuda:0", fused_optimizer=False)
    return KnobSearch(situation(prefer), start, knobs, machine, SearchTerms(1e5, prefer=prefer)).run()


@pytest.fixture
def may_set(monkeypatch: pytest.MonkeyPatch) -> NvmlStub:
    """A GPU of 700 W whose limit this process may set."""
    return with_gpu(monkeypatch, NvmlStub(rights=True))


def with_gpu(monkeypatch: pytest.MonkeyPatch, stub: NvmlStub) -> NvmlStub:
    for module in (power_limit, energy):
        monkeypatch.setattr(module, "open_gpus", lambda: NvmlGpus(stub, lambda: {"GPU-1": "cuda:0"}))
    return stub


def capped(settings: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds and watts of a step that slows down by less than its power falls, until the limit is too low."""
    limit = settings["power_limit"] or 700
    return {700: (0.010, 690.0), 560: (0.0104, 555.0), 455: (0.0118, 450.0), 350: (0.0170, 348.0)}[limit]


def machine() -> MeteredGpu:
    return MeteredGpu(lambda settings: capped(settings)[0], lambda settings: capped(settings)[1])


def test_energy_decides_if_it_is_preferred(may_set: NvmlStub) -> None:
    tried = machine()
    receipt = searched("energy", tried, [knob])
    assert receipt.settings["power_limit"] == 455 and tried.windows == {5}
    kept = [entry for entry in receipt.entries if entry.verdict == KEPT]
    refused = next(entry for entry in receipt.entries if entry.value == 350)
    assert refused.verdict == REJECTED and "uses more energy" in refused.why
    assert kept[-1].measured is not None and kept[-1].measured < 1 < kept[-1].less_low  # slower, and less energy all the same
    assert "less energy" in kept[-1].why and receipt.step_j == pytest.approx(0.0118 * 450, rel=0.01)
    text = to_text(receipt_doc("gpt-1", receipt))
    assert METER in text and "which it was chosen by" in text and "energy before" in text


def test_time_decides_otherwise_and_the_limit_stays(may_set: NvmlStub) -> None:
    receipt = searched("time", machine(), [knob])
    assert receipt.settings["power_limit"] == 0 and not receipt.entries and may_set.limits[1] == 700_000


def test_every_tried_setting_shows_its_joules_beside_its_time() -> None:
    class Fused:
        name, off, lossy, risky, meets = "fused_optimizer", False, False, False, ()

        def candidates(self, s: Situation, now: Settings) -> Any:
            from flatout.plan.knobs.knob import Candidate

            return [] if now.fused_optimizer else [Candidate(True, "one kernel", 1.3)]

    quick = MeteredGpu(lambda settings: 0.008 if settings["fused_optimizer"] else 0.010, lambda settings: 500.0)
    (entry,) = searched("time", quick, [Fused()]).entries
    assert entry.verdict == KEPT and entry.step_j == pytest.approx(4.0) and entry.against_j == pytest.approx(5.0)
    assert entry.measured == pytest.approx(1.25, rel=0.01) and entry.less == pytest.approx(1.25) and entry.less_low is None
    assert quick.windows == {1}  # one second: shown, and not decided by


def test_without_a_meter_time_decides_and_the_receipt_says_so(may_set: NvmlStub) -> None:
    blind = MeteredGpu(lambda settings: capped(settings)[0], lambda settings: 0.0)
    receipt = searched("energy", blind, [knob])
    assert receipt.settings["power_limit"] == 0 and receipt.step_j is None
    (note,) = notes_on_energy(situation("energy"), receipt, "no NVIDIA driver responds")
    assert "chosen by time" in note and "no NVIDIA driver responds" in note


def test_without_rights_there_is_advice_with_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch, NvmlStub())
    s = situation("energy")
    assert list(knob.candidates(s, Settings(device="cuda:0"))) == []
    receipt = replace(searched("energy", machine(), [knob]), step_s=0.01, step_j=6.9)
    (note,) = notes_on_energy(s, receipt, "")
    assert "Insufficient Permissions" in note and "690 W of 700 W" in note and "nvidia-smi -pl 550" in note


def test_a_limit_is_set_while_it_is_needed_and_put_back(may_set: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_limit, "RESTORE", "import sys; sys.stdin.read()")  # no driver here
    with limited_power(455, GPU) as why, limited_power(455, GPU) as inner:
        assert (why, inner) == ("", "") and may_set.limits[1] == 455_000
    assert may_set.limits[1] == 700_000
    with limited_power(100, GPU) as why:
        assert "200 to 700 W" in why and may_set.limits[1] == 700_000


def test_the_limit_is_put_back_when_the_process_is_killed(tmp_path: Any) -> None:
    (tmp_path / "pynvml.py").write_text(
        "from pathlib import Path\n"
        "nvmlInit = lambda: None\n"
        "nvmlDeviceGetHandleByUUID = lambda uuid: uuid\n"
        f"nvmlDeviceSetPowerManagementLimit = lambda gpu, mw: Path({str(tmp_path / 'set')!r}).write_text(f'{{gpu}} {{mw}}')\n"
    )
    program = f"""
import os, sys, time, torch
os.environ["PYTHONPATH"] = {str(tmp_path)!r}
sys.path.insert(0, {str(tmp_path.parent)!r})
from flatout.machine.power_limit import limited_power
from flatout.machine.nvml import GpuFacts, PowerLimits
class Gpus:
    why_absent = ""
    facts = lambda self: (GpuFacts("H200", "GPU-7", "cuda:0"),)
    power_limits = lambda self, device: PowerLimits(700.0, 200.0, 700.0)
    limit_power = lambda self, device, watts: ""
with limited_power(500, torch.device("cuda:0"), Gpus()):
    print("set", flush=True)
    time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "set\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    for _ in range(100):
        if (tmp_path / "set").exists() and (tmp_path / "set").read_text():
            break
        time.sleep(0.05)
    assert (tmp_path / "set").read_text() == "GPU-7 700000"


def test_a_run_that_may_not_set_its_limit_trains_and_says_so(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(fo.FlatoutError, match="power_limit=400 needs an NVIDIA GPU"):
        pins = {"power_limit": 400, "device": "cpu"}
        limited = fo.Recipe(data="digits", model="mlp", batch=64, lr=1e-3, budget="2 steps", settings=pins)
        fo.run(limited, runs=tmp_path, cache=None, planning="off")
    with pytest.raises(RecipeError, match="prefer: expected 'time' or 'energy', got 'power'"):
        fo.Recipe(data="digits", model="mlp", batch=64, lr=1e-3, budget="2 steps", prefer="power")
    assert "prefer" not in fo.Recipe(data="digits", model="mlp", batch=64, lr=1e-3, budget="2 steps").written()


def test_trials_on_a_host_with_a_counter_measure_both_sides_in_turns() -> None:
    counter = [0.0]

    class Steady:
        name, why_unavailable, resolution_s = "RAPL counter of the CPU packages", "", 0.001

        def read_j(self) -> float:
            return 50.0 * time.monotonic() + counter[0]

        def close(self) -> None:
            pass

    bench = Bench(build_job(fo.Recipe(data="digits", model="mlp", batch=64, lr=1e-3, budget="40 steps")), torch.device("cpu"))
    bench._energy = Steady()  # type: ignore[assignment]
    plain = Settings(fused_optimizer=False).to_dict()
    report = bench.attempt(Ask(Settings().to_dict(), plain, plain, measure_s=0.1))
    bench.close()
    assert report.ran and len(report.steps_j) == len(report.steps_s) and len(report.against_j) == len(report.against_s)
    for joules, seconds in zip((*report.steps_j, *report.against_j), (*report.steps_s, *report.against_s), strict=True):
        assert joules == pytest.approx(50 * seconds, rel=0.3)
    assert TrialReport.from_dict(report.to_dict()) == report
