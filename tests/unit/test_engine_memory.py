"""Out of memory: the batch is split and tried again, with the same loss, and the size that fits is remembered."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_kit import Disturb, disturbed, in_training, kinds, only_run, recipe, train, weights
from torch import Tensor, nn

from flatout.base.errors import OutOfMemory, Stopped


def fits(rows: int, error: type[BaseException] = torch.OutOfMemoryError, said: str = "out of memory") -> Disturb:
    """A device that holds the activations of so many rows and no more, in training."""

    def disturb(call: int, x: Tensor) -> None:
        if len(x) > rows:
            raise error(f"{said}: tried to allocate more for {len(x)} rows")

    return in_training(disturb)


@pytest.mark.parametrize(
    "error", [(torch.OutOfMemoryError, "CUDA out of memory"), (RuntimeError, "can't allocate memory")], ids=["device", "host"]
)
def test_split_once_with_the_same_loss(tmp_path: Path, error: Any) -> None:
    given: dict[str, Any] = {"optimizer": "sgd", "settings": {"log_every": 1}}
    calm = train(tmp_path / "calm", **given)
    with disturbed(fits(8, *error)):
        split = train(tmp_path / "split", **given)
    (event,) = kinds(split, "degraded")
    assert event["what"] == "micro_batch" and event["value"] == 8
    assert "16 samples" in event["why"] and error[1] in event["why"]
    assert split.result["steps"] == 12 and split.result["micro_batch"] == 8
    for one, other in zip(kinds(calm, "step"), kinds(split, "step"), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-6) and other["samples"] == one["samples"]
    for name, tensor in weights(calm).items():
        torch.testing.assert_close(weights(split)[name], tensor, rtol=1e-6, atol=1e-6)
    assert "micro_batch" in split.explain(), "a degraded choice is a row of explain"


def test_split_as_often_as_needed_and_only_in_the_first_step(tmp_path: Path) -> None:
    with disturbed(fits(3)):
        run = train(tmp_path)
    assert [event["value"] for event in kinds(run, "degraded")] == [8, 4, 2]
    assert run.result["steps"] == 12 and run.result["samples"] == 12 * 16


def test_remembered_after_a_resume(tmp_path: Path) -> None:
    asked = recipe(settings={"log_every": 1})

    def stop(event: Any) -> None:
        if event["kind"] == "step" and event["step"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    failed: list[int] = []

    def watch(model: nn.Module, x: Tensor) -> Tensor:
        if model.training and len(x) > 8:
            failed.append(len(x))
        return x

    with disturbed(watch), disturbed(fits(8)):
        with pytest.raises(Stopped):
            train(tmp_path, asked, observers=[stop])
        run = train(tmp_path, asked)
    assert failed == [16], "the resumed run starts with what was found to fit"
    assert len(kinds(run, "degraded")) == 1 and run.result["micro_batch"] == 8


def test_a_single_sample_that_does_not_fit_is_said(tmp_path: Path) -> None:
    with disturbed(fits(0)), pytest.raises(OutOfMemory, match=r"one sample.*activation_checkpointing"):
        train(tmp_path)
    result = only_run(tmp_path).result
    assert result["status"] == "failed" and "one sample" in result["reason"]


def test_other_errors_of_the_model_are_not_taken_for_it(tmp_path: Path) -> None:
    def disturb(call: int, x: Tensor) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with disturbed(in_training(disturb)), pytest.raises(RuntimeError, match="cannot be multiplied"):
        train(tmp_path)
    run = only_run(tmp_path)
    assert run.result["status"] == "failed" and not kinds(run, "degraded")


def test_evaluation_is_split_too(tmp_path: Path) -> None:
    calm = train(tmp_path / "calm", optimizer="sgd")

    def disturb(model: nn.Module, x: Tensor) -> Tensor:
        if len(x) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x

    with disturbed(disturb):
        run = train(tmp_path / "split", optimizer="sgd")
    assert run.result["metrics"]["loss"] == pytest.approx(calm.result["metrics"]["loss"], rel=1e-5)
    assert run.result["metrics"]["accuracy"] == calm.result["metrics"]["accuracy"]
    assert [event["what"] for event in kinds(run, "degraded")].count("evaluation_batch") >= 1
