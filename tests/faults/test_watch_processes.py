"""Real ranks with real Gloo groups and stores, each with one fault planted: what the watch says of it, on which rank."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from interpreters import run_forked

PROGRAM = Path(__file__).parent.parent.parent / "benchmarks" / "_watched.py"
SMALL = {"size": 3, "step": 6, "hang_s": 3.0, "limit_s": 45.0}
FAULTS: dict[str, dict[str, Any]] = {
    "asleep in data": {"kind": "sleep", "rank": 2},
    "asleep, others in DDP's backward": {"kind": "sleep", "rank": 0, "ddp": True},
    "another collective": {"kind": "collective", "rank": 1},
    "stopped": {"kind": "stop", "rank": 1},
    "the leader stopped": {"kind": "stop", "rank": 0},
    "keeps Python's lock": {"kind": "gil", "rank": 2, "hang_s": 7.0},
    "raises": {"kind": "raise", "rank": 1, "until": "failed", "of_each": True},
    "killed": {"kind": "kill", "rank": 1, "until": "lost", "of_each": True},
    "the store's rank killed": {"kind": "kill", "rank": 0, "store": "rank", "until": "store_lost", "of_each": True},
    "the store's rank stopped": {"kind": "stop", "rank": 0, "store": "rank", "until": "store_lost", "of_each": True},
    "a slow rank": {"kind": "slow data", "rank": 1, "until": "straggler"},
    "a nap": {"kind": "nap", "rank": 1, "until": "moving"},
    "SIGTERM after a death": {"kind": "roll call", "rank": 1, "until": "ended", "of_each": True},
    "a normal end": {"kind": "end", "rank": -2, "store": "rank", "until": "ended", "of_each": True},
}
Said = Mapping[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def said() -> Said:
    """What the ranks of each fault said. All run side by side: they mostly wait, as hanging ranks do."""
    faults = [{**SMALL, **fault} for fault in FAULTS.values()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ended = run_forked([str(PROGRAM), json.dumps(faults)], env=environment, timeout=150)
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    return {name: [line for line in lines if line["fault"] == number] for number, name in enumerate(FAULTS)}


def line_of(kind: str) -> str:
    source = PROGRAM.read_text().splitlines()
    return f"_watched.py:{next(number for number, text in enumerate(source, 1) if text.endswith(f'# here: {kind}'))} "


def told(lines: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = [line for line in lines if line["kind"] == kind]
    assert len(found) == 1, lines
    return found[0]


@pytest.mark.parametrize("name", ["asleep in data", "another collective", "keeps Python's lock"])
def test_a_hang_is_named_by_rank_line_and_what_the_others_wait_in(said: Said, name: str) -> None:
    hang, fault = told(said[name], "hang"), FAULTS[name]
    assert hang["odd"] == [fault["rank"]] and hang["rank"] == 0 and hang["mine"]
    assert line_of(fault["kind"]) in hang["told"]
    others = ", ".join(str(rank) for rank in range(3) if rank != fault["rank"])
    assert f"ranks {others} wait for it in all_reduce (benchmarks/_watched.py:" in hang["told"]


def test_ranks_that_wait_inside_of_backward_are_known_to_wait(said: Said) -> None:
    hang = told(said["asleep, others in DDP's backward"], "hang")
    assert hang["odd"] == [0] and hang["rank"] == 0  # its main thread sleeps, its watch does not
    assert line_of("sleep") in hang["told"] and "ranks 1, 2 wait for it in backward" in hang["told"]


@pytest.mark.parametrize(("name", "reporter"), [("stopped", 0), ("the leader stopped", 1)])
def test_a_stopped_rank_is_told_by_the_lowest_that_answers(said: Said, name: str, reporter: int) -> None:
    hang = told(said[name], "hang")
    assert hang["odd"] == [FAULTS[name]["rank"]] and hang["rank"] == reporter
    assert "is stopped (SIGSTOP" in hang["told"] and "in all_reduce" in hang["told"]


def test_an_exception_ends_all_with_its_traceback(said: Said) -> None:
    lines = said["raises"]
    assert [line["own"] for line in lines if line["kind"] == "left" and line["rank"] == 1] == [True]
    for rank in (0, 2):  # by the callback while main hangs in all_reduce, or as the cause when the exchange broke first
        heard = [line for line in lines if line["rank"] == rank]
        assert {line.get("cause", line["kind"]) for line in heard} == {"failed"}
        assert all("rank 1 failed" in line["told"] and "in fail\n" in line["told"] for line in heard)
        assert all("ValueError: a row of 13 columns" in line["told"] for line in heard)


def test_a_killed_rank_is_lost_and_not_the_errors_that_follow(said: Said) -> None:
    lines = said["killed"]
    for rank in (0, 2):
        heard = [line for line in lines if line["rank"] == rank]
        assert {line.get("cause", line["kind"]) for line in heard} == {"lost"}
        assert all("rank 1 is lost" in line["told"] for line in heard)


@pytest.mark.parametrize(("name", "word"), [("the store's rank killed", "gone"), ("the store's rank stopped", "stopped")])
def test_the_end_of_the_store_is_news_and_not_an_error_in_a_thread(said: Said, name: str, word: str) -> None:
    for rank in (1, 2):
        heard = [line for line in said[name] if line["rank"] == rank]
        assert {line.get("cause", line["kind"]) for line in heard} == {"store_lost"}
        assert all("the store at 127.0.0.1:" in line["told"] and f"rank 0 is {word}" in line["told"] for line in heard)


def test_a_straggler_is_told_once_with_its_cost(said: Said) -> None:
    slow = told(said["a slow rank"], "straggler")
    assert slow["odd"] == [1] and slow["rank"] == 0
    assert (
        "rank 1 takes" in slow["told"]
        and "difference is in data" in slow["told"]
        and "All ranks wait for it: a step takes" in slow["told"]
    )


def test_a_hang_that_ends_is_told_to_be_over(said: Said) -> None:
    assert [line["kind"] for line in said["a nap"]] == ["planted", "hang", "moving"]


def test_a_roll_call_misses_who_died_a_moment_ago(said: Said) -> None:
    for rank in (0, 2):
        calls = [line for line in said["SIGTERM after a death"] if line["rank"] == rank and line["kind"] == "roll"]
        assert [call["missing"] for call in calls] == [[], [1]]
        assert calls[1]["lost"] == [1]


def test_a_normal_end_is_no_news_though_the_store_ends_with_its_rank(said: Said) -> None:
    assert sorted((line["rank"], line["kind"], line["trouble"]) for line in said["a normal end"]) == [
        (rank, "ended", "") for rank in range(3)
    ]
