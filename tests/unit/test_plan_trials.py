"""Real trials on a CPU: arms, planted bugs, and processes that crash, hang or are killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flatout as fo
from flatout.engine.settings import Settings
from flatout.measure.recording import Trove
from flatout.plan.trials import bench as benches
from flatout.plan.trials.arm import Arm
from flatout.plan.trials.bench import Bench
from flatout.plan.trials.process import TrialProcess
from flatout.plan.trials.recording import Recording, shown
from flatout.plan.trials.reports import CRASHED, FAILED, HUNG, SLOW, Ask, PeakMemory, TrialReport, fitting_rows
from flatout.recipe.build import build_job

PLAIN = Settings(device="cpu", fused_optimizer=False, deterministic=True)
FUSED = replace(PLAIN, fused_optimizer=True)
HALVES = replace(PLAIN, micro_batch=16)


class Mixed(nn.Module):
    """A convolution, both kinds of norm, biases."""

    def __init__(self, dropout: float = 0.0, batch_norm: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, stride=2)
        self.norm = nn.BatchNorm2d(6) if batch_norm else nn.GroupNorm(2, 6)
        self.dropout = nn.Dropout(dropout)
        self.scale = nn.LayerNorm(54)
        self.head = nn.Linear(54, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale(self.dropout(torch.relu(self.norm(self.stem(x.unsqueeze(1)))).flatten(1))))


def bench_of(model: Callable[[], nn.Module], **given: Any) -> Bench:
    asked: dict[str, Any] = {"batch": 32, "lr": 3e-3, "weight_decay": 0.1, "budget": "40 steps", **given}
    return Bench(build_job(fo.Recipe(data="digits", model=model, **asked)), torch.device("cpu"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ask(settings: Settings, against: Settings | None = None, reference: Settings = PLAIN, **given: Any) -> Ask:
    beside = None if against is None else against.to_dict()
    return Ask(settings.to_dict(), beside, reference.to_dict(), measure_s=0.05, **given)


@pytest.mark.parametrize(
    "settings",
    [
        FUSED,
        replace(FUSED, channels_last=True),
        replace(FUSED, precision="bf16"),
        replace(PLAIN, activation_checkpointing=True),
    ],
    ids=["fused", "channels last", "bf16", "checkpointing"],
)
def test_a_correct_arm_agrees_with_the_baseline(settings: Settings) -> None:
    report = bench_of(Mixed).attempt(ask(settings, PLAIN))
    assert report.failure == "" and report.check is not None and report.check["passed"], report.check
    assert len(report.steps_s) == len(report.against_s) >= 7 and all(second > 0 for second in report.steps_s)


def test_micro_batches_agree_if_rows_do_not_interact() -> None:
    report = bench_of(lambda: Mixed(batch_norm=False)).attempt(ask(HALVES, PLAIN))
    assert report.check is not None and report.check["passed"], report.check


def test_dropout_is_off_while_steps_are_compared_and_on_while_they_are_timed() -> None:
    report = bench_of(lambda: Mixed(dropout=0.5)).attempt(ask(FUSED, PLAIN))
    assert report.check is not None and report.check["passed"], report.check


# ---- planted bugs ----


def _doubled_gradient(arm: Arm) -> None:
    arm.step.passes.backward = lambda loss: (2 * loss).backward()  # type: ignore[method-assign]


def _skipped_bias(arm: Arm) -> None:
    arm.model.head.bias.register_hook(torch.zeros_like)  # type: ignore[union-attr]


def _shifted_label(arm: Arm) -> None:
    arm.batches = [{**batch, "y": batch["y"].roll(1)} for batch in arm.batches]


def _stale_statistics(arm: Arm) -> None:
    arm.model.norm.momentum = 0.0  # type: ignore[union-attr, assignment]


def _dropped_last_part(arm: Arm) -> None:
    whole = arm.step.gradients._in_parts

    def all_but_the_last(batch: dict[str, Tensor], rows: int, micro: int) -> Any:
        return whole({name: column[:-micro] for name, column in batch.items()}, rows - micro, micro)

    arm.step.gradients._in_parts = all_but_the_last  # type: ignore[method-assign]


def _short_loss(arm: Arm) -> None:
    loss = arm.step.passes.loss

    def short(model: nn.Module, batch: dict[str, Tensor]) -> Any:
        total, weight = loss(model, batch)
        return (total / weight).bfloat16().float() * weight, weight

    arm.step.passes.loss = short


def _frozen_group(arm: Arm) -> None:
    arm.optimizer.param_groups[1]["factor"] = 0.0


def _decayed_norms(arm: Arm) -> None:
    for group in arm.optimizer.param_groups:
        group["weight_decay"] = 0.1


@pytest.mark.parametrize(
    ("plant", "settings", "told"),
    [
        (_doubled_gradient, FUSED, "gradient"),
        (_skipped_bias, FUSED, "head.bias"),
        (_shifted_label, FUSED, "loss"),
        (_stale_statistics, FUSED, "norm.running_"),
        (_dropped_last_part, HALVES, "samples or tokens"),
        (_short_loss, FUSED, "loss"),
        (_frozen_group, FUSED, "bias"),
        (_decayed_norms, FUSED, "weight"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[Arm], None], settings: Settings, told: str
) -> None:
    class Planted(Arm):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            if self.settings == settings:
                plant(self)

    model = (lambda: Mixed(batch_norm=False)) if plant is _dropped_last_part else Mixed
    honest = bench_of(model).attempt(ask(settings, PLAIN))
    assert honest.check is not None and honest.check["passed"]
    monkeypatch.setattr(benches, "Arm", Planted)
    report = bench_of(model).attempt(ask(settings, PLAIN))
    assert report.failure == "" and report.check is not None and not report.check["passed"]
    assert told in report.check["why"], report.check["why"]


# ---- difficult models ----


class Noisy(Mixed):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


class Destroying(Mixed):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(0.5))


class Looking(Mixed):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if float(x.mean()) > 0 else -x)


def test_a_model_with_its_own_random_numbers_can_not_be_proven() -> None:
    report = bench_of(Noisy).attempt(ask(PLAIN))
    assert report.check is not None and not report.check["passed"] and "not enough evidence" in report.check["why"]


def test_a_model_that_changes_its_input_is_reported() -> None:
    report = bench_of(Destroying).attempt(ask(PLAIN))
    assert report.failure == FAILED and "changes its input" in report.why


def test_a_model_that_depends_on_values_can_be_tried() -> None:
    report = bench_of(Looking).attempt(ask(FUSED, PLAIN))
    assert report.check is not None and report.check["passed"]


def test_an_arm_that_is_much_slower_ends_after_its_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(Mixed)
    monkeypatch.setattr("flatout.plan.trials.bench._seconds", lambda arm, steps: 0.5 * steps)
    report = bench.attempt(ask(FUSED, PLAIN, slowest_step_s=0.1))
    assert report.failure == SLOW and not report.steps_s


def test_very_short_steps_are_never_too_slow() -> None:
    """On a busy machine a step of microseconds can take any time."""
    report = bench_of(Mixed).attempt(ask(FUSED, PLAIN, slowest_step_s=1e-9))
    assert not report.failure and report.steps_s


def test_arms_train_on_the_same_data() -> None:
    bench = bench_of(Mixed)
    one, again = (bench.losses(PLAIN.to_dict(), 10, 1) for _ in range(2))
    other = bench.losses(replace(FUSED, precision="bf16").to_dict(), 10, 1)
    assert one.losses == again.losses and len(one.losses) == 10 and one.losses[-1] < one.losses[0]
    assert other.losses == pytest.approx(one.losses, rel=0.02) and other.losses != one.losses


def test_arms_train_again_from_the_start_on_the_batches_that_follow() -> None:
    bench = bench_of(Mixed)
    whole, later = bench.losses(PLAIN.to_dict(), 10, 1), bench.losses(PLAIN.to_dict(), 10, 1, after=10)
    assert later.losses == bench.losses(PLAIN.to_dict(), 10, 1, after=10).losses != whole.losses
    trained_on = bench.losses(PLAIN.to_dict(), 20, 1).losses[10:]
    assert later.losses[0] == bench.losses(PLAIN.to_dict(), 1, 1, after=10).losses[0] != trained_on[0]


def test_a_compiled_arm_is_trained_from_the_start_without_compiling_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.engine.compiling import CompileWatch

    compiled = replace(FUSED, compile="on")
    used, fresh = bench_of(Mixed), bench_of(Mixed)
    assert used.attempt(ask(compiled)).ran
    watch = CompileWatch()
    trained = used.losses(compiled.to_dict(), 10, 1)
    assert watch.news() is None
    assert trained.losses == pytest.approx(fresh.losses(compiled.to_dict(), 10, 1).losses, rel=1e-6)


# ---- memory ----


def test_rows_that_fit_are_found_from_two_probes() -> None:
    probes = [PeakMemory(rows, 1000 + 50 * rows, 10_000) for rows in (4, 8)]
    assert fitting_rows(probes, 64) == 64
    assert fitting_rows(probes, 256) == 128  # 1000 + 50 * 256 is too much, and so would be 164 of them with the margin
    assert fitting_rows([replace(probe, room_bytes=1500) for probe in probes], 64) == 8


# ---- processes ----

SERVER = """
import json, os, sys, time
questions, answers = os.fdopen(int(sys.argv[-2])), os.fdopen(int(sys.argv[-1]), "w")
for line in questions:
    asked = json.loads(line)["attempt"]
    how = asked["settings"]["precision"]
    if how == "fp16":
        sys.exit("a compiler fell over")
    if how == "tf32":
        time.sleep(600)
    if how == "int8":
        answers.write("Segmentation fault" + chr(10))
    if how == "int4":
        answers.write('{"settings": ')
        answers.close()
        os._exit(3)
    print("noise on stdout")
    report = {"settings": asked["settings"], "steps_s": [os.getpid()], "against_s": [], "lost": how == "bf16"}
    answers.write(json.dumps(report) + chr(10))
    answers.flush()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[TrialProcess]:
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    with TrialProcess([sys.executable, str(program)], limit_s=1.0) as made:
        yield made


