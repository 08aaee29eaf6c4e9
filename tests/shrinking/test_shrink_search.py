"""What is tried and kept, with a workshop that answers from a script."""

from __future__ import annotations

from pathlib import Path

import pytest
from answering import SOURCE_S, Script, ShrinkSteps, search_of

from flatout.base.answering_child import NoAnswer
from flatout.measure.receipt import ALL_TOGETHER, Entry, Receipt


def entry(receipt: Receipt, name: str) -> Entry:
    return next(one for one in receipt.entries if one.name == name)


def test_the_fastest_that_is_as_accurate_is_kept(tmp_path: Path) -> None:
    def seconds(steps: ShrinkSteps, batch: int) -> float:
        return SOURCE_S / {"int8_dynamic": 2, "int8_static": 3}[steps[0]["change"]]

    search = search_of(Script(tmp_path, seconds=seconds))
    receipt = search.run()
    assert [one.change for one in search.kept] == ["int8_static"]
    assert "replaced by int8 static" in entry(receipt, "int8_dynamic").why
    assert entry(receipt, ALL_TOGETHER).measured == pytest.approx(3.0)
    assert all(one.name != "weights" for one in receipt.entries), "it saves no time, so only a goal of size tries it"


def test_a_slower_candidate_is_rejected_with_a_reason_and_never_judged(tmp_path: Path) -> None:
    script = Script(tmp_path, seconds=lambda steps, batch: 1.5 * SOURCE_S)
    search = search_of(script)
    receipt = search.run()
    assert not search.kept and not script.judged
    why = entry(receipt, "int8_dynamic").why
    assert "slower: 0.67x" in why and "costs 500 us at batch 1, and the products save 300 us" in why


def test_faster_at_one_batch_size_and_slower_at_another_is_no_gain(tmp_path: Path) -> None:
    script = Script(tmp_path, seconds=lambda steps, batch: SOURCE_S * (0.5 if batch == 64 else 1.3))
    search = search_of(script, batches=(1, 64))
    assert not search.run().settings
    script = Script(tmp_path, seconds=lambda steps, batch: SOURCE_S * (0.5 if batch == 64 else 1.0))
    search = search_of(script, batches=(1, 64))
    search.run()
    assert search.kept


def test_a_candidate_that_loses_too_much_goes_back_to_float_layer_by_layer(tmp_path: Path) -> None:
    """The second layer loses most, and costs little in float32; the third costs more than it regains."""
    worth = {"first": 0.1, "second": 0.8, "third": 0.1}

    def wrong(steps: ShrinkSteps) -> int:
        return 200 if "second" not in steps[0]["floats"] else 2

    def error(steps: ShrinkSteps) -> float:
        return 1.0 - sum(worth[layer] for layer in steps[0]["floats"])

    def seconds(steps: ShrinkSteps, batch: int) -> float:
        return SOURCE_S * (0.5 + 0.1 * len(steps[0]["floats"]) + (0.2 if "third" in steps[0]["floats"] else 0))

    script = Script(tmp_path, seconds=seconds, wrong=wrong, error=error)
    search = search_of(script, without={"int8_static": "not here"})
    receipt = search.run()
    assert [one.floats for one in search.kept] == [("second",)]
    rejected = entry(receipt, "int8_dynamic")
    assert rejected.verdict == "rejected" and "loses 5 points" in rejected.why
    order = search._fallback.orders["int8_dynamic "]
    assert [one.layer for one in order] == ["second", "first", "third"]


def test_it_stops_where_no_choice_of_layers_is_accurate(tmp_path: Path) -> None:
    script = Script(tmp_path, wrong=lambda steps: 400)
    search = search_of(script)
    search.run()
    assert not search.kept
    assert len(script.judged) == 2, "one look for each change: tuning rows already show that no fallback passes"


def test_too_few_rows_are_a_rejection_that_says_how_many_it_takes(tmp_path: Path) -> None:
    receipt = search_of(Script(tmp_path, rows=300)).run()
    why = entry(receipt, "int8_dynamic").why
    assert "not enough evidence: 300 rows can't show a margin of 0.5 points; it takes about" in why
    search = search_of(Script(tmp_path, rows=300), margin=5.0)
    search.run()
    assert search.kept


@pytest.mark.parametrize("kind", ["failed", "crashed", "hung"])
def test_a_trial_that_fails_is_rejected_and_the_search_goes_on(kind: str, tmp_path: Path) -> None:
    script = Script(tmp_path, fails={"int8_dynamic": NoAnswer(kind, "no kernel for operator X")})
    search = search_of(script)
    receipt = search.run()
    assert [one.change for one in search.kept] == ["int8_static"]
    assert entry(receipt, "int8_dynamic").why == f"{kind}: no kernel for operator X"


def test_ctrl_c_keeps_what_is_proven(tmp_path: Path) -> None:
    search = search_of(Script(tmp_path, interrupts_at="int8_static"))
    receipt = search.run()
    assert search.is_interrupted and [one.change for one in search.kept] == ["int8_dynamic"]
    assert "interrupted" in receipt.stopped


def test_a_source_that_can_not_be_measured_is_said(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.ask = lambda question, limit_s: (_ for _ in ()).throw(NoAnswer("crashed", "killed by SIGSEGV"))  # type: ignore[method-assign]
    search = search_of(script)
    assert search.run().stopped == "the source can't be measured: killed by SIGSEGV" and search.result is None


def test_a_goal_of_size_takes_the_smallest_though_it_is_slower(tmp_path: Path) -> None:
    def size(steps: ShrinkSteps) -> int:
        return {"int8_dynamic": 400, "int8_static": 500, "weights": 240}[steps[0]["change"]]

    search = search_of(Script(tmp_path, bytes=size, seconds=lambda steps, batch: 1.2 * SOURCE_S), goal="size 4x")
    receipt = search.run()
    assert [one.change for one in search.kept] == ["weights"]
    assert receipt.stopped == "the goal is met: size 4x"


def test_a_goal_that_is_met_ends_the_search(tmp_path: Path) -> None:
    search = search_of(Script(tmp_path), goal="speed 1.5x")
    receipt = search.run()
    assert receipt.stopped == "the goal is met: speed 1.5x"
    assert entry(receipt, "int8_static").why == "the goal was met before"


def test_a_change_that_does_not_apply_is_named_with_its_reason(tmp_path: Path) -> None:
    receipt = search_of(Script(tmp_path), without={"int8_static": "the model has no layer"}).run()
    assert entry(receipt, "int8_static").verdict == "untried" and entry(receipt, "int8_static").why == "the model has no layer"
