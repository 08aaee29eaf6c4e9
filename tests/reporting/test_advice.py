"""What the page of a run says to do next."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from flatout.base.tree import Table
from flatout.cli.main import app
from flatout.reporting.advice import advice_nodes
from flatout.reporting.page import run_doc
from flatout.reporting.story import read_story
from flatout.store.run_folder import RunFolder


@pytest.fixture
def mine(run: RunFolder) -> RunFolder:
    """As if its recipe were a file, with an override; its own evaluations are left out."""
    run.write("origin.json", {**run.read("origin.json"), "file": "/my recipes/a.yaml", "overrides": ["lr=1e-2"], "pins": {}})
    lines = run.events_path.read_bytes().splitlines(keepends=True)
    run.events_path.write_bytes(b"".join(line for line in lines if b'"kind": "evaluation"' not in line))
    return run


def course(run: RunFolder, log: Callable[..., None], scores: Sequence[float], **result: Any) -> RunFolder:
    """The run judged itself by these accuracies, every four steps."""
    events = [
        {
            "kind": "evaluation",
            "t": 9.0,
            "at": 9.0,
            "step": 4 * place,
            "metrics": {"accuracy": score},
            "best": score == max(scores),
        }
        for place, score in enumerate(scores, 1)
    ]
    log(run, *events)
    best = {"step": 4 * (scores.index(max(scores)) + 1), "metric": "accuracy", "value": max(scores)}
    run.write("result.json", {**run.result, "best": best, "metrics": {"accuracy": scores[-1]}, **result})
    return run


def advice(run: RunFolder, *, is_judged: bool = True) -> list[tuple[str, str]]:
    """Reasons and commands."""
    tables = [node for node in advice_nodes(read_story(run), is_judged=is_judged) if isinstance(node, Table)]
    return [(str(row["why"]), str(row["command"])) for table in tables for row in table.rows]


RISES = [0.1, 0.3, 0.5, 0.7, 0.8, 0.9]
FALLS = [0.1, 0.6, 0.9, 0.8, 0.7, 0.6]
FLAT = [0.1, 0.8, 0.89, 0.9, 0.9, 0.899]


@pytest.mark.parametrize(
    ("scores", "result", "why", "command"),
    [
        (RISES, {}, "was still getting better: 0.8000 to 0.9000", "flatout run '/my recipes/a.yaml' lr=1e-2 'budget=80 steps'"),
        (FALLS, {}, "best at step 12 (0.9000) and ended at 0.6000", "flatout tune '/my recipes/a.yaml' lr=1e-2 weight_decay="),
        (FLAT, {"metrics": {"baseline.accuracy": 0.95}}, "no better than always the same answer", "flatout overfit '/my "),
        (FLAT, {"ledger": {"data": 30.0}, "wall_seconds": 90.0}, "waiting for data took 33%", "flatout data '/my "),
        (FLAT, {"ledger": {"evaluation": 40.0}, "wall_seconds": 90.0}, "evaluation took 44%", "'evaluate=2 epochs' --fresh"),
        (FLAT, {"status": "stopped"}, "the run was stopped", "flatout run '/my recipes/a.yaml' lr=1e-2"),
        (FLAT, {"status": "diverged"}, "the run diverged", "flatout find-lr '/my recipes/a.yaml'"),
    ],
)  # fmt: skip
def test_the_first_advice_is_about_what_went_wrong(
    scores: list[float], result: dict[str, Any], why: str, command: str, mine: RunFolder, log: Callable[..., None]
) -> None:
    course(mine, log, scores, **result)
    mine.write("recipe.json", {**mine.read("recipe.json"), "budget": "40 steps"})
    first = advice(mine)[0]
    assert why in first[0] and command in first[1]


def test_after_a_good_run_it_is_used(mine: RunFolder, log: Callable[..., None]) -> None:
    course(mine, log, FLAT, wall_seconds=90.0)
    name = mine.name
    expected = [f"flatout report {name} --evaluate", f"flatout serve {name}", f"flatout export {name}"]
    assert [command for _, command in advice(mine, is_judged=False)] == expected
    assert [command for _, command in advice(mine)] == expected[1:]
    for command in expected:
        assert "Example" in CliRunner().invoke(app, [shlex.split(command)[1], "--help"]).output


def test_a_recipe_that_is_no_file_has_advice_without_its_command(run: RunFolder) -> None:
    run.write("result.json", {**run.result, "status": "diverged"})
    assert advice(run)[0] == ("the run diverged", "")


def test_nothing_to_do_while_it_trains(mine: RunFolder) -> None:
    lock = mine.lock()
    lock.take()
    try:
        assert advice(mine) == []
    finally:
        lock.release()
    assert any(isinstance(node, Table) and node.key == "next" for node in run_doc(read_story(mine)).nodes)
