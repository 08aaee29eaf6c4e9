"""Pipeline parallel: what is learned is what one process learns; stages are cut by cost; what can't be cut is said in words."""

from __future__ import annotations

import itertools
import random
from contextlib import nullcontext

import pytest
import torch
from parallel_drill import CASES, batch_of, model_of, objective_of, results, wanted, worst
from torch import nn

from flatout.base.errors import UsageError
from flatout.engine.parallel.piped import Piped
from flatout.engine.parallel.pipeline import checked_micro_batches
from flatout.engine.parallel.stages import balanced, chain_of, cut, measure_costs, only
from flatout.engine.settings import Settings
from flatout.objectives.build import build
from flatout.world.world import World

PIPED = [(size, number) for size, cases in CASES.items() for number, case in enumerate(cases) if "pipeline" in case.axes]


@pytest.mark.parametrize(("size", "number"), PIPED, ids=[str(CASES[size][number]) for size, number in PIPED])
def test_it_learns_what_one_process_learns(size: int, number: int) -> None:
    case = CASES[size][number]
    right, bar = wanted(case.kind, case.dtype), 1e-9 if case.dtype == torch.float64 else 1e-5
    found = [of_rank[number] for of_rank in results(size, piped=True)]
    for result in found:
        assert result["loss"] == pytest.approx(right["loss"], rel=bar)
        assert result["norm"] == pytest.approx(right["norm"], rel=bar)
        assert worst(result, right) <= bar
    assert set().union(*(result["weights"] for result in found)) == set(right["weights"])
    outputs = [result["output"] for result in found if result["output"] is not None]
    assert len(outputs) == size // case.axes["pipeline"]
    model, batch = model_of(case.kind, case.dtype), batch_of(case.kind, 0, 10, case.dtype)
    model.load_state_dict(right["weights"])
    torch.testing.assert_close(outputs[0], objective_of(case.kind).forward(model, batch), rtol=1e-4, atol=1e-5)


def test_a_tied_weight_stays_one_weight() -> None:
    number = next(n for n, case in enumerate(CASES[2]) if case.kind == "gpt" and "pipeline" in case.axes)
    first, last = (of_rank[number] for of_rank in results(2, piped=True))
    assert first["tied"] == [{0: "tokens.weight", 1: "head.weight"}]
    assert torch.equal(first["weights"]["tokens.weight"], last["weights"]["head.weight"])


def test_the_slowest_stage_is_as_fast_as_can_be() -> None:
    draw = random.Random(0)
    for _ in range(50):
        costs = [draw.choice([1.0, 2.0, 5.0, 0.5]) for _ in range(draw.randint(3, 8))]
        stages = draw.randint(1, len(costs))
        found = balanced(costs, stages)
        assert [piece for stage in found for piece in stage] == list(range(len(costs))) and all(found)
        best = min(
            max(sum(costs[begin:end]) for begin, end in itertools.pairwise((0, *cuts, len(costs))))
            for cuts in itertools.combinations(range(1, len(costs)), stages - 1)
        )
        assert max(sum(costs[piece] for piece in stage) for stage in found) == pytest.approx(best)


def test_a_part_of_a_model_has_the_names_of_the_whole() -> None:
    model = model_of("gpt", torch.float32)
    part = only(model, {"blocks.1", "head"})
    assert type(part) is type(model) and {name.split(".")[0] for name in part.state_dict()} == {"blocks", "head"}
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in part.state_dict().items())
    assert len(model.blocks) == 2  # type: ignore[arg-type]


def test_costs_are_measured_for_each_piece_and_leave_no_gradients() -> None:
    model = model_of("gpt", torch.float32)
    costs = measure_costs(chain_of(model), batch_of("gpt", 0, 10, torch.float32)["x"])
    assert len(costs) == 4 and all(cost > 0 for cost in costs)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert sum(len(stage) for stage in cut(model, 2, costs)[1]) == 4


def test_more_stages_than_layers() -> None:
    with pytest.raises(UsageError, match=r"3 stages and 2 layers: .* Set pipeline=2 or less, or build the model with 3 layers"):
        cut(model_of("gpt", torch.float32), 3)


def test_a_model_that_is_no_chain() -> None:
    with pytest.raises(UsageError, match=r"a chain of layers \(gpt, mlp, an nn.Sequential\), got Bilinear"):
        chain_of(nn.Bilinear(2, 2, 2))


def test_micro_batches_that_a_schedule_can_not_use() -> None:
    with pytest.raises(UsageError, match="4 stages needs 4 micro-batches or more, got 3: set 4"):
        checked_micro_batches("1f1b", 3, 4)
    with pytest.raises(UsageError, match="multiple of 4 micro-batches, its processes, got 6: set 8"):
        checked_micro_batches("interleaved", 6, 4)
    assert checked_micro_batches("1f1b", 0, 4) == 8


def test_a_loss_that_calls_the_model_itself() -> None:
    own = build(lambda model, batch: (model(batch["x"]).sum(), 1.0))
    with pytest.raises(UsageError, match="pipeline needs a built-in objective"):
        Piped(World(), nn.Linear(2, 2), own, Settings(device="cpu"), 4, {}, nullcontext)
