"""The step of a stack through fixed places, as a CUDA graph holds it, is bit for bit the step that Python launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from recorded import recorded
from stacking import candidates, group_of, recipe

from flatout.data import source
from flatout.tuning.training import stack, stacked_update
from flatout.tuning.training.shared import Group
from flatout.tuning.training.stack import TrialStack
from flatout.tuning.training.stack_steps import GraphSteps, LaunchedSteps
from flatout.tuning.training.update_forms import UpdatedColumns

RATES = [["lr=3e-3"], ["lr=1e-2", "clip=0.5", "schedule=linear"], ["lr=3e-2", "weight_decay=0.1"]]
MODEL = {"mlp": {"hidden": [16], "dropout": 0.2}}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are updated at once, and a batch is picked by torch; what a CPU does instead reads values on the host."""
    monkeypatch.setattr(source, "pick_rows", lambda column, rows: column.index_select(0, rows))
    monkeypatch.setattr(stacked_update, "form_for", lambda rule, weights, state: (UpdatedColumns(rule, weights, state), ""))


@contextmanager
def graphs(record: Any = recorded) -> Iterator[list[int]]:
    """Stacks that are made inside are trained by graphs. Lists how many trials each graph was captured with."""
    found: list[int] = []

    def steps(group: Group, seeds: Sequence[int], rates: Any, clock: torch.Tensor) -> GraphSteps:
        def noted(device: torch.device, step: Any) -> Any:
            found.append(rates.trials)
            return record(device, step)

        feeds = [feed for seed in seeds if (feed := group.feed(seed).capturable) is not None]
        return GraphSteps(group, feeds, rates, clock, noted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack, "steps_for", steps)
        yield found


def states(trainer: TrialStack) -> dict[str, torch.Tensor]:
    return {f"{number} {name}": value for number in trainer.alive for name, value in trainer.state_of(number).items()}


def assert_same(ours: TrialStack, theirs: TrialStack) -> None:
    expected = states(theirs)
    assert states(ours).keys() == expected.keys()
    for name, value in states(ours).items():
        assert value.equal(expected[name]), name
    assert [ours.losses(one).last for one in ours.alive] == [theirs.losses(one).last for one in theirs.alive]


@pytest.mark.parametrize(
    ("changed", "each"),
    [
        ({"model": MODEL}, RATES),
        ({"model": MODEL}, [["seed=1"], ["seed=2", "model.dropout=0.5"], ["seed=1", "lr=3e-3"]]),
        ({"budget": "4500 samples", "optimizer": "sgd"}, RATES),  # the last of its 71 steps has fewer rows
        ({"settings": {"device": "cpu", "tier": "pinned"}}, RATES),
        ({"model": "own_models:normed", "optimizer": "adam"}, RATES),
    ],
    ids=["dropout", "seeds", "rest", "pinned", "buffers"],
)
def test_replays_equal_launched_steps(changed: dict[str, Any], each: list[list[str]]) -> None:
    ones = candidates(recipe(**{"budget": "80 steps", **changed}), each)
    with group_of(ones) as group:
        plain = TrialStack(group, ones)
        with graphs() as captures:
            ours = TrialStack(group, ones)
        for trainer in (plain, ours):
            trainer.train(5)
            trainer.train(group.total_steps)
        assert captures == [len(ones)] and not ours.degraded
        assert_same(ours, plain)


def test_a_compacted_stack_gets_a_graph_of_its_own() -> None:
    ones = candidates(recipe(model=MODEL, budget="40 steps"), [*RATES, ["seed=5"]])
    with group_of(ones) as group:
        plain = TrialStack(group, ones)
        _halved(plain)
        with graphs() as captures:
            ours = TrialStack(group, ones)
            _halved(ours)
        assert captures == [4, 2]
        assert_same(ours, plain)


def _halved(trainer: TrialStack) -> None:
    trainer.train(10)
    trainer.keep([2, 0])
    trainer.train(40)


def test_a_graph_goes_on_from_another_stacks_state() -> None:
    ones = candidates(recipe(model=MODEL, budget="40 steps"), RATES)
    with group_of(ones) as group:
        whole, first = TrialStack(group, ones), TrialStack(group, ones)
        whole.train(40)
        first.train(16)
        with graphs() as captures:
            later = TrialStack(group, ones)
        later.train(9)  # has a graph already, and another past
        later.resume(16, {one.number: first.state_of(one.number) for one in ones})
        later.train(40)
        assert captures == [3]
        assert_same(later, whole)


def test_two_stacks_that_take_turns_do_not_disturb_each_other() -> None:
    ones = candidates(recipe(model=MODEL, budget="40 steps"), RATES)
    with group_of(ones) as group:
        whole = TrialStack(group, ones[:2])
        whole.train(40)
        with graphs():
            ours, other = TrialStack(group, ones[:2]), TrialStack(group, ones[2:])
        for to in (7, 20, 40):
            ours.train(to)
            other.train(to)
        assert_same(ours, whole)


def test_only_the_trial_that_diverges_fails() -> None:
    ones = candidates(recipe(optimizer="sgd", budget="80 steps"), [["lr=1e-2"], ["lr=1e30"], ["lr=3e-3"]])
    with group_of(ones) as group:
        plain = TrialStack(group, ones)
        with graphs():
            ours = TrialStack(group, ones)
        for trainer in (plain, ours):
            trainer.train(80)
        assert list(ours.failed) == list(plain.failed) == [1]
        assert_same(ours, plain)


def test_a_step_that_cannot_be_captured_is_launched_and_says_so() -> None:
    def refuses(device: torch.device, step: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might be ...")

    ones = candidates(recipe(model=MODEL, budget="20 steps"), RATES)
    with group_of(ones) as group:
        plain = TrialStack(group, ones)
        with graphs(refuses) as captures:
            ours = TrialStack(group, ones)
        for trainer in (plain, ours):
            trainer.train(20)
        assert captures == [3]  # it is not tried again at each step
        assert ours.degraded == "no CUDA graph: operation not permitted when stream is capturing"
        assert_same(ours, plain)


def test_on_a_cpu_steps_are_launched() -> None:
    ones = candidates(recipe(), RATES)
    with group_of(ones) as group:
        trainer = TrialStack(group, ones)
        assert isinstance(trainer._steps, LaunchedSteps) and not trainer.degraded
