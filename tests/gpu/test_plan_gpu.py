"""Trials on a GPU: every form of a step agrees with the plain one, a planted bug does not, and what was tried is faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import flatout as fo
from flatout.engine.settings import Settings
from flatout.plan.trials import bench as benches
from flatout.plan.trials.arm import Arm
from flatout.plan.trials.bench import Bench
from flatout.plan.trials.reports import OUT_OF_MEMORY, Ask
from flatout.recipe.build import build_job

PLAIN = Settings(device="cuda", fused_optimizer=False, deterministic=False)
FAST = replace(PLAIN, precision="bf16", fused_optimizer=True, graph=True)

pytestmark = pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # fp32 is asked for


def images(**given: Any) -> fo.Recipe:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (2048, 1, 28, 28), dtype=torch.uint8, generator=draw)
    data = fo.data.arrays(x, torch.randint(0, 10, (2048,), generator=draw), layout="chw", normalize="auto")
    asked: dict[str, Any] = {
        "data": data,
        "model": "convnet",
        "batch": 256,
        "lr": 1e-3,
        "budget": "20000000 steps",  # hours: trials pay
        "evaluate": None,
    }
    return fo.Recipe(**asked, **given)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(build_job(images()), torch.device("cuda"))
    yield made
    made.close()


def ask(settings: Settings, **given: Any) -> Ask:
    return Ask(settings.to_dict(), PLAIN.to_dict(), PLAIN.to_dict(), measure_s=0.1, **given)


@pytest.mark.parametrize(
    "settings",
    [
        replace(PLAIN, precision="tf32"),
        replace(PLAIN, precision="bf16"),
        replace(PLAIN, precision="fp16", fused_optimizer=True),
        replace(PLAIN, graph=True, fused_optimizer=True),
        replace(PLAIN, channels_last=True),
        replace(PLAIN, micro_batch=64),
        replace(FAST, compile="on"),
    ],
    ids=["tf32", "bf16", "fp16", "graph", "channels last", "micro", "all of it"],
)
def test_every_form_agrees_with_the_plain_step(bench: Bench, settings: Settings) -> None:
    report = bench.attempt(ask(settings))
    assert report.ran, f"{report.failure}: {report.why}"
    assert report.check is not None and report.check["passed"], report.check
    assert report.peak_bytes and len(report.steps_s) >= 5


def test_a_doubled_gradient_inside_a_graph_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Planted(Arm):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            if self.settings.graph:
                self.step.passes.backward = lambda loss: (2 * loss).backward()  # type: ignore[method-assign]

    monkeypatch.setattr(benches, "Arm", Planted)
    bench = Bench(build_job(images()), torch.device("cuda"))
    report = bench.attempt(ask(FAST))
    bench.close()
    assert report.check is not None and not report.check["passed"] and "gradient" in report.check["why"]


def test_arms_that_train_side_by_side_see_the_same_data(bench: Bench) -> None:
    plain, fast = bench.losses(PLAIN.to_dict(), 24, 1), bench.losses(FAST.to_dict(), 24, 1)
    assert plain.failure == fast.failure == "" and fast.losses == pytest.approx(plain.losses, rel=0.02)


def test_out_of_memory_is_a_report_and_the_next_trial_goes_on(bench: Bench) -> None:
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-4)
    held = _all_that_is_left()  # what other tests left in the allocator would do for a step
    try:
        report = bench.attempt(ask(PLAIN))
    finally:
        del held
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert report.failure == OUT_OF_MEMORY
    assert bench.attempt(ask(PLAIN)).ran


def _all_that_is_left() -> list[torch.Tensor]:
    held = []
    for size in (64 << 20, 8 << 20, 1 << 20, 64 << 10):
        with suppress(torch.OutOfMemoryError):
            while True:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    return held


def test_memory_grows_with_the_rows(bench: Bench) -> None:
    few, more = bench.held(PLAIN.to_dict(), 32), bench.held(PLAIN.to_dict(), 128)
    assert not few.failure and 0 < few.peak_bytes < more.peak_bytes < more.room_bytes


def test_a_plan_that_was_tried_is_faster_and_says_so(tmp_path: Path) -> None:
    written = tmp_path / "mine.py"
    written.write_text(
        "import sys\nsys.path.insert(0, " + repr(str(Path(__file__).parent)) + ")\n"
        "from test_plan_gpu import images\n\ndef recipe():\n    return images(settings={'device': 'cuda'})\n"
    )
    from flatout.plan.make import checked_plan
    from flatout.recipe.load import read_recipe

    recipe = read_recipe(written)
    plan, receipt = checked_plan(recipe, build_job(recipe), tmp_path / "cache", limit_s=120)
    assert receipt is not None and receipt.isolated
    assert receipt.gain is not None and receipt.gain > 1.5, (receipt.stopped, receipt.entries)
    assert receipt.paired is not None and receipt.paired["passed"] and plan.settings.graph
    again, recalled = checked_plan(recipe, build_job(recipe), tmp_path / "cache", limit_s=120)
    assert recalled is not None and again.settings == plan.settings and recalled.took_s < receipt.took_s
