"""SIGTERM, SIGHUP and SIGINT: saved at the next step boundary, and the same command goes on to the same bits."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_kit import Disturb, disturbed, dropping_net, equal, kinds, only_run, recipe, train, weights
from torch import Tensor, nn

from flatout.base.errors import Stopped
from flatout.drill.difference import differing_bits

CODES = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}


def send(number: signal.Signals, call: int, training: bool) -> Disturb:
    """From inside of the model's n-th forward in training, or in evaluation (not in the checks of two rows before a run)."""
    calls = iter(range(1 << 30))

    def disturb(model: nn.Module, x: Tensor) -> Tensor:
        if model.training == training and (training or len(x) > 2) and next(calls) == call:
            os.kill(os.getpid(), number)
        return x

    return disturb


def asked(**given: Any) -> Any:
    return recipe(**{"model": dropping_net, "evaluate": "4 steps", "budget": "190 samples", "ema": 0.9, **given})


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("number", list(CODES), ids=lambda number: number.name)
def test_stopped_saved_and_resumed_to_the_same_bits(tmp_path: Path, number: signal.Signals, training: bool) -> None:
    calm = train(tmp_path / "calm", asked())
    with disturbed(send(number, 5 if training else 1, training)), pytest.raises(Stopped) as stopped:
        train(tmp_path / "cut", asked())
    assert stopped.value.exit_code == CODES[number] and stopped.value.signal_name == number.name
    assert "saved at step" in str(stopped.value) and "grace period" in str(stopped.value)
    cut = only_run(tmp_path / "cut")
    (event,) = kinds(cut, "stopped")
    assert event["step"] == (6 if training else 4) and event["save_s"] >= 0 and event["grace_s"] == 30
    assert cut.result["status"] == "stopped" and cut.folder.checkpoints().steps()[-1] == event["step"]
    run = train(tmp_path / "cut", asked())
    assert run.name == cut.name and run.result["status"] == "finished"
    bits, tensors = differing_bits(calm.folder, run.folder)
    assert bits == 0 and tensors > 20, "weights, average, optimizer and random state"
    assert equal(weights(calm), weights(run))

    def evaluations(of: Any) -> list[Any]:
        return [(event["step"], event["metrics"], event["best"]) for event in kinds(of, "evaluation")]

    assert evaluations(calm) == evaluations(run), "each evaluation once, at its step"
    assert run.result["best"] == calm.result["best"] and run.result["samples"] == 190


def test_stopped_again_and_again(tmp_path: Path) -> None:
    calm = train(tmp_path / "calm", asked())
    for _ in range(3):
        with disturbed(send(signal.SIGTERM, 2, training=True)), pytest.raises(Stopped):
            train(tmp_path / "cut", asked())
    run = train(tmp_path / "cut", asked())
    assert [event["step"] for event in kinds(run, "resumed")] == [3, 6, 9]
    assert differing_bits(calm.folder, run.folder)[0] == 0


