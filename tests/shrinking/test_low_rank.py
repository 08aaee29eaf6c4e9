"""Layers in two factors: near where it counts, smaller, and composed with int8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from answering import SOURCE_S, Script, ShrinkSteps, search_of
from gating import judged

from flatout.base.answering_child import NoAnswer
from flatout.shrinking.changes.low_rank import LowRank, factors
from flatout.shrinking.step import ShrinkStep
from flatout.shrinking.workshop.workshop import Workshop

LOW, STATIC = ShrinkStep("low_rank", "99%"), ShrinkStep("int8_static", "")


def test_the_factors_are_near_for_the_inputs_that_there_are() -> None:
    """Inputs in 6 of 64 directions: a full matrix is two factors of 8 for them, and needs nearly all 64 for any others."""
    draw = np.random.default_rng(0)
    weight = draw.normal(size=(64, 96))
    inputs = draw.normal(size=(500, 6)) @ draw.normal(size=(6, 64))
    first, second = factors(weight, inputs.T @ inputs / 500, 0.999)
    assert first.shape == (64, 8) and second.shape == (8, 96)
    np.testing.assert_allclose(inputs @ first @ second, inputs @ weight, atol=1e-2 * np.abs(inputs @ weight).max())
    assert factors(weight, None, 0.999)[0].shape[1] > 56


@pytest.mark.parametrize("share", [0.9, 0.99])
def test_the_energy_that_is_asked_for_is_kept(share: float) -> None:
    draw = np.random.default_rng(1)
    weight = draw.normal(size=(80, 72)) * np.linspace(1, 0.01, 72) ** 2
    inputs = draw.normal(size=(400, 80)) * np.linspace(1, 0.1, 80)
    first, second = factors(weight, inputs.T @ inputs / 400, share)
    whole = inputs @ weight
    assert ((whole - inputs @ first @ second) ** 2).sum() <= (1 - share) * (whole**2).sum()
    assert first.shape[1] <= 40 and first.shape[1] % 8 == 0


def test_a_real_model_is_factored_and_then_quantised(workshop: Workshop) -> None:
    told = workshop.ask({"ask": "start", "batch": 1}, 100.0)
    assert told["changes"]["low_rank"]["99%"]["why_not"] is None
    found = judged(workshop, LOW)
    assert found.judgement.kept, found.judgement.why
    assert found.result.bytes < told["bytes"]
    both = judged(workshop, LOW, STATIC)
    assert both.judgement.kept and both.result.bytes < found.result.bytes
    notes = (both.result.check or {})["notes"]
    assert next(iter(notes["ranks"].values())) < 64 and notes["calibration"]
    weights = [one for one in onnx.load(workshop.folder / f"{both.result.name}.onnx").graph.initializer if len(one.dims) > 1]
    assert {one.data_type for one in weights} == {onnx.TensorProto.INT8}


def test_a_factored_layer_can_stay_in_float(workshop: Workshop) -> None:
    told = workshop.ask({"ask": "start", "batch": 1}, 100.0)
    (layer,) = told["changes"]["low_rank"]["99%"]["layers"]
    for change in ("int8_static", "int8_dynamic"):
        steps = [LOW.to_dict(), ShrinkStep(change, "", (layer,)).to_dict()]
        workshop.ask({"ask": "make", "steps": steps, "name": change}, 100.0)
        weights = [one for one in onnx.load(workshop.folder / f"{change}.onnx").graph.initializer if len(one.dims) == 2]
        assert sum(one.data_type == onnx.TensorProto.FLOAT for one in weights) == 2


def test_a_model_that_needs_all_its_directions_says_so(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LowRank, "values", ("100%",))
    with pytest.raises(NoAnswer, match="no layer has 100% of its outputs in so few directions"):
        workshop.ask({"ask": "make", "steps": [ShrinkStep("low_rank", "100%").to_dict()], "name": "candidate"}, 100.0)


# ---- in the search ----


def seconds(steps: ShrinkSteps, batch: int) -> float:
    gains = {"int8_static": 3.0, "int8_dynamic": 2.0, "low_rank": 1.5}
    return SOURCE_S / float(np.prod([gains[one["change"]] for one in steps]))


def test_factors_come_first_and_int8_on_top(tmp_path: Path) -> None:
    search = search_of(Script(tmp_path, seconds=seconds), low_rank=True)
    search.run()
    assert [one.change for one in search.kept] == ["low_rank", "int8_static"]


def test_where_less_is_not_accurate_more_is_not_cut(tmp_path: Path) -> None:
    script = Script(tmp_path, seconds=seconds, wrong=lambda steps: 400 if steps[0]["change"] == "low_rank" else 0)
    search = search_of(script, low_rank=True)
    receipt = search.run()
    assert [one.change for one in search.kept] == ["int8_static"]
    left = next(one for one in receipt.entries if (one.name, one.value) == ("low_rank", "99%"))
    assert left.verdict == "untried" and left.why == "low rank 99.9% is not proven as accurate, and this cuts more"
