"""Evaluation by one, two and four processes: the same metrics, each row looked at once."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from evaluating import LEFT, ROWS
from worlds import Ended, ended, started, together

from flatout.base.events import read_events

NAMES = ("classify", "regress", "binary", "multilabel", "next_token", "sequences", "few", "own")
SPLIT = {
    2: [("next_token", "shard=2"), ("next_token", "tensor=2"), ("next_token", "pipeline=2"), ("few", "shard=2"),
        ("own", "shard=2"), ("sequences", "shard=2"), ("short", "data=2"), ("short", "shard=2"), ("local", "data=2")],
    4: [("binary", "shard=4"), ("few", "shard=4"), ("few", "data=2,shard=2"), ("next_token", "data=2,tensor=2"),
        ("next_token", "shard=2,tensor=2"), ("next_token", "pipeline=2,data=2")],
}  # fmt: skip
ONE = "rows to evaluate: 1\n"

Said = dict[str, Any]
Alone = dict[str, dict[str, float]]


def went(processes: list[Ended]) -> list[list[Said]]:
    """What each process said of each case."""
    assert [one.code for one in processes] == [0] * len(processes), "\n".join(one.err for one in processes)
    return [[json.loads(line) for line in one.out.splitlines() if line.startswith("{")] for one in processes]


def events(runs: Path) -> list[Said]:
    (run,) = runs.iterdir()
    return list(read_events(run / "events.jsonl"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    run = {"name": "ema", "runs": str(tmp_path_factory.mktemp("alone")), "settings": {}}
    (said,) = went(together(1, "evaluating.py", [(name, "") for name in NAMES], [run]))
    return {name: one["metrics"] for name, one in zip(("ema", *NAMES), said, strict=True)}


def same(found: dict[str, float], expected: dict[str, float]) -> bool:
    return found.keys() == expected.keys() and found == pytest.approx(expected, rel=1e-12, abs=1e-300)


def looks(size: int) -> list[tuple[str, str]]:
    return [(name, f"data={size}") for name in NAMES] + SPLIT[size]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[Said]], Path]:
    """What each of two processes said: of two runs, and of the looks."""
    folder = tmp_path_factory.mktemp("two")
    split = {"name": "ema", "runs": str(folder / "ema"), "settings": {"mesh": "shard=2", "reshard": False}}
    own = {"name": "own", "runs": str(folder / "own"), "settings": {}}
    return went(together(2, "evaluating.py", looks(2), [split, own])), folder


def test_metrics_of_two_processes_are_those_of_one(alone: Alone, two: tuple[list[list[Said]], Path]) -> None:
    check_looks(2, alone, [said[2:] for said in two[0]])


def test_metrics_of_four_processes_are_those_of_one(alone: Alone) -> None:
    check_looks(4, alone, went(together(4, "evaluating.py", looks(4), [])))


def test_a_run_evaluates_its_average_in_shares(alone: Alone, two: tuple[list[list[Said]], Path]) -> None:
    """Weights that were gathered to look at the average are not those that are trained."""
    (first, *_), (second, *_) = two[0]
    assert first == second and same(first["metrics"], alone["ema"])


def test_a_run_says_what_it_can_not_share(two: tuple[list[list[Said]], Path]) -> None:
    (why,) = [event["why"] for event in events(two[1] / "own") if event.get("what") == "evaluation"]
    assert "every process evaluates all rows" in why


def check_looks(size: int, alone: Alone, said: list[list[Said]]) -> None:
    for number, (name, mesh) in enumerate(looks(size)):
        of_ranks = [one[number] for one in said]
        expected = alone["classify" if name in ("short", "local") else name]
        assert same(of_ranks[0]["metrics"], expected), (name, mesh, of_ranks[0]["metrics"], expected)
        assert all(one["metrics"] == of_ranks[0]["metrics"] for one in of_ranks), (name, mesh)  # to the bit
        check_rows(name, mesh, [one["rows"] for one in of_ranks])
        halved = [[3, "rank 1: no room for so many rows"], [2, "rank 1: no room for so many rows"]]
        assert all(one["splits"] == (halved if name == "short" else []) for one in of_ranks), (name, mesh)


def check_rows(name: str, mesh: str, of_ranks: list[list[float]]) -> None:
    """How many reached the meters of each process; of a table's rows also which."""
    there, size = 3 if name == "few" else LEFT, len(of_ranks)
    axes = {axis: int(count) for axis, _, count in (part.partition("=") for part in mesh.split(","))}
    shares = axes.get("data", 1) * axes.get("shard", 1)
    counts = [len(rows) for rows in of_ranks]
    if name == "own":
        assert counts == [there] * size
    elif name == "short":  # some were looked at again, in smaller batches
        assert {row for rows in of_ranks for row in rows} == {(ROWS + row) / 128 for row in range(LEFT)}
    elif "pipeline" in axes:  # the last stage has the outputs
        assert sum(counts) == there and sorted(counts)[size - shares :] == fair(there, shares)
    else:
        assert sorted(counts) == sorted(fair(there, shares) * (size // shares)), (name, mesh, counts)
    if name in ("classify", "regress", "binary", "multilabel", "few", "local"):
        found = sorted(row for rows in of_ranks for row in rows)
        assert found == [(ROWS + row) / 128 for row in range(there)], (name, mesh)


def fair(rows: int, shares: int) -> list[int]:
    return sorted(rows * (share + 1) // shares - rows * share // shares for share in range(shares))


def test_a_signal_during_an_evaluation_stops_all_and_is_made_up_for(tmp_path: Path) -> None:
    """To the second process, in its first batch: both stop in the same place, before the end of their shares."""
    run = {"name": "slow", "runs": str(tmp_path / "slow"), "settings": {"evaluation_batch": 1}}
    with started(2, "evaluating.py", [], [run]) as processes:
        assert processes[1].stdout is not None
        assert ONE in processes[1].stdout  # up to there is read
        processes[1].send_signal(signal.SIGTERM)
        found = ended(processes)
    assert [one.code for one in found] == [143, 143], found
    assert "SIGTERM: saved at step 3" in found[0].err
    assert all(one.out.count(ONE) < LEFT // 2 - 1 for one in found)
    again = went(together(2, "evaluating.py", [], [run]))
    assert again[0] == again[1] and "accuracy" in again[0][0]["metrics"]
    assert [event["kind"] for event in events(tmp_path / "slow")].count("evaluation") == 1
