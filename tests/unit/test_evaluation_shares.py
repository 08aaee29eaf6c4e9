"""Shares of the rows to evaluate, and metrics put together from them: nothing is lost, counted twice or rounded away."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from gloo import on_ranks
from torch import Tensor

from flatout.data import arrays, digits, sequences
from flatout.data.feeds.evaluation import EvalFeed
from flatout.objectives.build import OBJECTIVES, build
from flatout.objectives.metrics import SumMeter
from flatout.objectives.named.measured import measured
from flatout.objectives.named.parse import named_metrics_of
from flatout.objectives.objective import Meter, SharedMeter, is_shared
from flatout.objectives.regress import Regress
from flatout.world.world import ProcessWorld, World

CPU = torch.device("cpu")
Exchanged = tuple[list[dict[str, Tensor]], list[object]]


class Share(World):
    def __init__(self, rank: int, size: int) -> None:
        self.data_rank, self.data_size = rank, size


# ---- rows ----


@pytest.mark.parametrize("tier", ["resident", "pinned", "streamed"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_shares_are_all_rows_in_order_and_as_equal_as_can_be(tier: str, size: int) -> None:
    data = digits(normalize="auto")
    assert data.validation is not None
    whole = torch.cat([batch["x"] for batch in EvalFeed(data.validation, data.prepare, 50, "cpu", tier)])
    feeds = [EvalFeed(data.validation, data.prepare, 50, "cpu", tier, world=Share(rank, size)) for rank in range(size)]
    shares = [[batch["x"] for batch in feed] for feed in feeds]
    assert [len(feed) for feed in feeds] == [len(share) for share in shares]
    assert torch.cat([batch for share in shares for batch in share]).equal(whole)
    counts = [sum(map(len, share)) for share in shares]
    assert max(counts) - min(counts) <= 1
    assert feeds[-1].any_row()["x"].equal(whole[:1])


@pytest.mark.parametrize("tier", ["resident", "pinned"])
def test_a_share_may_be_empty(tier: str) -> None:
    data = arrays(torch.rand(9, 2), torch.arange(9), validation=(torch.rand(3, 2), torch.arange(3)))
    assert data.validation is not None
    feeds = [EvalFeed(data.validation, (), 2, "cpu", tier, world=Share(rank, 5)) for rank in range(5)]
    assert sorted(sum(len(batch["y"]) for batch in feed) for feed in feeds) == [0, 0, 1, 1, 1]
    assert all(len(feed) == len(list(feed)) for feed in feeds)


@pytest.mark.parametrize("size", [3, 50])
def test_sequences_are_dealt_out_by_length(size: int) -> None:
    rows = [[number + 1, *[150] * (number * 7 % 40)] for number in range(40)]
    y = [0, 1] * 20
    data = sequences(rows, y, validation=(rows, y), vocabulary=200, tokens=160)
    assert data.validation is not None
    feeds = [EvalFeed(data.validation, (), 12, "cpu", any_order=True, world=Share(rank, size)) for rank in range(size)]
    batches = [list(feed) for feed in feeds]
    assert [len(feed) for feed in feeds] == [len(of_rank) for of_rank in batches]
    seen = [int(first) for of_rank in batches for batch in of_rank for first in batch["x"][:, 0]]
    assert sorted(seen) == list(range(1, 41))
    counts = [sum(len(batch["x"]) for batch in of_rank) for of_rank in batches]
    assert max(counts) - min(counts) <= 1
    assert all(batch["x"].numel() <= 160 for of_rank in batches for batch in of_rank)


# ---- metrics ----

SHAPES: dict[str, tuple[tuple[int, ...], Callable[[int], Tensor]]] = {
    "classify": ((5,), lambda rows: torch.randint(5, (rows,))),
    "binary": ((), lambda rows: torch.randint(2, (rows,))),
    "multilabel": ((4,), lambda rows: torch.randint(2, (rows, 4))),
    "regress": ((3,), lambda rows: torch.randn(rows, 3, dtype=torch.float64) + 1e4),
    "next_token": ((6, 11), lambda rows: torch.where(torch.rand(rows, 6) < 0.4, -100, torch.randint(11, (rows, 6)))),
}


def fed(name: str, output: Tensor, target: Tensor, batch: int = 7) -> SharedMeter:
    objective = build(name)
    meter = objective.meter(CPU)
    assert is_shared(meter)
    for part, labels in zip(output.split(batch), target.split(batch), strict=True):
        if len(part):
            meter.update(part, *objective.loss(part, {"y": labels}), {"y": labels})
    return meter


@pytest.mark.parametrize("name", OBJECTIVES)
def test_metrics_put_together_are_those_of_all_rows(name: str) -> None:
    torch.manual_seed(0)
    shape, draw = SHAPES[name]
    target, output = draw(300), torch.randn(300, *shape, dtype=torch.float64)
    output = output if name != "regress" else target + output
    expected = fed(name, output, target).result()
    sizes = [100, 0, 1, 199]
    meters = [fed(name, *both) for both in zip(output.split(sizes), target.split(sizes), strict=True)]
    shares = [meter.collected() for meter in meters]
    assert [bool(share) for share in shares] == [True, False, True, True]
    for meter in meters:  # the one that had no row too
        meter.put_together([share for share in shares if share])
        found = meter.result()
        assert found.keys() == expected.keys() and found == pytest.approx(expected, rel=1e-12)
        assert found == meters[0].result()


NAMED: dict[str, list[object]] = {
    "classify": ["f1", "auroc", "average_precision", "confusion_matrix", {"top_k": 2}, "log_loss"],
    "binary": ["recall", "auroc", "average_precision", "calibration_error", "mcc"],
    "multilabel": ["f1_macro", "auroc", "accuracy"],
    "regress": ["mae", "r2", "mape"],
    "next_token": ["perplexity", "token_accuracy", {"top_k": 3}],
}


def _rows_of(name: str) -> tuple[Tensor, Tensor]:
    """With ties, and outputs as autocast leaves them."""
    draw = torch.Generator().manual_seed(0)
    shape, make = SHAPES[name]
    torch.manual_seed(0)
    output = (torch.randn(60, *shape, generator=draw) * 3).round(decimals=1)
    return output if name == "regress" else output.bfloat16(), make(60)


def _named(names: list[str], rank: int, size: int) -> dict[str, dict[str, float]]:
    """By one process, or by three: the last has no rows, the others have differing numbers."""
    world = ProcessWorld(CPU, rank, size, None, ours=False) if size > 1 else None
    cut = [0, 60] if size == 1 else [0, 41, 60, 60]
    found = {}
    for name in names:
        objective = build(name)
        made = measured(objective, named_metrics_of(NAMED[name], objective), None)
        meter = made.meter(CPU)
        assert is_shared(meter)
        for part, labels in zip(*(side[cut[rank] : cut[rank + 1]].split(8) for side in _rows_of(name)), strict=True):
            if len(part):
                meter.update(part, *made.loss(part, {"y": labels}), {"y": labels})
        if world is not None:
            meter.put_together([share for share in world.gather_tensors(meter.collected()) if share])
        found[name] = meter.result()
    return found


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Exchanged, dict[str, dict[str, float]]]]:
    """What three processes said: starting them takes longer than all that they do."""
    return on_ranks(3, _of_three, folder=tmp_path_factory.mktemp("three"))


def _of_three() -> tuple[Exchanged, dict[str, dict[str, float]]]:
    return _exchanged(), _named(list(NAMED), dist.get_rank(), 3)


def test_metrics_by_name_of_real_processes_are_those_of_one(three: list[tuple[Exchanged, dict[str, dict[str, float]]]]) -> None:
    of_ranks = [named for _, named in three]
    assert all(one == of_ranks[0] for one in of_ranks)
    for name, expected in _named(list(NAMED), 0, 1).items():
        assert of_ranks[0][name] == pytest.approx(expected, rel=1e-6), name
        exact = [
            one for one in expected if one.partition("_")[0] in ("auroc", "auc", "average", "f1", "accuracy", "top", "mcc")
        ]
        assert exact or name == "regress"
        assert [of_ranks[0][name][one] for one in exact] == pytest.approx([expected[one] for one in exact], rel=1e-12), name


class Largest(SumMeter):
    """Keeps something that the sums don't have."""

    def update(self, *given: object) -> None:
        super().update(*given)  # type: ignore[arg-type]


