"""What goes wrong on one process of a run, through the command as a person gives it: what all of them do, and what is said.

A process that is killed or hangs, and what the watch makes of it, is in tests/faults. Memory that runs out, processes with
different recipes and a mesh that does not multiply to the world are in test_together.py; ports and meetings in test_world.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import training
from interpreters import ForkedPython
from safetensors.torch import load_file
from worlds import HERE, PROBED, Ended, commanded, ended, together

import flatout as fo
from flatout.base.events import read_events
from flatout.recipe.load import read_recipe
from flatout.store.run_folder import RunFolder

RECIPE = """\
data: {arrays: rows.npz, holdout: 0.1}
model: planted:Model
batch: 14
lr: 0.05
optimizer: {sgd: {momentum: 0.9}}
clip: 0.5
evaluate: null
budget: 200 steps
settings: {device: cpu, log_every: 5, checkpoint_every: 10 steps}
"""


def flatout_run(desk: Path, runs: str, *more: str) -> list[str]:
    return ["-m", "flatout", "run", str(desk / "rows.yaml"), "--runs", str(desk / runs), "--planning", "off", *more]


def run_in(runs: Path) -> RunFolder:
    (path,) = runs.iterdir()
    return RunFolder(path)


def events_of(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(folder.events_path) if event["kind"] == kind]


def apart(one: Path, other: Path) -> float:
    a, b = load_file(one), load_file(other)
    return max(float((a[name] - b[name]).abs().max() / a[name].abs().max()) for name in a)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    draw = numpy.random.default_rng(0)
    numpy.savez(folder / "rows.npz", x=draw.normal(size=(203, 8)).astype("float32"), y=numpy.arange(203) % 3)
    shutil.copy(HERE / "planted.py", folder)
    (folder / "rows.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def raised(desk: Path) -> Iterator[ForkedPython]:
    """Under torchrun. It goes on beside what the other tests do, which mostly wait."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "FAULT": "raises:1", "OMP_NUM_THREADS": "1"}
    with (desk / "raised.txt").open("w") as said:
        process = ForkedPython([*torchrun, *flatout_run(desk, "raised")], env=environment, stderr=said)
        yield process
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Troubled:
    """A run of two processes with half of the weights each, of which the second was stopped in the end."""

    processes: list[Ended]
    told: str  # what the first one said until the straggler was told
    folder: RunFolder


@pytest.fixture(scope="module")
def troubled(desk: Path, raised: object) -> Troubled:
    fault = {"FAULT": "slow on a disk that is full for a while:1"}
    told = ""
    with commanded(2, flatout_run(desk, "troubled", "--mesh", "shard=2"), fault) as processes:
        assert processes[0].stderr is not None
        for line in processes[0].stderr:
            told += line
            if "straggler" in line:
                break
        processes[1].send_signal(signal.SIGTERM)
        found = ended(processes)
    return Troubled(found, told, run_in(desk / "troubled"))


def test_a_straggler_is_told_with_its_rank_and_what_it_costs(troubled: Troubled) -> None:
    assert "degraded: straggler: rank 1 " in troubled.told.splitlines()[-1]
    (event,) = [event for event in events_of(troubled.folder, "degraded") if event["what"] == "straggler"]
    assert re.search(r"in split forward\. All ranks wait for it: a step takes \S+ ms instead of \S+ ms", event["why"])


def test_a_disk_that_is_full_for_one_costs_checkpoints_and_not_the_run(troubled: Troubled) -> None:
    failed = events_of(troubled.folder, "checkpoint_failed")
    saved = [event["step"] for event in events_of(troubled.folder, "checkpoint_saved")]
    assert 20 in [event["step"] for event in failed] and {0, 40} <= set(saved)
    for event in failed:
        assert event["why"] == "rank 1: File too large" and event["kept"][0] < event["step"]
        assert event["step"] not in saved, "what one process could not write is no checkpoint"
    assert "checkpoint failed (step 20): rank 1: File too large" in troubled.told


def test_a_signal_to_any_one_process_saves_once_and_all_leave(troubled: Troubled, desk: Path) -> None:
    """One process goes on with what two have saved, and learns what one learns that nobody stopped."""
    (stopped,) = events_of(troubled.folder, "stopped")
    assert [one.code for one in troubled.processes] == [143, 143]
    assert all(f"flatout: SIGTERM: saved at step {stopped['step']}" in one.err for one in troubled.processes)
    assert troubled.folder.status == "stopped"
    checkpoints = troubled.folder.checkpoints()
    assert checkpoints.steps()[-1] == stopped["step"] and checkpoints.being_written() is None
    recipe = read_recipe(desk / "rows.yaml")
    whole = fo.run(recipe, runs=desk / "alone", cache=PROBED, planning="off")
    resumed = fo.run(recipe, runs=desk / "troubled", cache=PROBED, planning="off")
    assert [event["step"] for event in events_of(resumed.folder, "resumed")] == [stopped["step"]]
    assert apart(whole.folder.weights_path, resumed.folder.weights_path) < 1e-5


def test_an_exception_on_one_process_stops_all_with_its_traceback(raised: ForkedPython, desk: Path) -> None:
    assert raised.wait(timeout=100) == 1
    said = (desk / "raised.txt").read_text()
    assert "flatout: rank 1 failed, so all ranks stop: ValueError: a row that nobody has thought of\nTraceback" in said
    assert 'raise ValueError("a row that nobody has thought of")  # here' in said
    assert "Gloo" not in said and "gloo" not in said, "an exchange that broke is not the reason"
    folder = run_in(desk / "raised")
    assert folder.status == "failed" and folder.result["reason"] == "rank 1: ValueError: a row that nobody has thought of"
    assert "# here" in events_of(folder, "failed")[-1]["error"]
    assert folder.checkpoints().steps() == [0, 10]


def test_what_can_not_be_is_refused_by_all_and_another_mesh_can_go_on(tmp_path: Path) -> None:
    processes = together(2, "many_runs.py", str(tmp_path))
    assert [one.code for one in processes] == [0, 0], processes[0].err + processes[1].err
    first, second = (json.loads(one.out.splitlines()[-1]) for one in processes)
    for name, words in {
        "stages": "UsageError: 2 stages and 1 layers",
        "split": "UsageError: tensor=2 does not divide the 15 outputs",
        "code": "UsageError: rank 1 has a different code than rank 0: -__main__.Own:scale = 1.0; +__main__.Own:scale = 2.0.",
        "data": "UsageError: rank 1 has a different data than rank 0",
        "versions": f"UsageError: rank 1 has a different flatout than rank 0: 0.0.1, not {fo.__version__}",
        "moved, begun": "Stopped: SIGTERM: saved at step 7",
        "moved, busy": "is being trained by process",
        "moved, on another mesh": "Stopped: SIGTERM: saved at step 13",
        "moved, and another": "finished at step 18",
        "padded, split otherwise": "settings that mesh=tensor=2 does not allow: vocabulary_pad",
    }.items():
        assert words in first[name] and words in second[name], name
    assert second["moved, busy"].startswith("TrainingError: rank 0: ") and first["moved, busy"].startswith("RunBusy: ")
    assert sorted(path.name for path in tmp_path.iterdir() if list(path.iterdir())) == ["moved", "padded"]
    recipe = fo.Recipe(**{**training.recipes("mlp"), "budget": "18 steps", "settings": {"device": "cpu"}})
    alone = fo.run(recipe, runs=tmp_path / "alone", cache=PROBED, planning="off")
    assert apart(alone.folder.weights_path, run_in(tmp_path / "moved").weights_path) < 1e-5
