"""The trials of one process: what they go on from when something was cut short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stacking import recipe
from torch import Tensor

from flatout.recipe.load import with_overrides
from flatout.recipe.schema import Recipe
from flatout.tuning.crew.crew import TrialCrew
from flatout.tuning.crew.placing import TrialWork
from flatout.tuning.crew.seats import CrewSeat, Here
from flatout.tuning.crew.worker import TrialWorker
from flatout.tuning.training.layout import SERIAL, STACKED, Layout
from flatout.tuning.training.stack import TrialStack
from flatout.tuning.training.trainers import Trainers

TRIALS = [(number, [f"lr={lr}"]) for number, lr in enumerate((3e-3, 1e-2, 3e-2, 1e-1))]
IN_A_STACK, ALONE = Layout(STACKED, 4, 1), Layout(SERIAL, threads=1)


@pytest.fixture
def trainers(tmp_path: Path) -> Iterator[Trainers]:
    found = _trainers(tmp_path)
    yield found
    found.close()


def _trainers(folder: Path, base: Recipe | None = None) -> Trainers:
    base = base or recipe(model={"mlp": {"hidden": [16], "dropout": 0.2}}, budget="24 steps")
    found = Trainers(lambda overrides: with_overrides(base, overrides), None)
    found.states = folder
    return found


def _scores(trainers: Trainers, layout: Layout, *stops: int, numbers: tuple[int, ...] = (0, 1, 2, 3)) -> dict[int, Any]:
    ones = [trainers.candidate(number, overrides) for number, overrides in TRIALS if number in numbers]
    start, found = 0, {}
    for to in stops:
        found = trainers.train(ones, start, to, layout, "choose")
        start = to
    return found


def test_a_stack_scores_as_trials_alone(trainers: Trainers, tmp_path: Path) -> None:
    alone = _trainers(tmp_path / "other")
    assert _scores(trainers, IN_A_STACK, 24) == pytest.approx(_scores(alone, ALONE, 24), abs=1e-6)
    alone.close()


def test_rungs_in_between_change_nothing(tmp_path: Path) -> None:
    for layout in (IN_A_STACK, ALONE):
        once, often = _trainers(tmp_path / "once"), _trainers(tmp_path / "often")
        assert _scores(once, layout, 24) == _scores(often, layout, 3, 7, 24)
        once.close()
        often.close()


@pytest.mark.parametrize("layout", [IN_A_STACK, ALONE], ids=["stacked", "alone"])
def test_another_process_goes_on_from_what_was_saved(layout: Layout, tmp_path: Path) -> None:
    whole, first, second, third = (_trainers(tmp_path) for _ in range(4))
    expected = _scores(whole, layout, 24)
    _scores(first, layout, 8)
    first.save([0, 1, 2, 3])
    ones = [second.candidate(*trial) for trial in TRIALS]
    assert second.train(ones, 8, 24, layout, "choose") == expected
    for path in tmp_path.rglob("*.safetensors"):  # states that can't be read are trained again
        path.write_bytes(b"damaged" + path.read_bytes()[7:])
    assert third.train([third.candidate(*trial) for trial in TRIALS], 8, 24, layout, "choose") == expected
    for one in (whole, first, second, third):
        one.close()


def test_a_state_of_another_layout_is_trained_again(tmp_path: Path) -> None:
    whole, first, second = (_trainers(tmp_path) for _ in range(3))
    expected = _scores(whole, ALONE, 24)
    _scores(first, IN_A_STACK, 8)
    first.save([0, 1, 2, 3])
    assert second.train([second.candidate(*trial) for trial in TRIALS], 8, 24, ALONE, "choose") == expected
    for one in (whole, first, second):
        one.close()


@pytest.mark.parametrize("layout", [IN_A_STACK, ALONE], ids=["stacked", "alone"])
def test_trials_that_were_cut_short_start_from_where_they_stood(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory runs out once, in the middle of a rung: no trial is trained for some steps twice."""
    base = recipe(model={"mlp": {"hidden": [16]}}, budget="24 steps")
    expected = TrialCrew([CrewSeat("cpu", lambda: Here(TrialWorker(base, None)))], isolated=False).train(
        [TrialWork(TRIALS, 0, 24, layout)], "choose"
    )
    steps = [0]
    forward = torch.nn.Linear.forward

    def fails_once(self: torch.nn.Linear, x: Tensor) -> Tensor:
        steps[0] += 1
        if steps[0] == 21:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, x)

    crew = TrialCrew([CrewSeat("cpu", lambda: Here(TrialWorker(base, None)))], isolated=False)
    crew.keep_states_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.Linear, "forward", fails_once)
        found = crew.train([TrialWork(TRIALS, 0, 24, layout)], "choose")
    crew.stop()
    assert steps[0] > 21 and found.scores == pytest.approx(expected.scores, abs=1e-6)


def test_memory_that_runs_out_again_and_again_fails_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(self: TrialStack, batch: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TrialStack, "gradients", no_memory)
    crew = TrialCrew([CrewSeat("cpu", lambda: Here(TrialWorker(recipe(), None)))], isolated=False)
    found = crew.train([TrialWork(TRIALS, 0, 12, IN_A_STACK)], "choose")
    crew.stop()
    assert all(isinstance(why, str) and why.startswith("out of memory") for why in found.scores.values())


def test_forgotten_trials_free_their_memory(trainers: Trainers) -> None:
    _scores(trainers, IN_A_STACK, 8)
    trainers.forget([0, 3])
    (holder,) = trainers._all_holders()
    assert list(holder.candidates) == [1, 2]
    trainers.forget([1, 2])
    assert not trainers._all_holders()
