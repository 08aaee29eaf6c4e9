"""The screens of `explain` and `receipt` for the demo, word for word, on made-up machines. FLATOUT_UPDATE_GOLDEN=1 updates."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import flatout.cli
from flatout.base.tree import to_data, to_text
from flatout.machine.ceilings import Ceilings, MeasuredRate
from flatout.measure.counts import Operation, OperatorCounts
from flatout.measure.receipt import KEPT, REJECTED, UNTRIED, Entry, Receipt
from flatout.measure.stats import Comparison
from flatout.plan import choose as choosing
from flatout.plan import predict as predicting
from flatout.plan import tier
from flatout.plan.explain import explain
from flatout.plan.knobs import deterministic, evaluation_batch
from flatout.plan.knobs import device as device_knob
from flatout.plan.knobs.all import KNOBS
from flatout.plan.plan import Plan
from flatout.plan.receipt_view import receipt_doc
from flatout.plan.with_receipt import with_receipt
from flatout.plan.work import StepWork
from flatout.recipe.build import build_job
from flatout.recipe.load import read_recipe

HERE = Path(__file__).parent
DEMO = Path(flatout.cli.__file__).with_name("digits.yaml")


def measured(value: float) -> MeasuredRate:
    return MeasuredRate(value, value, value, 10)


MACHINES = {
    "laptop": ("cpu", "A made-up CPU with 8 cores", 16e9, Ceilings(
        "cpu", {"fp32": measured(500e9), "bf16": measured(600e9)},
        copy_bytes_per_s=measured(20e9), launch_s=measured(2e-6),
    )),
    "server": ("cuda:0", "A made-up GPU", 80e9, Ceilings(
        "cuda:0", {"fp32": measured(50e12), "tf32": measured(300e12), "bf16": measured(700e12)},
        copy_bytes_per_s=measured(3e12), launch_s=measured(4e-6),
    )),
    "unprobed": ("cpu", "A made-up CPU with 8 cores", 16e9, None),
}  # fmt: skip
DONE = {"samples_per_s": 40_000.0}
DEGRADED = ({"what": "checkpoint copy", "why": "no room for a second copy on the device: the loop waits for the host"},)


def work_of_the_demo(rows: int) -> StepWork:
    products = [Operation("convolution", "convolutions", torch.float32, 32_500_000, ((0, 250_000),), ())] * 4
    others = [Operation("relu", "element by element", torch.float32, 0, ((0, 175_000),), ((0, 175_000),))] * 36
    done = tuple(products + others)
    return StepWork(OperatorCounts(130_000_000, sum(one.bytes for one in done), len(done), done), rows, 1.0, (), 0)


def plan_on(machine: str, monkeypatch: pytest.MonkeyPatch) -> Plan:
    device, name, free_bytes, ceilings = MACHINES[machine]
    monkeypatch.setattr(choosing, "pick_device", lambda asked: torch.device(device))
    monkeypatch.setattr(choosing, "device_name", lambda device: name)
    monkeypatch.setattr(device_knob, "device_name", lambda device: name)
    for place in (tier, evaluation_batch):
        monkeypatch.setattr(place, "free_bytes", lambda device: int(free_bytes))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    # what torch counts differs a little between its versions; how it is shown does not
    for counting in (predicting, evaluation_batch):
        monkeypatch.setattr(counting, "work_of", lambda job, settings: work_of_the_demo(job.batch))
    return choosing.choose(build_job(read_recipe(DEMO)), {"keep_checkpoints": 3}, ceilings, "digits/convnet")


def check(name: str, said: str) -> None:
    golden = HERE / name
    if os.environ.get("FLATOUT_UPDATE_GOLDEN"):
        golden.write_text(said + "\n")
    assert said + "\n" == golden.read_text(), f"{golden.name} differs: look at both, then FLATOUT_UPDATE_GOLDEN=1 accepts it"


@pytest.mark.parametrize("machine", MACHINES)
def test_the_plan_before_a_run(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(f"explain_{machine}.txt", to_text(explain(plan_on(machine, monkeypatch))))


def test_the_plan_for_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    check("explain_laptop.json", json.dumps(to_data(explain(plan_on("laptop", monkeypatch))), indent=2, default=str))


def test_the_plan_after_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    check("explain_laptop_done.txt", to_text(explain(plan_on("laptop", monkeypatch), DONE, DEGRADED)))


AGREES = {"passed": True, "why": "one step agrees within bf16: cosine of each gradient at least 0.9981", "figures": {}}
PAIRED = {
    "passed": True, "why": "the mean loss is 0.0012 above the baseline's, at most 0.0061 with 95% confidence", "margin": 0.018,
    "n": 40, "power": 0.99, "test": "one-sided t on the means of ten blocks", "figures": {},
}  # fmt: skip


def receipt_on_the_server(plan: Plan) -> Receipt:
    numbers: dict[str, Any] = {"n": 7, "against_s": 0.004, "first_s": 0.6, "peak_bytes": 10**9, "check": AGREES, "took_s": 3.0}
    gained, pays = "faster; gradients agree", "adds 600 ms at start, repaid after 400 steps"
    no_gain, untold = "no gain above the noise: 1.00x [0.99, 1.01], n=7", "a trial would cost 42 s and save about 3 s"
    costs = deterministic.price(True, Comparison(1.07, 1.05, 1.09, False, 7))
    entries = (
        Entry("precision", "bf16", "fp32", KEPT, f"2.00x {gained}", 2.2, 2.0, 1.97, 2.03, step_s=0.002, **numbers),
        Entry("graph", True, False, KEPT, f"4.00x {gained}; {pays}", 5.0, 4.0, 3.9, 4.1, step_s=0.0005, **numbers),
        Entry("channels_last", True, False, REJECTED, no_gain, 1.5, 1.0, 0.99, 1.01, step_s=0.0005, **numbers),
        Entry("compile", "on", "off", UNTRIED, untold, 1.3),
        Entry("deterministic", True, False, REJECTED, costs, None, 0.93, 0.92, 0.95, step_s=0.00054, **numbers),
    )
    settings = {**plan.settings.to_dict(), "precision": "bf16", "graph": True, "compile": "off", "channels_last": False}
    return Receipt(
        reference=plan.settings.to_dict(),
        settings=settings,
        entries=entries,
        reference_step_s=0.004,
        step_s=0.0005,
        paired=PAIRED,
        stopped="the remaining trials would cost more than they save",
        took_s=21.5,
        machine="A made-up GPU",
        versions={"flatout": "1.0", "torch": "2.13.0"},
        at="2026-11-15T12:00:00Z",
    )


def test_the_plan_after_trials_and_their_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_on("server", monkeypatch)
    receipt = receipt_on_the_server(plan)
    _, _, _, ceilings = MACHINES["server"]
    situation = choosing.situation_of(build_job(read_recipe(DEMO)), {}, ceilings)
    tried = with_receipt(plan, receipt, situation, KNOBS, "measured")
    check("explain_server_tried.txt", to_text(explain(tried, receipt=receipt)))
    check("receipt_server.txt", to_text(receipt_doc("digits-1", receipt)))
    assert Plan.from_dict(tried.to_dict()) == tried


def test_a_stored_plan_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_on("server", monkeypatch)
    assert to_text(explain(Plan.from_dict(plan.to_dict()))) == to_text(explain(plan))
