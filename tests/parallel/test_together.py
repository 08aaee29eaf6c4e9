"""The same recipe by one, two and four processes: the same weights, the same losses, each sample once."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from worlds import Ended, ended, started, together

from flatout.base.events import read_events

EXACT = {"mlp": 1e-5, "gpt": 1e-5, "gpt64": 1e-9}
SEEN = {"budget": "4 epochs"}  # of 203 rows by 14: whole batches


def asked(folder: Path, *names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "runs": str(folder / name), **more} for name in names]


def went_well(processes: list[Ended]) -> None:
    assert [one.code for one in processes] == [0] * len(processes), "\n".join(one.err for one in processes)


def folder_of(runs: Path) -> Path:
    (folder,) = runs.iterdir()
    return folder


def weights(runs: Path) -> dict[str, Tensor]:
    return load_file(folder_of(runs) / "model.safetensors")


def losses(runs: Path) -> dict[int, float]:
    return {e["step"]: e["loss"] for e in read_events(folder_of(runs) / "events.jsonl") if e["kind"] == "step"}


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max() / a[name].abs().max()) for name in a)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    few = asked(folder / "few", "tokens64", "mlp", "thawed", **{"with": FEW})
    went_well(together(1, "training.py", [*asked(folder, *EXACT), *few]))
    return folder


@pytest.mark.parametrize("size", [2, 4])
def test_more_processes_learn_the_same(alone: Path, tmp_path: Path, size: int) -> None:
    exact = EXACT if size == 2 else {name: EXACT[name] for name in ("mlp", "gpt64")}
    processes = together(size, "training.py", [*asked(tmp_path, *exact), *asked(tmp_path, "seen", **{"with": SEEN})])
    went_well(processes)
    for name, limit in exact.items():
        assert apart(weights(alone / name), weights(tmp_path / name)) < limit, name
        here, there = losses(alone / name), losses(tmp_path / name)
        assert list(here) == list(there) and torch.allclose(*(torch.tensor(list(one.values())) for one in (here, there)))
    assert len({one.out for one in processes}) == 1  # every process knows the same metrics
    plan = json.loads((folder_of(tmp_path / "mlp") / "plan.json").read_text())
    chosen: dict[str, Any] = {choice["name"]: choice for choice in plan["choices"]}
    assert chosen["mesh"]["value"] == f"data={size}" and "full copy" in chosen["mesh"]["why"]
    assert f"{size} processes" in chosen["graph"]["why"] and chosen["graph"]["source"] == "default"
    assert plan["batch"] == 14  # of all processes together
    assert f"all {-(-14 // size)} at once" in chosen["micro_batch"]["why"]  # a process's share of it
    assert torch.equal(weights(tmp_path / "seen")["table.weight"], torch.full((203, 1), -4.0))


SPLIT = {2: ["shard=2", "tensor=2", "pipeline=2"], 4: ["data=2,shard=2", "data=2,tensor=2", "pipeline=2,data=2"]}
TOLD = ("unfroze", "resumed")
FEW = {"budget": "12 steps"}  # benchmarks/exact_together.py has all meshes, over 50


@pytest.mark.parametrize("size", SPLIT)
def test_split_weights_learn_the_same(alone: Path, tmp_path: Path, size: int) -> None:
    """In float64 with AdamW, and by two the MLP in float32 with SGD and momentum."""
    names = ("tokens64", "mlp") if size == 2 else ("tokens64",)
    pairs = [(mesh, name) for mesh in SPLIT[size] for name in names]
    runs = [run for mesh, name in pairs for run in asked(tmp_path / mesh, name, settings={"mesh": mesh}, **{"with": FEW})]
    went_well(together(size, "training.py", runs))
    for mesh, name in pairs:
        limit = 1e-9 if name == "tokens64" else 1e-5
        assert apart(weights(alone / "few" / name), weights(tmp_path / mesh / name)) < limit, (mesh, name)


def test_unfreezing_in_several_processes(alone: Path, tmp_path: Path) -> None:
    """Also stopped on either side of it; a mesh that splits weights is refused."""
    often = {"log_every": 1, "checkpoint_every": "1 step"}
    runs = asked(tmp_path / "calm", "thawed", settings=often, **{"with": FEW})
    for step in (4, 8):
        cut = asked(tmp_path / f"cut{step}", "thawed", settings=often, **{"with": FEW})
        runs += [{**cut[0], "stop_at": step}, *cut]
    processes = together(2, "training.py", [*runs, *asked(tmp_path, "thawed", settings={"mesh": "shard=2"}, **{"with": FEW})])
    assert all(one.code and "unfreeze needs all weights" in one.err for one in processes)
    calm = weights(tmp_path / "calm/thawed")
    assert apart(weights(alone / "few" / "thawed"), calm) < 1e-5
    for step in (4, 8):
        again = folder_of(tmp_path / f"cut{step}/thawed")
        kinds = [(event["kind"], event["step"]) for event in read_events(again / "events.jsonl") if event["kind"] in TOLD]
        assert [kind for kind, _ in kinds] == ["unfroze"] * (step > 6) + ["resumed"] + ["unfroze"] * (step < 6)
        assert apart(calm, weights(again.parent)) == 0


def test_a_run_goes_on_with_more_or_fewer_processes(tmp_path: Path) -> None:
    """Stopped twice by a signal to one process, each time gone on with by another number of them."""
    often = {"checkpoint_every": "1000 steps", "log_every": 1}
    runs = asked(tmp_path, "seen", settings=often, **{"with": SEEN})
    for size, told in ((3, 2), (1, 0)):
        with started(size, "slowly.py", runs) as processes:
            assert processes[told].stdout is not None
            for line in processes[told].stdout:  # of this process's steps
                if int(line) % 20 == 19:
                    break
            processes[told].send_signal(signal.SIGTERM)
            found = ended(processes)
        assert [one.code for one in found] == [143] * size, found
        assert "SIGTERM: saved at step" in found[0].err
    went_well(together(2, "slowly.py", runs))
    assert torch.equal(weights(tmp_path / "seen")["table.weight"], torch.full((203, 1), -4.0))
    folder = folder_of(tmp_path / "seen")
    kinds = [event["kind"] for event in read_events(folder / "events.jsonl")]
    assert kinds.count("resumed") == 2 and kinds.count("stopped") == 2


def test_processes_that_differ_all_stop_and_say_in_what(tmp_path: Path) -> None:
    found = together(2, "differing.py", str(tmp_path))
    assert [one.code for one in found] == [2, 2]
    for one in found:
        assert "rank 1 has a different recipe than rank 0" in one.err and '"lr": 0.25' in one.err
    assert not list(tmp_path.iterdir())


def test_one_process_that_can_not_build_stops_all(tmp_path: Path) -> None:
    found = together(3, "differing.py", str(tmp_path), "no data on rank 2")
    assert [one.code for one in found] == [1, 1, 1]
    assert all("there is no data here" in one.err for one in found) and "rank 2" in found[0].err


def test_a_mesh_that_does_not_fit_is_said_before_anything_is_made(tmp_path: Path) -> None:
    found = together(2, "training.py", asked(tmp_path, "mlp", settings={"mesh": "data=3"}))
    said = "needs 3 processes, and there are 2: use --mesh data=2"
    assert [one.code for one in found] == [2, 2] and all(said in one.err for one in found)
    assert not (tmp_path / "mlp").exists()


def test_memory_that_runs_out_on_one_process_is_known_to_all(alone: Path, tmp_path: Path) -> None:
    """Rank 1 has room for two rows at a time: both take two, and learn the same."""
    found = together(2, "short_of_memory.py", asked(tmp_path, "mlp"))
    went_well(found)
    assert apart(weights(alone / "mlp"), weights(tmp_path / "mlp")) < EXACT["mlp"]
    event = [e for e in read_events(folder_of(tmp_path / "mlp") / "events.jsonl") if e.get("what") == "micro_batch"][-1]
    assert event["value"] == 2 and "rank 1" in event["why"]
    assert [json.loads(one.out.splitlines()[-1]) for one in found] == [2, 2]
