"""Local and late updates: what real processes learn is what a simulation of them in one process learns."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from local_ranks import (
    CASES,
    SAVED,
    STEPS,
    STOP,
    Case,
    Training,
    batch_of,
    inner_step,
    loss_of,
    model_of,
    of_model,
    optimizer_of,
    resumed,
)
from torch import Tensor, nn
from worlds import together

from flatout.base.errors import UsageError
from flatout.engine.parallel.local import LocalUpdates
from flatout.engine.parallel.rounds import AVERAGE, Outer, Rounds, parse_rounds
from flatout.world.world import World

BAR = 1e-9  # of the largest value


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    """By the number of processes, what each of them found. The four go on from what the two have saved."""
    folder = tmp_path_factory.mktemp("ranks")
    results = {}
    for size in (2, 4):
        for ended in together(size, "local_ranks.py", str(folder)):
            assert ended.code == 0, ended.err
        results[size] = [torch.load(folder / f"{rank} of {size}.pt", weights_only=False) for rank in range(size)]
    results[0] = [folder]
    return results


class Share(World):
    def __init__(self, rank: int, size: int) -> None:
        self.data_rank, self.data_size = rank, size


class Simulation:
    """All processes in this one: each has a model and remembers the weights that its round began with."""

    def __init__(self, case: Case, size: int) -> None:
        self.case, self.size = case, size
        self.whole = model_of(case.kind)
        outer = case.rounds.outer
        nesterov = outer.nesterov and outer.momentum > 0  # torch refuses the one without the other
        self.outer = torch.optim.SGD(self.whole.parameters(), lr=outer.rate, momentum=outer.momentum, nesterov=nesterov)
        self.models = [copy.deepcopy(self.whole) for _ in range(size)]
        self.optimizers = [optimizer_of(model, case.inner) for model in self.models]
        self.began = [self.values(model) for model in self.models]
        self.rows = [0] * size
        self.sent: list[tuple[int, list[list[Tensor]], list[int]]] = []
        self.own: list[list[Tensor]] = []
        self.of_all: list[Tensor] = []

    def live(self, model: nn.Module) -> list[Tensor]:
        return [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]

    def values(self, model: nn.Module) -> list[Tensor]:
        return [tensor.detach().clone() for tensor in self.live(model)]

    def run(self, steps: int = STEPS) -> Simulation:
        rounds = self.case.rounds
        for step in range(steps):
            batch = batch_of(step, self.case.kind)
            for process in range(self.size):
                low, high = Share(process, self.size).share(len(batch["x"]))
                self.rows[process] += high - low
                if low < high:
                    share = {name: column[low:high] for name, column in batch.items()}
                    inner_step(self.models[process], self.optimizers[process], share)
            if (step + 1) % rounds.every == 0:
                self.send(step + rounds.delay)
            while self.sent and self.sent[0][0] <= step:
                self.land()
            self.own.append([of_model(model) for model in self.models])
            self.of_all.append(of_model(self.whole))
        return self

    def finish(self) -> Tensor:
        self.send(0)
        while self.sent:
            self.land()
        return of_model(self.whole)

    def send(self, due: int) -> None:
        now = [self.values(model) for model in self.models]
        changes = [[a - b for a, b in zip(old, new, strict=True)] for old, new in zip(self.began, now, strict=True)]
        if sum(self.rows):
            self.sent.append((due, changes, self.rows))
        self.began, self.rows = now, [0] * self.size

    @torch.no_grad()
    def land(self) -> None:
        _, changes, rows = self.sent.pop(0)
        mean = [sum(c * n for c, n in zip(of_one, rows, strict=True)) / sum(rows) for of_one in zip(*changes, strict=True)]
        before = self.values(self.whole)
        parameters = list(self.whole.parameters())
        for parameter, change in zip(parameters, mean, strict=False):
            parameter.grad = change
        self.outer.step()
        for statistic, change in zip(self.live(self.whole)[len(parameters) :], mean[len(parameters) :], strict=True):
            statistic -= change
        for process, model in enumerate(self.models):
            for i, tensor in enumerate(self.live(model)):
                shift = self.live(self.whole)[i] - before[i] + changes[process][i]
                tensor += shift
                self.began[process][i] += shift


def far(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


def without_counts(kind: str) -> Tensor:
    """Of a model's state, what is no whole number: how many batches were seen is each process's own."""
    state = model_of(kind).state_dict().values()
    return torch.cat([torch.full((tensor.numel(),), tensor.is_floating_point()) for tensor in state])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_it_learns_what_a_simulation_learns(found: dict[int, list[Any]], name: str, size: int) -> None:
    case = CASES[name]
    right, learned = Simulation(case, size).run(), without_counts(case.kind)
    assert far(right.of_all[-1][learned], of_model(model_of(case.kind))[learned]) > 0.01
    for step in range(STEPS):
        for rank, result in enumerate(found[size]):
            assert far(result[name]["own"][step][learned], right.own[step][rank][learned]) <= BAR
            assert far(result[name]["of_all"][step][learned], right.of_all[step][learned]) <= BAR
            assert torch.equal(result[name]["of_all"][step], found[size][0][name]["of_all"][step])
    end = right.finish()
    for result in found[size]:
        assert far(result[name]["end"][learned], end[learned]) <= BAR
        assert torch.equal(result[name]["end"], found[size][0][name]["end"])
        assert torch.equal(result[name]["end"], result[name]["again"])


@pytest.mark.parametrize("size", [2, 4])
def test_rounds_of_one_plain_step_are_data_parallel(found: dict[int, list[Any]], size: int) -> None:
    """Shares of four processes are not equal: 5, 6, 5 and 6 rows."""
    for result in found[size]:
        assert far(result["parallel"]["every 1"], result["parallel"]["data parallel"]) <= 1e-12


def test_longer_rounds_send_as_much_less(found: dict[int, list[Any]]) -> None:
    size = sum(parameter.nbytes for parameter in model_of("plain").parameters())
    for result in found[2]:
        parallel = result["parallel"]
        assert sum(parallel["bytes of data parallel"]) == size * (STEPS - 1)
        assert parallel["bytes of every 1"] == [size] * (STEPS - 1)
        assert parallel["bytes of every 4"] == [size] * ((STEPS - 1) // 4)


def test_to_look_at_it_changes_nothing(found: dict[int, list[Any]]) -> None:
    for result in found[2]:
        looked, plain = result["looked at"], result["late by 1 of 4"]
        assert all(torch.equal(a, b) for key in ("own", "of_all") for a, b in zip(looked[key], plain[key], strict=True))


def test_a_late_exchange_is_not_waited_for(found: dict[int, list[Any]]) -> None:
    right = Simulation(Case(Rounds(2, delay=2)), 2).run(4)
    for rank, result in enumerate(found[2]):
        assert len(result["overlapped"]) == 4
        assert all(far(own, right.own[step][rank]) <= BAR for step, own in enumerate(result["overlapped"]))


def test_a_resume_goes_on_exactly(found: dict[int, list[Any]]) -> None:
    for result in found[2]:
        uninterrupted = result["saved"]
        for way in ("resumed", "resumed in place"):
            again = result["stopped"][way]
            for key in ("own", "of_all"):
                steps = STEPS - STOP
                assert all(torch.equal(a, b) for a, b in zip(again[key][-steps:], uninterrupted[key][-steps:], strict=True))
            assert torch.equal(again["end"], uninterrupted["end"])


def test_on_another_number_of_processes_it_goes_on_from_where_the_round_would_end(found: dict[int, list[Any]]) -> None:
    learned = without_counts(SAVED.kind)
    right = Simulation(SAVED, 2).run(STOP).finish()
    ended = [result["stopped"]["ended"] for result in found[2]]
    alone = resumed(World(), found[0][0])
    for result in [alone, *(each["resumed"] for each in found[4])]:
        assert far(result["start"][learned], right[learned]) <= BAR
        assert all(far(result["start"][learned], one[learned]) <= 1e-12 for one in ended)
    ends = [each["resumed"]["end"] for each in found[4]]
    assert all(torch.equal(end, ends[0]) for end in ends) and ends[0].isfinite().all()


def test_processes_that_differ_at_the_start_take_the_first_ones_weights(found: dict[int, list[Any]]) -> None:
    assert all(torch.equal(result["start"], of_model(model_of("norm", seed=0))) for result in found[4])


def test_the_loss_is_that_of_the_rows_of_all(found: dict[int, list[Any]]) -> None:
    for result in found[2]:
        seen = result["losses"]
        assert seen.losses[:2] == [1.5, 2.0] and seen.weights == [2.0, 3.0, 2.0] and seen.norms == [1.5, 1.0, 1.0]
        assert seen.skipped(by_norm=False) == [False, False, True]


# ---- one process ----


def test_one_process_has_an_outer_optimizer_too() -> None:
    case = Case(Rounds(4, delay=2), "norm")
    training, right = Training(World(), case), Simulation(case, 1).run()
    training.run(0, STEPS)
    assert all(far(own, step[0]) <= BAR for own, step in zip(training.own, right.own, strict=True))
    assert far(training.finished()["end"][without_counts("norm")], right.finish()[without_counts("norm")]) <= BAR


def test_what_is_tied_frozen_or_constant_stays_so() -> None:
    model = nn.ModuleDict({"in": nn.Embedding(5, 4), "out": nn.Linear(4, 5), "scale": nn.Linear(1, 1)}).bfloat16()
    model["out"].weight = model["in"].weight
    model["scale"].requires_grad_(False)
    model.register_buffer("mask", torch.full((2, 2), -torch.inf))
    model.register_buffer("table", torch.ones(3), persistent=False)
    local = LocalUpdates(model, loss_of, Rounds(1, AVERAGE, delay=1), World())
    tree = local.tree({})
    assert list(tree["anchor"]) == ["in.weight", "out.bias"]
    assert {tensor.dtype for tensor in tree["anchor"].values()} == {torch.float32}
    version = model["in"].weight._version
    with torch.no_grad():
        model["in"].weight.add_(1)
    before = model["in"].weight.clone()
    local.after_step(4)
    local.after_step(4)
    assert torch.equal(model["in"].weight, before) and model["in"].weight._version > version + 1  # copies elsewhere notice
    weights = local.weights()
    assert weights["in.weight"] is weights["out.weight"] and weights["in.weight"].dtype == torch.bfloat16
    assert list(weights) == list(model.state_dict())
    torch.testing.assert_close(weights["in.weight"], before)


def test_nothing_to_exchange_is_said() -> None:
    with pytest.raises(UsageError, match="all parameters of the model are frozen"):
        LocalUpdates(nn.Linear(2, 2).requires_grad_(False), loss_of, Rounds(2), World())


def test_weights_that_are_split_are_refused() -> None:
    class Mesh:
        mesh_dim_names = ("data", "tensor")

    world = World()
    world.size, world.mesh = 4, Mesh()
    with pytest.raises(UsageError, match="the mesh splits them by tensor: use --mesh data=4, or remove exchange"):
        LocalUpdates(model_of("plain"), loss_of, Rounds(2), world)


# ---- as a recipe writes it ----


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("50 steps", Rounds(50, Outer(0.7, 0.9, True), 0)),
        ({"every": 1, "outer": "average"}, Rounds(1, AVERAGE)),
        ({"every": "1e2 steps", "delay": "5 steps"}, Rounds(100, delay=5)),
        ({"every": "1 step", "delay": 0, "outer": {"rate": "1e-1", "nesterov": False}}, Rounds(1, Outer(0.1, 0.9, False))),
    ],
)
def test_rounds(written: Any, read: Rounds) -> None:
    assert parse_rounds(written) == read


@pytest.mark.parametrize("written", [50, True, None, {}, {"delay": 2}, ["50 steps"]])
def test_what_is_no_exchange_at_all(written: Any) -> None:
    with pytest.raises(UsageError, match="write '50 steps', or"):
        parse_rounds(written)


def test_all_mistakes_are_said_at_once() -> None:
    outer = {"rate": 0, "momentum": 1, "nesterov": 1, "lr": 2}
    with pytest.raises(UsageError) as error:
        parse_rounds({"every": "50 epochs", "delay": -1, "outer": outer, "evry": 2})
    for place in ("evry", "every", "delay", "outer.lr", "outer.rate", "outer.momentum", "outer.nesterov"):
        assert f"{place}: " in str(error.value)
    for wrong in ("0 steps", "1.5 steps", 0.5, True, "soon", None):
        with pytest.raises(UsageError, match="every: expected whole steps, 1 or more"):
            parse_rounds({"every": wrong})
    with pytest.raises(UsageError, match="outer: expected average, or"):
        parse_rounds({"every": "2 steps", "outer": "adam"})
