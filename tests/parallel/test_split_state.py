"""What a run keeps beside its weights, where these are split: averages, and the state of any optimizer of torch's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_together import apart, asked, folder_of, weights, went_well
from worlds import Ended, together

from flatout.base.events import read_events

KINDS = ("average64", "rmsprop64")
STRAIGHT = [("shard=2", "average64"), ("tensor=2", "average64"), ("pipeline=2", "average64"), ("tensor=2", "rmsprop64")]
# where runs are stopped and gone on with; a signal to one process is known to all a step later
BY_TWO = [("pipeline=2", 4), ("shard=2", 6), ("tensor=2", 8)]
BY_FOUR = [("pipeline=2,tensor=2", 10), ("pipeline=2,shard=2", 12)]


def run_of(folder: Path, kind: str, mesh: str = "", stop_at: int | None = None, **more: Any) -> dict[str, Any]:
    settings = {"mesh": mesh, "log_every": 1, **more}
    (run,) = asked(folder, kind, settings=settings, **{"with": {"budget": "16 steps"}})
    return {**run, "stop_at": stop_at}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """Whole runs, and others that are stopped on the way."""
    folder = tmp_path_factory.mktemp("alone")
    begun = [run_of(folder / "begun", kind, stop_at=3) for kind in KINDS]
    (found,) = together(1, "training.py", [*(run_of(folder, kind) for kind in KINDS), *begun])
    went_well([found])
    return folder, found


@pytest.fixture(scope="module")
def by_two(alone: tuple[Path, Ended]) -> list[Ended]:
    folder = alone[0]
    straight = [run_of(folder / mesh, kind, mesh, reshard=False) for mesh, kind in STRAIGHT]  # gathered weights are kept
    processes = together(
        2, "training.py", [*straight, *(run_of(folder / "begun", kind, *place) for kind in KINDS for place in BY_TWO)]
    )
    went_well(processes)
    return processes


def test_each_process_keeps_its_own_part_of_it(alone: tuple[Path, Ended], by_two: list[Ended]) -> None:
    """Averages are evaluated with on the way, which leaves no trace in what is learned, and are what is left."""
    folder, found = alone
    metrics = dict(zip(KINDS, map(json.loads, found.out.splitlines()), strict=True))
    for process in by_two:
        for (mesh, kind), line in zip(STRAIGHT, process.out.splitlines(), strict=True):
            assert json.loads(line) == pytest.approx(metrics[kind], rel=1e-9), (mesh, kind)
    for mesh, kind in STRAIGHT:
        assert apart(weights(folder / kind), weights(folder / mesh / kind)) < 1e-9, (mesh, kind)


def test_it_is_gone_on_with_on_any_other_mesh(alone: tuple[Path, Ended], by_two: list[Ended]) -> None:
    """By one process, then on one mesh of two after the other, one run on two of four, and by one process again."""
    folder, begun = alone[0], alone[0] / "begun"
    went_well(together(4, "training.py", [run_of(begun, KINDS[0], *place) for place in BY_FOUR]))
    went_well(together(1, "training.py", [run_of(begun, kind) for kind in KINDS]))
    for kind in KINDS:
        events = [event["kind"] for event in read_events(folder_of(begun / kind) / "events.jsonl")]
        times = 1 + len(BY_TWO) + (len(BY_FOUR) if kind == KINDS[0] else 0)
        assert (events.count("stopped"), events.count("resumed")) == (times, times), kind
        assert apart(weights(folder / kind), weights(begun / kind)) < 1e-9, kind
