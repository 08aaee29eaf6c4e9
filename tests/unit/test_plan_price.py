"""The cost of a guarantee: measured with the final settings, reported, and never applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import flatout as fo
from flatout.engine.settings import Settings
from flatout.measure.receipt import REJECTED, Entry
from flatout.measure.recording import NOT_RECORDED
from flatout.plan.knobs.all import PRICED
from flatout.plan.plan import Prediction
from flatout.plan.price import cheap_s, prices
from flatout.plan.situation import Situation
from flatout.plan.trials.reports import FAILED, Ask, Losses, PeakMemory, TrialReport
from flatout.recipe.build import build_job

NOISE = (0.0, 0.004, -0.003, 0.002, -0.002, 0.001, -0.001, 0.003)
FINE = {"passed": True, "why": "gradients agree", "figures": {}}


class Machine:
    """Deterministic kernels take `cost` times as long."""

    def __init__(self, cost: float = 1.0, *, by_turns: bool = True, **planted: Any) -> None:
        self.cost, self.by_turns, self.planted = cost, by_turns, planted
        self.asked: list[Ask] = []

    def attempt(self, ask: Ask) -> TrialReport:
        self.asked.append(ask)
        if self.planted.get("interrupted"):
            raise KeyboardInterrupt
        if "failure" in self.planted:
            return TrialReport(dict(ask.settings), self.planted["failure"], self.planted["why"])
        assert ask.against is not None
        against = tuple(self.step_s(ask.against) * (1 - noise) for noise in NOISE) if self.by_turns else ()
        steps = tuple(self.step_s(ask.settings) * (1 + noise) for noise in NOISE)
        return TrialReport(dict(ask.settings), "", "", 0.5, steps, against, 1000, self.planted.get("check", FINE), 3.0)

    def step_s(self, settings: Mapping[str, Any]) -> float:
        return 0.01 * (self.cost if settings["deterministic"] else 1.0)

    def losses(self, settings: Mapping[str, Any], steps: int, seed: int, after: int = 0) -> Losses:
        raise AssertionError("a price takes no training")

    def held(self, settings: Mapping[str, Any], rows: int) -> PeakMemory:
        raise AssertionError("a price takes no probe of memory")


def priced(machine: Machine, device: str = "cuda", most_s: float = 9.0, first_s: float = 0.5, **pins: Any) -> list[Entry]:
    job = build_job(fo.Recipe(data="digits", model="mlp", batch=64, lr=1e-3, budget="40 steps"))
    s = Situation(job, torch.device(device), pins, None, Prediction(step_s=0.01))
    stands = Settings(device=device, deterministic=device == "cpu", precision="bf16")
    steps_s = [machine.step_s(stands.to_dict()) * (1 + noise) for noise in NOISE]
    return prices(s, PRICED, machine, stands, Settings(device=device), steps_s, first_s=first_s, most_s=most_s)


@pytest.mark.parametrize("by_turns", [True, False])
def test_on_a_gpu_the_price_is_the_cost_of_deterministic_kernels(by_turns: bool) -> None:
    machine = Machine(1.25, by_turns=by_turns)
    (entry,) = priced(machine)
    assert (entry.name, entry.value, entry.instead_of, entry.verdict) == ("deterministic", True, False, REJECTED)
    assert (
        entry.why.startswith("deterministic kernels would take 1.25x the time [1.2") and "--set deterministic=on" in entry.why
    )
    assert entry.measured == pytest.approx(0.8, rel=0.01) and entry.n == len(NOISE)
    (ask,) = machine.asked
    assert ask.settings["deterministic"] is True and ask.against is not None and ask.against["deterministic"] is False
    assert ask.settings["precision"] == "bf16", "the settings that came out, not the plain ones"


def test_on_a_cpu_the_price_is_the_cost_of_staying_deterministic() -> None:
    (entry,) = priced(Machine(1.25), "cpu")
    assert (entry.value, entry.instead_of, entry.verdict) == (False, True, REJECTED)
    assert entry.why.startswith("deterministic kernels take 1.25x the time") and "--off deterministic" in entry.why
    assert entry.measured == pytest.approx(1.25, rel=0.01)


def test_a_price_within_the_noise_is_marked() -> None:
    (entry,) = priced(Machine(1.001))
    assert "within the noise" in entry.why


def test_a_missing_deterministic_kernel_is_the_reason() -> None:
    why = "RuntimeError: cumsum_cuda_kernel does not have a deterministic implementation"
    (entry,) = priced(Machine(failure=FAILED, why=why))
    assert entry.verdict == REJECTED and entry.why == f"failed: {why}" and entry.measured is None


def test_the_missing_environment_variable_is_the_reason() -> None:
    why = "RuntimeError: Deterministic behavior was enabled ... you must set CUBLAS_WORKSPACE_CONFIG=:4096:8 or ..."
    (entry,) = priced(Machine(failure=FAILED, why=why))
    assert entry.why.startswith("not measured: set CUBLAS_WORKSPACE_CONFIG=:4096:8")


def test_a_different_result_is_reported() -> None:
    (entry,) = priced(Machine(check={"passed": False, "why": "gradient of head.bias: norm 2.00x", "figures": {}}))
    assert entry.why.startswith("not the same: gradient of head.bias")


def test_no_price_if_expensive_pinned_or_not_recorded() -> None:
    for given in ({"first_s": 30.0}, {"most_s": 1.0}, {"deterministic": False}):
        machine = Machine(1.25)
        assert priced(machine, **given) == [] and not machine.asked
    assert priced(Machine(failure=NOT_RECORDED, why="")) == []


def test_no_price_after_ctrl_c() -> None:
    assert priced(Machine(interrupted=True)) == []


def test_cheap_is_a_small_share_of_planning_and_run() -> None:
    assert cheap_s(300.0, 1e5) == pytest.approx(9.0)
    assert cheap_s(300.0, 100.0) == pytest.approx(1.0)
