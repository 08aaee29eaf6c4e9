"""A loss that is not a number: the step changes nothing, is counted, and too many of them roll the run back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_kit import Net, disturbed, in_training, kinds, only_run, recipe, train, weights
from torch import Tensor, nn

from flatout.base.errors import Diverged
from flatout.store.run_folder import RunFolder

NAN = float("nan")
EVERY = {"log_every": 1, "checkpoint_every": "1 steps", "keep_checkpoints": 20}


def bad_at(*calls: int) -> Any:
    return in_training(lambda call, x: x * NAN if call in calls else x)


def saved(folder: RunFolder, step: int) -> dict[str, Any]:
    return folder.checkpoints().load(step)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_step_is_skipped_and_counted(tmp_path: Path, optimizer: str, clip: float | None) -> None:
    steps: dict[int, Any] = {}

    def disturb(model: nn.Module, x: Tensor) -> Tensor:
        if model.training:
            steps[len(steps)] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return x * NAN if len(steps) == 4 and model.training else x

    with disturbed(disturb):
        run = train(tmp_path, optimizer=optimizer, clip=clip, settings={"log_every": 1})
    assert same(steps[3], steps[4]) and not same(steps[4], steps[5])
    assert run.result["skipped_steps"] == 1 and run.result["steps"] == 12
    (event,) = kinds(run, "nonfinite")
    assert event["step"] == 4 and event["skipped"] == 1
    assert all(tensor.isfinite().all() for tensor in weights(run).values())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_optimizer_is_as_if_the_step_had_not_been(tmp_path: Path, optimizer: str) -> None:
    with disturbed(bad_at(0, 5)):
        run = train(
            tmp_path, optimizer=optimizer, settings={**EVERY, "nonfinite_limit": 5}, budget="8 steps", schedule="constant"
        )
    last = saved(run.folder, 8)
    counts = {float(state["step"]) for state in last["optimizer"]["by_name"].values() if "step" in state}
    assert counts <= {6.0}
    states = last["optimizer"]["by_name"].values()
    assert all(value.isfinite().all() for state in states for value in state.values() if value is not None)
    assert run.result["skipped_steps"] == 2


def test_a_gradient_that_is_not_a_number_is_skipped_and_counted_where_the_norm_is_known(tmp_path: Path) -> None:
    class Poison(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            return gradient * NAN

    class Poisoned(Net):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Poisoned.calls += self.training
            output = super().forward(x)
            return Poison.apply(output) if self.training and Poisoned.calls == 4 else output

    run = train(tmp_path, model=Poisoned, clip=1.0, settings={"log_every": 1})
    assert run.result["skipped_steps"] == 1
    assert all(tensor.isfinite().all() for tensor in weights(run).values())


def test_many_in_a_row_roll_back_at_a_lower_rate(tmp_path: Path) -> None:
    with disturbed(bad_at(6, 7, 8)):
        run = train(
            tmp_path,
            settings={**EVERY, "checkpoint_every": "4 steps", "nonfinite_limit": 3},
            schedule="constant",
            evaluate=None,
        )
    (event,) = kinds(run, "rolled_back")
    assert event["step"] == 4 and event["from_step"] == 9 and event["rate_factor"] == 0.5
    assert "3 steps in a row" in event["why"]
    rates = {step["step"]: step["lr"] for step in kinds(run, "step")}
    assert rates[4] == 0.01 and rates[12] == 0.005
    assert run.result["status"] == "finished" and run.result["steps"] == 12 and run.result["samples"] == 192
    assert run.result["rollbacks"] == 1 and run.result["skipped_steps"] == 3


@pytest.mark.parametrize(
    "when", [{"evaluate": "5 steps"}, {"settings": {"checkpoint_every": "5 steps"}}], ids=["evaluation", "save"]
)
def test_a_rollback_found_at_an_evaluation_or_a_save_keeps_the_count(tmp_path: Path, when: dict[str, Any]) -> None:
    """Nothing is logged before those: they read the log themselves, and the run must go on from the checkpoint."""
    seen: list[Tensor] = []

    def disturb(call: int, x: Tensor) -> Tensor:
        seen.append(x.clone())
        return x * NAN if call in (2, 3, 4) else x

    settings = {"log_every": 100, "nonfinite_limit": 3, **when.pop("settings", {})}
    with disturbed(in_training(disturb)):
        run = train(tmp_path, settings=settings, **when)
    assert len(kinds(run, "rolled_back")) == 1
    assert run.result["steps"] == 12 and run.result["samples"] == 192
    assert len(seen) == 5 + 12, "after the rollback to the start all twelve steps are trained"
    assert torch.equal(torch.cat(seen[5:10]), torch.cat(seen[:5])), "on the same samples"


def test_the_end_is_diverged_with_the_reason(tmp_path: Path) -> None:
    asked = recipe(settings={**EVERY, "checkpoint_every": "3 steps", "nonfinite_limit": 2}, lr=0.5)
    trouble = in_training(lambda call, x: x * NAN if call >= 4 else x)
    with (
        disturbed(trouble),
        pytest.raises(Diverged, match=r"not finite for 2 steps.*rolled back 3 times.*lower lr \(it is 0.5\)") as end,
    ):
        train(tmp_path, asked)
    assert end.value.exit_code == 1
    run = only_run(tmp_path)
    assert run.result["status"] == "diverged" and "lower lr" in run.result["reason"] and "plan" in run.result
    assert [event["rate_factor"] for event in kinds(run, "rolled_back")] == [0.5, 0.25, 0.125]
    assert kinds(run, "failed")
    assert train(tmp_path, asked).name != run.name, "a run that diverged has ended: the same command starts anew"


@pytest.mark.parametrize("bad_steps", [(6,), (6, 11)], ids=["early", "early and at the very end"])
def test_weights_that_are_not_numbers_are_never_kept(tmp_path: Path, bad_steps: tuple[int, ...]) -> None:
    """An optimizer that can't skip a step on the device takes the NaN into the weights."""
    with disturbed(bad_at(*bad_steps)):
        run = train(tmp_path, settings={**EVERY, "checkpoint_every": "2 steps", "fused_optimizer": False})
    for step in run.folder.checkpoints().steps():
        assert all(tensor.isfinite().all() for tensor in saved(run.folder, step)["model"].values())
    assert kinds(run, "rolled_back")
    assert all(tensor.isfinite().all() for tensor in weights(run).values())
    assert run.result["status"] == "finished" and run.result["steps"] == 12


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


class BadOnce(Normed):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            BadOnce.calls += 1
            if BadOnce.calls == 6:
                x = x * NAN
        return super().forward(x)


def test_running_statistics_that_are_not_numbers_are_never_kept(tmp_path: Path) -> None:
    BadOnce.calls = 0
    run = train(tmp_path, model=BadOnce, settings={**EVERY, "checkpoint_every": "2 steps"})
    for name, tensor in weights(run).items():
        assert tensor.isfinite().all(), name
    assert run.result["metrics"]["loss"] == run.result["metrics"]["loss"]
    assert run.result["steps"] == 12


def test_fp16_without_a_fused_optimizer_is_refused(tmp_path: Path) -> None:
    from flatout.base.errors import UsageError

    with pytest.raises(UsageError, match=r"fp16.*fused"):
        train(tmp_path, settings={"precision": "fp16", "fused_optimizer": False})