def rmsprop(groups: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(groups, lr=lr, centered=True, momentum=0.5)


@pytest.mark.parametrize(
    "form",
    [
        {"optimizer": "sgd", "clip": 0.1, "freeze": ("norm.*",), "rates": {"head.*": 0.5}},
        {"optimizer": {"sgd": {"momentum": 0.0}}, "settings": {"micro_batch": 5}},
        {"optimizer": "adam", "settings": {"fused_optimizer": False, "tier": "pinned"}},
        {"optimizer": rmsprop},
        {"settings": {"precision": "fp16"}},
        {"settings": {"precision": "bf16"}, "schedule": {"one_cycle": {"peak_at": 0.4}}},
    ],
    ids=["sgd", "plain-sgd-micro", "unfused-adam-pinned", "rmsprop", "fp16", "bf16"],
)
def test_every_form_resumes_to_the_same_bits(tmp_path: Path, form: dict[str, Any]) -> None:
    calm = train(tmp_path / "calm", asked(**form))
    with disturbed(send(signal.SIGTERM, 17 if "micro_batch" in str(form) else 5, training=True)), pytest.raises(Stopped):
        train(tmp_path / "cut", asked(**form))
    run = train(tmp_path / "cut", asked(**form))
    assert kinds(run, "resumed") and differing_bits(calm.folder, run.folder)[0] == 0


def test_stopped_in_the_evaluation_that_was_the_best(tmp_path: Path) -> None:
    """The checkpoint of that step is there already: it must still become the best, be kept, and be the result."""
    values = [0.0, 0.9, 0.1, 0.1, 0.1, 0.1]
    given = {"evaluate": "2 steps", "early_stop": 4, "budget": "20 steps", "settings": {"checkpoint_every": "1 steps"}}
    left = iter([0.0, *values[1:]])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("flatout.objectives.classify._finish", lambda total: {"loss": 1.0, "accuracy": next(left)})
        with disturbed(send(signal.SIGTERM, 0, training=False)), pytest.raises(Stopped):
            train(tmp_path, asked(**given))
        left = iter(values)
        run = train(tmp_path, asked(**given))
    assert run.result["best"] == {"step": 2, "metric": "accuracy", "value": 0.9}
    assert "not improved" in run.result["reason"] and run.result["steps"] == 10
    assert 2 in run.folder.checkpoints().steps() and not kinds(run, "degraded")
    assert equal(weights(run), run.folder.checkpoints().load(2)["average"])


def test_stopped_after_the_last_step(tmp_path: Path) -> None:
    """In the final evaluation: nothing is left to train, and the same command still finishes the run."""
    calm = train(tmp_path / "calm", asked(evaluate=None))
    with disturbed(send(signal.SIGTERM, 0, training=False)), pytest.raises(Stopped):
        train(tmp_path / "cut", asked(evaluate=None))
    run = train(tmp_path / "cut", asked(evaluate=None))
    assert run.result["steps"] == 12 and run.result["metrics"]["accuracy"] == calm.result["metrics"]["accuracy"]
    assert differing_bits(calm.folder, run.folder)[0] == 0


def test_stopped_before_the_first_step(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if event["kind"] == "started":
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="saved at step 0"):
        train(tmp_path, asked(), observers=[stop])
    assert train(tmp_path, asked()).result["steps"] == 12


def test_a_save_that_does_not_fit_the_grace_period_is_said(tmp_path: Path) -> None:
    with disturbed(send(signal.SIGTERM, 3, training=True)), pytest.raises(Stopped, match="LONGER than the grace period of 0 s"):
        train(tmp_path, asked(settings={"grace": "0 s"}))


def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    def disturb(model: nn.Module, x: Tensor) -> Tensor:
        if model.training:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return x

    with disturbed(disturb), pytest.raises(KeyboardInterrupt):
        train(tmp_path, asked())
    assert only_run(tmp_path).result["status"] == "stopped"
    assert train(tmp_path, asked()).result["steps"] == 12


def test_handlers_are_the_callers_again(tmp_path: Path) -> None:
    def mine(number: int, frame: Any) -> None:
        pass

    before = {number: signal.signal(number, mine) for number in CODES}
    try:
        train(tmp_path, budget="2 steps")
        with disturbed(send(signal.SIGTERM, 1, training=True)), pytest.raises(Stopped):
            train(tmp_path, budget="5 steps")
        assert all(signal.getsignal(number) is mine for number in CODES)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_below_nohup_a_hangup_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with disturbed(send(signal.SIGHUP, 1, training=True)):
            assert train(tmp_path, budget="5 steps").result["steps"] == 5
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_a_run_leaves_signals_alone(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in CODES}
    seen: list[Any] = []

    def disturb(model: nn.Module, x: Tensor) -> Tensor:
        seen.append({number: signal.getsignal(number) for number in CODES})
        return x

    with disturbed(disturb):
        thread = threading.Thread(target=lambda: train(tmp_path, budget="3 steps"))
        thread.start()
        thread.join()
    assert only_run(tmp_path).result["steps"] == 3
    assert all(handlers == before for handlers in seen)
