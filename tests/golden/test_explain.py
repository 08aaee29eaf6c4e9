"""What `explain` says of the demo, word for word, on machines that are made up. FLATOUT_UPDATE_GOLDEN=1 writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import flatout.cli
from flatout.base.tree import to_json, to_text
from flatout.building import build_job
from flatout.machine.ceilings import Ceilings, Measured
from flatout.measure.counts import Counts
from flatout.plan import choose as choosing
from flatout.plan import predict as predicting
from flatout.plan import tier
from flatout.plan.explain import explain
from flatout.plan.plan import Plan
from flatout.reading import read_recipe

HERE = Path(__file__).parent
DEMO = Path(flatout.cli.__file__).with_name("digits.yaml")


def measured(value: float) -> Measured:
    return Measured(value, value, value, 10)


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


def plan_on(machine: str, monkeypatch: pytest.MonkeyPatch) -> Plan:
    device, name, free_bytes, ceilings = MACHINES[machine]
    monkeypatch.setattr(choosing, "pick_device", lambda asked: torch.device(device))
    monkeypatch.setattr(choosing, "device_name", lambda device: name)
    monkeypatch.setattr(tier, "free_bytes", lambda device: int(free_bytes))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    # what torch counts differs a little between its versions; how it is shown does not
    monkeypatch.setattr(predicting, "count_batch", lambda job: (Counts(130_000_000, 13_000_000, 40), job.batch))
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
    check("explain_laptop.json", to_json(explain(plan_on("laptop", monkeypatch))))


def test_the_plan_after_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    check("explain_laptop_done.txt", to_text(explain(plan_on("laptop", monkeypatch), DONE, DEGRADED)))


def test_a_stored_plan_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_on("server", monkeypatch)
    assert to_text(explain(Plan.from_dict(plan.to_dict()))) == to_text(explain(plan))