def test_one_process_serves_trial_after_trial(process: TrialProcess) -> None:
    one, other = (process.attempt(ask(PLAIN)) for _ in range(2))
    assert one.ran and one.steps_s == other.steps_s


def test_a_process_started_early_answers_the_first_question(process: TrialProcess) -> None:
    process._limit_s = 60.0
    process.begin()
    began = process._answering()._running
    process.begin()  # already started: no effect
    assert process._answering()._running is began
    assert process.attempt(ask(PLAIN, patience_s=0.001)).ran  # the start of the process is not part of the time limit
    assert process._answering()._running is began
    assert process.attempt(ask(replace(PLAIN, precision="tf32"), patience_s=0.5)).failure == HUNG


def test_a_crash_gives_a_report_and_the_next_trial_runs(process: TrialProcess) -> None:
    report = process.attempt(ask(replace(PLAIN, precision="fp16")))
    assert report.failure == CRASHED and "a compiler fell over" in report.why and "code 1" in report.why
    assert process.attempt(ask(PLAIN)).ran


def test_after_a_lost_device_the_next_trial_gets_a_new_process(process: TrialProcess) -> None:
    lost = process.attempt(ask(replace(PLAIN, precision="bf16")))
    after, again = (process.attempt(ask(PLAIN)) for _ in range(2))
    assert after.ran and after.steps_s == again.steps_s != lost.steps_s


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        ("int8", "the trial's reply can't be read: expected a line of JSON, got 'Segmentation fault'"),
        ("int4", "the trial ended with code 3"),
    ],
)
def test_incomplete_and_invalid_replies_are_reported(process: TrialProcess, precision: str, words: str) -> None:
    asked = ask(PLAIN)
    report = process.attempt(replace(asked, settings={**asked.settings, "precision": precision}))
    assert (report.failure, report.why) == (CRASHED, words)
    assert process.attempt(ask(PLAIN)).ran


