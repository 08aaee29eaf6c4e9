"""A run is a good guest: it leaves the caller's process as it found it, and what it writes adds up and can be read."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_engine_kit import disturbed, dropping_net, in_training, kinds, only_run, recipe, train, weights

from flatout.base.events import read_events
from flatout.measure.ledger import ROWS


def random_numbers() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def flags() -> dict[str, Any]:
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "matmul": torch.get_float32_matmul_precision(),
        "tf32": torch.backends.cudnn.allow_tf32,
        "benchmark": torch.backends.cudnn.benchmark,
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("fails", [False, True], ids=["finished", "failed"])
def test_random_numbers_and_flags_are_the_callers(tmp_path: Path, fails: bool) -> None:
    def disturb(call: int, x: torch.Tensor) -> None:
        assert torch.are_deterministic_algorithms_enabled(), "deterministic is on while it trains"
        random.random(), np.random.rand()
        if fails and call == 3:
            raise ValueError("a mistake in the model")

    def seeded() -> None:
        random.seed(5), np.random.seed(5), torch.manual_seed(5)

    before = flags()
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        as_set = flags()
        seeded()
        expected = random_numbers()
        seeded()
        with disturbed(in_training(disturb)):
            if fails:
                with pytest.raises(ValueError, match="a mistake"):
                    train(tmp_path, model=dropping_net)
            else:
                train(tmp_path, model=dropping_net)
        assert random_numbers() == expected
        assert flags() == as_set
    finally:
        torch.set_float32_matmul_precision(before["matmul"])
        torch.use_deterministic_algorithms(before["deterministic"], warn_only=before["warn only"])
    assert flags() == before


def test_the_callers_random_numbers_do_not_change_the_run(tmp_path: Path) -> None:
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        results.append(weights(train(tmp_path / str(seed), model=dropping_net)))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    other = weights(train(tmp_path / "other", model=dropping_net, seed=1))
    assert not torch.equal(results[0]["head.weight"], other["head.weight"])


def test_the_callers_model_is_not_touched(tmp_path: Path) -> None:
    model = dropping_net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train(tmp_path, model=model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_view_that_breaks_is_dropped_and_the_run_goes_on(tmp_path: Path) -> None:
    seen: list[str] = []

    def broken(event: Any) -> None:
        if event["kind"] == "step":
            raise ValueError("no terminal here")

    run = train(tmp_path, observers=[broken, lambda event: seen.append(event["kind"])])
    (event,) = kinds(run, "observer_dropped")
    assert "no terminal here" in event["error"]
    assert run.result["steps"] == 12 and seen[-1] == "finished" and seen.count("step") == 4


def test_a_torn_last_line_is_passed_over_and_the_log_goes_on(tmp_path: Path) -> None:
    asked = recipe()
    with disturbed(in_training(lambda call, x: None if call < 5 else 1 / 0)), pytest.raises(ZeroDivisionError):
        train(tmp_path, asked)
    path = only_run(tmp_path).folder.events_path
    whole = len(list(read_events(path)))
    with path.open("ab") as log:
        log.write(b'{"kind": "step", "st')
    assert len(list(read_events(path))) == whole
    run = train(tmp_path, asked)
    after = list(read_events(path))
    assert run.result["status"] == "finished" and after[whole]["kind"] == "planned" and after[-1]["kind"] == "finished"


def test_the_ledger_adds_up_to_wall_time(tmp_path: Path) -> None:
    asked = recipe(budget="150 steps", evaluate="50 steps", settings={"checkpoint_every": "40 steps", "log_every": 0})
    times: dict[str, float] = {}

    def watch(event: Any) -> None:
        times.setdefault(event["kind"], time.perf_counter())

    run = train(tmp_path, asked, observers=[watch])
    ledger = run.result["ledger"]
    assert tuple(ledger) == ROWS and all(spent_s >= 0 for spent_s in ledger.values())
    assert sum(ledger.values()) == pytest.approx(run.result["wall_seconds"], rel=0.01)
    assert run.result["wall_seconds"] == pytest.approx(times["finished"] - times["planned"], rel=0.1, abs=0.1)
    assert run.result["train_seconds"] <= run.result["wall_seconds"]
    for row in ("data", "forward", "backward", "optimizer", "evaluation", "checkpoint"):
        assert ledger[row] > 0, row
    assert ledger["unattributed"] <= 0.02 * run.result["wall_seconds"]


def test_the_ledger_of_a_resumed_run_adds_up_too(tmp_path: Path) -> None:
    asked = recipe(budget="60 steps", settings={"checkpoint_every": "10 steps"})
    with disturbed(in_training(lambda call, x: None if call < 45 else 1 / 0)), pytest.raises(ZeroDivisionError):
        train(tmp_path, asked)
    kept = only_run(tmp_path).folder.checkpoints().load_latest(lambda step, why: None)
    assert kept is not None
    earlier = kept[1]["progress"]["ledger"]
    run = train(tmp_path, asked)
    assert sum(run.result["ledger"].values()) == pytest.approx(run.result["wall_seconds"], rel=0.01)
    assert run.result["ledger"]["forward"] > earlier["forward"] > 0


def test_the_result_says_what_happened(tmp_path: Path) -> None:
    run = train(tmp_path, clip=1.0)
    result = json.loads((run.path / "result.json").read_text())
    assert result["status"] == "finished" and result["steps"] == 12 and result["samples"] == 192
    assert result["samples_per_s"] == pytest.approx(192 / result["train_seconds"])
    assert result["metrics"].keys() == {"train_loss", "loss", "accuracy"} and 0 <= result["metrics"]["accuracy"] <= 1
    assert result["best"]["metric"] == "accuracy" and result["micro_batch"] == 16
    assert result["skipped_steps"] == result["rollbacks"] == result["events_lost"] == 0
    assert result["checkpoints"]["saved"] >= 2 and result["checkpoints"]["failed"] == 0
    assert 0 < result["checkpoints"]["blocked_s"] < result["checkpoints"]["whole_s"]
    assert result["plan"]["settings"]["device"] == "cpu" and result["peak_memory_bytes"] > 1e6
    assert result["energy_wh"] == "unavailable" or result["energy_wh"] >= 0
    steps = kinds(run, "step")
    assert [event["step"] for event in steps] == [4, 6, 10, 12] and all(event["grad_norm"] > 0 for event in steps)
    assert steps[-1]["done"] == 1 and steps[-1]["epoch"] == 2
    assert (run.path / "model.safetensors").exists() and run.folder.status == "finished"


def test_a_run_that_fails_says_why_and_resumes(tmp_path: Path) -> None:
    asked = recipe(settings={"checkpoint_every": "2 steps"})
    with disturbed(in_training(lambda call, x: None if call < 5 else 1 / 0)), pytest.raises(ZeroDivisionError):
        train(tmp_path, asked)
    run = only_run(tmp_path)
    assert run.result["status"] == "failed" and "ZeroDivisionError" in run.result["reason"]
    assert kinds(run, "failed")[0]["error"].startswith("ZeroDivisionError")
    again = train(tmp_path, asked)
    assert again.name == run.name and kinds(again, "resumed")[0]["step"] == 4 and again.result["steps"] == 12
    assert train(tmp_path, asked).name != run.name, "after a finished run the same command starts a new one"
