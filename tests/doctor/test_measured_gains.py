"""Findings whose gain was measured on this machine: their cost follows it, and they say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from flatout.base.tree import to_text
from flatout.boost.remedies.channels_last import ChannelsLast
from flatout.boost.remedies.fused import Fused
from flatout.doctor import kinds, watching
from flatout.doctor.account import OPTIMIZER, PYTHON, ROWS, Account
from flatout.doctor.called import Called
from flatout.doctor.case import Case
from flatout.doctor.diagnosis import diagnose, doc
from flatout.doctor.finding import Finding
from flatout.doctor.findings import channels_first, fp32_matmul, unfused_optimizer
from flatout.doctor.flops import flops_of
from flatout.doctor.seen import Calls, Optimizer, ScriptRecord
from flatout.doctor.trace import Trace
from flatout.machine.advice import Advice
from flatout.machine.cache import CeilingsCache
from flatout.machine.ceilings import Ceilings, MeasuredRate
from flatout.machine.facts import fingerprint, read_facts
from flatout.machine.gains import GainComparison, Gains
from flatout.machine.probe import Probe
from flatout.measure.counts import Call, Operation, TensorLayout, count_step

CPU = torch.device("cpu")
ADAM = Optimizer(
    "Adam", "train.py:2", "train.py:9", False, False, False, 3, 60, can_fuse=True, sizes=(10, 20, 30), options={"eps": 1e-8}
)


class Told(Gains):
    """Says the same of everything that it is asked about."""

    def __init__(self, factor: float | None) -> None:
        super().__init__()
        self.factor, self.asked = factor, list[str]()

    def measured(self, comparison: GainComparison, device: torch.device) -> float | None:
        self.asked.append(comparison.key.partition(" ")[0])
        return None if comparison.key.startswith("own_convolutions") else self.factor


def seen_operations() -> list[Operation]:
    def step() -> None:
        images = nn.functional.conv2d(torch.empty(8, 3, 9, 9), torch.empty(4, 3, 3, 3))
        images.flatten(1) @ torch.empty(196, 5)

    return list(count_step(step).operations)


def case_of(gains: Gains, *, probe: Probe | None = None, update_ms: float = 2.0) -> Case:
    rows = {**dict.fromkeys(ROWS, 0.0), kinds.CONVOLUTION: 4.0, OPTIMIZER: update_ms, kinds.MATMUL: 2.0, PYTHON: 2.0}
    call = Calls("Net", "train.py:3", True, True, "", "float32", "cpu", True, False, False, batch=8)
    trace = Trace(0, 1, 1, [], operations=seen_operations())
    return Case(ScriptRecord("cpu", calls=[call], optimizers=[ADAM]), trace, Account(1, 1), rows, probe, gains=gains)


@pytest.fixture(autouse=True)
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)


def test_the_layout_costs_what_it_was_measured_to_cost() -> None:
    (finding,) = channels_first.look(case_of(Told(1.07)))
    assert finding.cost_ms == pytest.approx(4.0 * (1 - 1 / 1.07)) and "measured here: 1.07x" in finding.evidence
    (usual,) = channels_first.look(case_of(Told(None)))
    assert usual.cost_ms == pytest.approx(4.0 * (1 - 1 / 1.38)) and "not measured here" in usual.evidence


def test_an_update_costs_what_it_was_measured_to_cost() -> None:
    (finding,) = unfused_optimizer.look(case_of(Told(4.0)))
    assert finding.cost_ms == pytest.approx(1.5) and "measured here: 4x" in finding.evidence
    (usual,) = unfused_optimizer.look(case_of(Told(None)))
    assert usual.cost_ms == pytest.approx(2.0 * 0.65) and "not measured here" in usual.evidence


def test_products_of_small_shapes_gain_what_was_measured_and_not_what_large_ones_do() -> None:
    def rate(value: float) -> MeasuredRate:
        return MeasuredRate(value, value, value, 5)

    probe = Probe(read_facts(), Ceilings("cpu", {"fp32": rate(1e11), "bf16": rate(8e11)}), (), cached=True)
    (finding,) = fp32_matmul.look(case_of(Told(1.25), probe=probe))
    assert finding.cost_ms == pytest.approx((2.0 + 4.0) * 0.2) and "measured here: 1.25x" in finding.evidence
    (by_ceilings,) = fp32_matmul.look(case_of(Told(None), probe=probe))
    assert by_ceilings.cost_ms == pytest.approx((2.0 + 4.0) * 7 / 8) and "measured here" not in by_ceilings.evidence
    gains = Told(1.25)
    assert not list(fp32_matmul.look(case_of(gains))) and not gains.asked  # without fast units nothing is measured


def test_what_gains_nothing_here_is_not_told() -> None:
    found = diagnose(case_of(Told(0.9)))
    assert not [one for one in found.findings if one.id in ("channels_first", "unfused_optimizer")]
    assert [one.predicted for one in (*ChannelsLast().offers(found), *Fused().offers(found))] == [None, None]


def test_the_order_is_that_of_measured_costs_and_boost_expects_the_same() -> None:
    found = diagnose(case_of(Told(2.0)))

    def cost(finding: Finding) -> float:
        return finding.cost_ms

    assert list(found.findings) == sorted(found.findings, key=cost, reverse=True)
    (layout,), (fused,) = ChannelsLast().offers(found), Fused().offers(found)
    assert layout.predicted == pytest.approx(10 / 8) and fused.predicted == pytest.approx(10 / 9)


def test_an_update_that_takes_next_to_nothing_is_not_measured() -> None:
    gains = Told(4.0)
    list(unfused_optimizer.look(case_of(gains, update_ms=0.01)))
    assert not gains.asked


def test_operators_are_seen_as_the_script_calls_them() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.Flatten(), nn.Linear(256, 5))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        for _ in range(2):
            net(torch.randn(2, 3, 8, 8)).sum().backward()
    called = Called()
    for event in profiled.profiler.kineto_results.events():
        called.add(event, flops_of(event))
    counted = [one for one in called.operations if one.name == "aten::convolution"]
    assert len(counted) == 2 and counted[0] is counted[1] and counted[0].flops == 2 * 2 * 64 * 4 * 27
    call = counted[0].call
    assert isinstance(call, Call) and call.given[0] == TensorLayout((2, 3, 8, 8), (192, 64, 8, 1), torch.float32)
    assert {one.name for one in called.operations} >= {"aten::convolution_backward", "aten::addmm", "aten::mm"}
    for one in called.operations:
        assert one.call is not None
        made: Any = [torch.ones(value.shape) if isinstance(value, TensorLayout) else value for value in one.call.given]
        one.call.func(*made, **one.call.named)  # it can be called again


def test_gains_that_the_doctor_measured_are_kept_and_a_first_report_measures_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_s: list[float] = []

    class Noted(Gains):
        def __init__(self, known: Any = None, limit_s: float = 0.0) -> None:
            super().__init__(known)
            limits_s.append(limit_s)
            self.new["measured by the doctor"] = 1.5

    monkeypatch.setattr(watching, "Gains", Noted)
    CeilingsCache(tmp_path).save(fingerprint(read_facts()), CPU, True, Ceilings("cpu", {}), ())
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watch = watching.ScriptWatch(9, tmp_path)
    watch.start()
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    watch._report_at_s, watch._first_report = 0.0, open("/dev/null", "w")  # noqa: SIM115
    watch._running_on()
    watch._first_report.close()
    watch.stop()
    assert watch.diagnosis is not None and limits_s[0] == 0.0 and 0 < limits_s[1] <= 2.0
    kept = CeilingsCache(tmp_path).load(fingerprint(read_facts()), CPU, True)
    assert kept is not None and kept.ceilings.gains == {"measured by the doctor": 1.5}


def test_a_problem_without_a_measured_cost_is_a_note_and_has_no_share() -> None:
    idle = Advice("idle cores", "torch uses 1 of 2 cores", "half of the cores are idle", "set OMP_NUM_THREADS=2")
    probe = Probe(read_facts(), Ceilings("cpu", {}), (idle,), cached=True)
    alone, beside = (diagnose(case_of(Told(factor), probe=probe)) for factor in (0.9, 2.0))
    texts = [to_text(doc(found)) for found in (alone, beside)]
    assert "Nothing found" in texts[0] and "\n1. " not in texts[0]
    assert "\n1. " in texts[1]
    for found, text in zip((alone, beside), texts, strict=True):
        findings, notes = text.split("Also noticed")
        assert "idle cores" not in findings
        assert "\n- idle cores: torch uses 1 of 2 cores  [hardware]\n  half of the cores" in notes
        assert "Fix: set OMP_NUM_THREADS=2" in notes and " 0%" not in notes
        assert found.findings[-1].id == "hardware"  # in JSON, where the costs are, still last
    assert "Also noticed" not in to_text(doc(diagnose(case_of(Told(2.0)))))