class Merged(Largest):
    def collected(self) -> dict[str, Tensor]:
        return {}

    def put_together(self, shares: object) -> None:
        pass


class Plain:
    def update(self, *given: object) -> None: ...

    def result(self) -> dict[str, float]:
        return {}


def test_a_meter_that_says_nothing_of_shares_is_not_taken_for_one_that_does() -> None:
    def made(kind: type[SumMeter]) -> Meter:
        return kind(CPU, lambda output, batch: {}, dict)

    assert is_shared(made(SumMeter)) and is_shared(made(Merged))
    assert not is_shared(made(Largest)) and not is_shared(Plain())
    assert is_shared(Regress().meter(CPU))


# ---- what travels between processes ----


def test_tensors_of_any_kind_are_gathered(three: list[tuple[Exchanged, object]]) -> None:
    for (found, said), _ in three:
        assert said == [2, True] and found[1] == {}
        for rank in (0, 2):
            expected = _of_rank(rank)
            assert found[rank].keys() == expected.keys()
            for name, one in expected.items():
                assert found[rank][name].equal(one) and found[rank][name].dtype == one.dtype


def _of_rank(rank: int) -> dict[str, Tensor]:
    if rank == 1:
        return {}
    table = torch.full((2, 3), 0.1).half() if rank else torch.ones(5)
    third = torch.tensor(1 / 3 + rank, dtype=torch.float64)
    return {"flags": torch.arange(rank + 3) % 2 == 0, "sum": third, "none": torch.empty(0, 4), "table": table}


def _exchanged() -> Exchanged:
    world = ProcessWorld(CPU, dist.get_rank(), 3, None, ours=False)
    found = world.gather_tensors(_of_rank(world.rank))
    return found, [world.highest(world.rank), world.any(world.rank == 1)]