def test_a_hang_ends_at_its_time_limit(process: TrialProcess) -> None:
    report = process.attempt(ask(replace(PLAIN, precision="tf32")))
    assert report.failure == HUNG and "1 s" in report.why
    assert process.attempt(ask(PLAIN)).ran


def test_a_short_trial_has_a_short_time_limit(process: TrialProcess) -> None:
    process.attempt(ask(PLAIN))  # it has started
    process._limit_s = 60.0
    report = process.attempt(ask(replace(PLAIN, precision="tf32"), patience_s=0.5))
    assert report.failure == HUNG and "500 ms" in report.why


def test_a_trial_that_is_killed_from_outside_is_a_rejection(process: TrialProcess) -> None:
    process._limit_s = 30.0
    pid = int(process.attempt(ask(PLAIN)).steps_s[0])
    killer = threading.Thread(target=lambda: (time.sleep(0.3), os.kill(pid, signal.SIGKILL)))
    killer.start()
    report = process.attempt(ask(replace(PLAIN, precision="tf32")))
    killer.join()
    assert report.failure == CRASHED and "SIGKILL" in report.why


# ---- recordings ----


def test_measurements_of_other_versions_are_not_used_and_reported(tmp_path: Path) -> None:
    recording = Recording(None, _Answers())
    recording.attempt(ask(FUSED))
    Trove(tmp_path, "key", {"torch": "2.11", "flatout": "1"}).write(recording.to_dict())
    same = Trove(tmp_path, "key", {"torch": "2.11", "flatout": "1"})
    kept = same.kept
    assert kept is not None and Recording(kept).attempt(ask(FUSED)).steps_s == (1.0,) and same.note == ""
    other = Trove(tmp_path, "key", {"torch": "2.13", "flatout": "1"})
    assert other.kept is None and "made with torch 2.11" in other.note


def test_a_crash_is_tried_again_by_the_next_run() -> None:
    class Crashes:
        def attempt(self, asked: Ask) -> TrialReport:
            return TrialReport(dict(asked.settings), CRASHED, "killed by SIGKILL")

    recording = Recording(None, Crashes())
    assert recording.attempt(ask(FUSED)).failure == CRASHED
    assert Recording(recording.to_dict(), _Answers()).attempt(ask(FUSED)).ran


def test_a_damaged_file_of_measurements_is_measured_again(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "key.json").write_text('{"format": 1, ')
    trove = Trove(tmp_path, "key", {})
    assert trove.kept is None and "measuring again" in trove.note


def test_settings_that_do_not_change_a_step_share_one_trial() -> None:
    assert shown(replace(FUSED, log_every=7, tier="mapped").to_dict()) == shown(FUSED.to_dict())
    assert "precision=bf16" in shown(replace(FUSED, precision="bf16").to_dict())


class _Answers:
    def attempt(self, asked: Ask) -> TrialReport:
        return TrialReport(dict(asked.settings), steps_s=(1.0,))
