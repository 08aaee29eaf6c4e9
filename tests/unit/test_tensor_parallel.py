"""Tensor parallel: what is learned is what one process learns, on real processes; and what can't be split is said in words."""

from __future__ import annotations

import pytest
import torch
from parallel_drill import CASES, model_of, results, wanted, worst
from torch import nn

from flatout.base.errors import UsageError
from flatout.engine.parallel.tensor import layouts_of, part_with_plan, plan_of, styles_of

SPLIT = [
    (size, number)
    for size, cases in CASES.items()
    for number, case in enumerate(cases)
    if case.axes.keys() & {"tensor", "pipeline"} == {"tensor"}
]


@pytest.mark.parametrize(("size", "number"), SPLIT, ids=[str(CASES[size][number]) for size, number in SPLIT])
def test_it_learns_what_one_process_learns(size: int, number: int) -> None:
    case = CASES[size][number]
    right, bar = wanted(case.kind, case.dtype), 1e-9 if case.dtype == torch.float64 else 1e-5
    for result in (of_rank[number] for of_rank in results(size, piped=False)):
        assert result["loss"] == pytest.approx(right["loss"], rel=bar)
        assert result["norm"] == pytest.approx(right["norm"], rel=bar)
        assert set(result["weights"]) == set(right["weights"])
        assert worst(result, right) <= bar
    assert max(right["norm"]) > 0.5, "clipping had something to do"


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(UsageError, match=r"tensor=3 does not divide the 4 heads of gpt: set tensor=2, or heads: 6"):
        styles_of(model_of("gpt", torch.float32), plan_of(model_of("gpt", torch.float32)), 3)


def test_a_layer_that_does_not_divide() -> None:
    mlp = model_of("mlp", torch.float32)
    with pytest.raises(UsageError, match=r"tensor=5 does not divide the 12 outputs of body.0: set tensor=4, or 15"):
        styles_of(mlp, plan_of(mlp), 5)
    with pytest.raises(UsageError, match=r"tensor=3 does not divide the 8 inputs of 4"):
        styles_of(model_of("chain", torch.float32), {"0": "column", "4": "row"}, 3)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"layers.*.upp": "column"}, "no module with weights is called 'layers.*.upp'; did you mean 'layers.*.up'"),
        ({"layers.*.up": "colum"}, "there is no style 'colum'; did you mean 'column'"),
        ({"layers.*.norm": "column"}, "layers.0.norm is a LayerNorm, and column is for a Linear or an Embedding"),
    ],
)
def test_a_plan_with_a_mistake_is_answered_in_words(plan: dict[str, str], words: str) -> None:
    layers = [nn.ModuleDict({"up": nn.Linear(4, 8), "norm": nn.LayerNorm(8), "down": nn.Linear(8, 4)}) for _ in range(2)]
    with pytest.raises(UsageError) as caught:
        styles_of(nn.ModuleDict({"layers": nn.ModuleList(layers)}), plan, 2)
    assert words in str(caught.value)


def test_a_model_without_a_plan() -> None:
    with pytest.raises(UsageError, match=r"Sequential has no .* set tensor_plan: \{0: column, 2: row\}, or use shard=2"):
        part_with_plan(model_of("chain", torch.float32), 2)
    wrapped = nn.Sequential(nn.Flatten(), model_of("mlp", torch.float32))
    assert part_with_plan(wrapped, 2) is wrapped[1]


def test_a_shared_weight_that_two_modules_split_differently() -> None:
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    with pytest.raises(UsageError, match="1 and 0 share a weight, which row and row split in different ways"):
        layouts_of(model, {"0": "row", "1": "row"})


def test_the_layers_of_an_mlp_are_split_in_pairs() -> None:
    assert plan_of(model_of("mlp", torch.float32)) == {"body.0": "column", "body.2": "row", "head": "whole"}
    assert plan_of(model_of("mlp-odd", torch.float32)) == {"body.0": "column", "head": "row"}
    normed = plan_of(model_of("mlp-norm", torch.float32))
    assert normed["body.0"] == "gathered" and normed["body.1"] == "whole"
