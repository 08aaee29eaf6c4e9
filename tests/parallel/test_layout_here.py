"""Which layout the processes that are here take, and that a run goes on in any other."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from test_together import apart, asked, folder_of, weights, went_well
from worlds import ended, started, together

from flatout.base.events import read_events

FEW = {"budget": "12 steps"}


@pytest.mark.parametrize(
    ("memory_bytes", "mesh", "why"),
    [
        ([10**9, 10**9], "data=2", "each has a copy"),
        ([10**9, 380_000], "shard=2", "should fit"),  # the smallest device counts
        ([20_000, 20_000], "shard=2", "is not estimated to fit into"),
    ],
)
def test_the_layout_goes_by_memory(memory_bytes: list[int], mesh: str, why: str) -> None:
    processes = together(2, "laying_out.py", {"memory_bytes": memory_bytes})
    went_well(processes)
    told = [json.loads(one.out) for one in processes]
    assert told[0] == told[1]
    assert told[0]["mesh"] == mesh and why in told[0]["why"], told[0]


def test_the_plan_says_how_the_processes_share_the_work(tmp_path: Path) -> None:
    went_well(together(2, "training.py", asked(tmp_path, "mlp", **{"with": FEW})))
    plan = json.loads((folder_of(tmp_path / "mlp") / "plan.json").read_text())
    chosen: dict[str, Any] = {choice["name"]: choice for choice in plan["choices"]}
    assert chosen["mesh"]["value"] == "data=2" and "each has a copy" in chosen["mesh"]["why"]
    assert chosen["graph"]["why"] == "2 processes can't have it" and chosen["graph"]["source"] == "default"
    assert plan["batch"] == 14  # of all processes together
    assert "all 7 at once" in chosen["micro_batch"]["why"]  # a process's share of it


def test_a_run_goes_on_in_another_layout(tmp_path: Path) -> None:
    """Begun with split weights by two processes, ended by one; in between it is still the same run."""
    (whole,) = asked(tmp_path / "whole", "tokens64", **{"with": FEW})
    went_well(together(1, "training.py", [whole]))
    often = {"checkpoint_every": "1000 steps", "log_every": 1, "mesh": "shard=2"}
    (begun,) = asked(tmp_path, "tokens64", settings=often, **{"with": FEW})
    with started(2, "slowly.py", [begun]) as processes:
        assert processes[1].stdout is not None
        for line in processes[1].stdout:
            if int(line) == 4:
                break
        processes[1].send_signal(signal.SIGTERM)
        found = ended(processes)
    assert [one.code for one in found] == [143] * 2, found
    went_well(together(1, "slowly.py", [{**begun, "settings": {**often, "mesh": ""}}]))
    kinds = [event["kind"] for event in read_events(folder_of(tmp_path / "tokens64") / "events.jsonl")]
    assert kinds.count("resumed") == 1
    assert apart(weights(tmp_path / "whole" / "tokens64"), weights(tmp_path / "tokens64")) < 1e-9
