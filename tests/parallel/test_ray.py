"""On a Ray cluster of several raylets: the weights of one process, a node that is killed, a stop that saves, and bad input."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray_work
from known_machine import keep_ceilings
from safetensors.torch import load_file
from torch import Tensor

import flatout as fo
from flatout.base.errors import MachineError, MissingExtra, Stopped, TrainingError, UsageError
from flatout.base.events import Event, Observer, read_events
from flatout.fleet import ray as fleet_ray
from flatout.fleet.ray import WorkerCount, launch
from flatout.fleet.ray_submit import submit
from flatout.recipe.load import read_recipe
from flatout.runs import verbs

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: flatout[cluster]")

RECIPE = """\
data: {arrays: train.npz, holdout: 0.25}
model: {mlp: {hidden: [8]}}
batch: 14
lr: 1e-2
optimizer: sgd
budget: 50 steps
settings: {device: cpu, checkpoint_every: 10 steps, log_every: 1}
"""
EXACT = 1e-5


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(203, 5)).astype("float32")
    np.savez(tmp_path / "train.npz", x=x, y=(x.sum(1) > 0).astype("int64"))
    (tmp_path / "mlp.yaml").write_text(RECIPE)
    return tmp_path / "mlp.yaml"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that trains nothing, and three nodes with room for one worker each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # what workers do is imported there
        changed.setenv("RAY_TQDM_PATCH_PRINT", "0")  # Ray's own print would break the graphs of later tests
        changed.setattr(logging.root, "level", logging.root.level)  # Ray Train turns on everybody's debug messages
        changed.setattr(logging.root, "handlers", list(logging.root.handlers))
        soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": soon}  # a killed node is noticed within seconds
        handler = signal.getsignal(signal.SIGTERM)
        made = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(3):
            made.add_node(num_cpus=1, wait=False)
        made.wait_for_nodes()
        yield made
        made.shutdown()
        signal.signal(signal.SIGTERM, handler)


def trained(cluster: Any, recipe: Path, runs: Path, observer: Observer) -> Path:
    work = partial(ray_work.train, str(recipe), str(runs), ("killed", "stopped"))
    return launch(work, WorkerCount(2, 2), runs, address=cluster.address, observers=(observer,))


def alone(recipe: Path) -> Path:
    return verbs.run(read_recipe(recipe), runs=recipe.parent / "alone", cache=None, planning="off").path


def weights(run: Path) -> dict[str, Tensor]:
    return load_file(run / "model.safetensors")


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max() / a[name].abs().max()) for name in a)


def kinds(run: Path, *wanted: str) -> list[Event]:
    return [event for event in read_events(run / "events.jsonl") if event["kind"] in wanted]


@needs_ray
def test_a_killed_node_and_a_stop_change_nothing_of_what_is_learnt(cluster: Any, recipe: Path) -> None:
    """A node is killed, the workers start again on another, SIGTERM saves, and one process without Ray finishes the run."""
    runs, said = recipe.parent / "runs", list[str]()

    def kill_then_stop(event: Event) -> None:
        said.append(str(event.get("line")))
        if event["kind"] == "stands still" and event["until"] == "killed":
            killed = (recipe.parent / "node").read_text()
            (node,) = [node for node in cluster.worker_nodes if node.node_id == killed]
            cluster.remove_node(node, allow_graceful=False)
        elif event["kind"] == "stands still":
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="SIGTERM") as stopped:
        trained(cluster, recipe, runs, kill_then_stop)
    assert stopped.value.exit_code == 143
    assert any("worker" in line and "checkpoint" in line for line in said)  # the lost worker is named

    assert [path.name for path in runs.iterdir()] == ["mlp-1"]  # one run, and nothing of Ray's is left there
    run = verbs.run(read_recipe(recipe), runs=runs, cache=None, planning="off").path
    assert [path.name for path in runs.iterdir()] == ["mlp-1"]
    assert [event.get("processes", 1) for event in kinds(run, "planned")] == [2, 2, 1]
    after_kill, after_stop = (event["step"] for event in kinds(run, "resumed"))
    assert 0 < after_kill <= after_stop < 50
    assert verbs.load(run).result["status"] == "finished"
    assert apart(weights(alone(recipe)), weights(run)) < EXACT


@needs_ray
def test_trials_of_a_study_are_trained_by_workers(cluster: Any, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them is killed, and the other goes on."""
    from flatout.fleet import ray_crew

    keep_ceilings(recipe.parent / "c")
    handler, ask, killed = signal.getsignal(signal.SIGTERM), ray_crew.OnRay.ask, list[str]()

    def kill_one(self: Any, question: Any, limit_s: float | None) -> Any:
        if "train" in question and not killed and len(study_names) == 2:
            killed.append(self.name)
            self._ray.kill(self._actor)
        return ask(self, question, limit_s)

    monkeypatch.setattr(ray_crew.OnRay, "ask", kill_one)
    study_names: list[str] = []

    @contextmanager
    def seats(asked: Any, cache: Path | None) -> Iterator[Any]:
        count = WorkerCount(1, 2)
        with ray_crew.ray_seats(asked, cache, workers=count, address=cluster.address, gpus=False, say=print) as found:
            study_names.extend(one.name for one in found)
            yield found

    study = fo.tune(recipe, {"lr": "1e-3..1e-1"}, trials=2, runs=recipe.parent / "runs", cache=recipe.parent / "c", seats=seats)
    assert len(study_names) == 2 and study.result["finished_trials"] >= 1
    assert "is gone" in str(study.result["lost_processes"]) and killed[0] in str(study.result["lost_processes"])
    assert signal.getsignal(signal.SIGTERM) is handler, "Ray's own handler would end this process without saving"


@needs_ray
def test_a_worker_that_does_not_see_the_runs_says_so_once(cluster: Any, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipe.parent)
    said: list[str] = []
    with pytest.raises(TrainingError, match=r"the worker on node .* can't see /proc/self/cwd/runs") as failed:
        launch(
            partial(ray_work.train, str(recipe), "runs", ()),
            WorkerCount(1, 1),
            Path("/proc/self/cwd/runs"),  # another place in every process
            address=cluster.address,
            observers=(lambda event: said.append(event["kind"]),),
        )
    assert failed.value.exit_code == 1
    assert "placed" not in said  # and it was not tried again


@needs_ray
def test_nobody_at_that_address(recipe: Path) -> None:
    with pytest.raises(MachineError, match=r"no Ray cluster found at 127\.0\.0\.1:1"):
        launch(partial(ray_work.train, "", "", ()), WorkerCount(1, 1), recipe.parent, address="127.0.0.1:1")


PORT_TAKEN = "The server socket has failed to listen on any local network address. port: 41235, name: EADDRINUSE"


class FakeRay:
    """A cluster of two CPUs whose trainer raises the given errors, one at each start, and then finishes."""

    def __init__(self, errors: list[Exception], ended: dict[str, Any] | None = None) -> None:
        self.errors, self.folders = errors, list[Path]()
        self.line = SimpleNamespace(
            news=SimpleNamespace(remote=list), ended=SimpleNamespace(remote=lambda: ended)
        )  # fmt: skip

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def nodes(self) -> list[Any]:
        return [None]

    def get(self, answer: Any) -> Any:
        return answer

    def trainer(self, work: Any, workers: Any, line: Any, place: Path, use_gpu: bool, restarts: int) -> Any:
        assert place.is_dir()
        self.folders.append(place)
        return SimpleNamespace(fit=self.fit)

    def fit(self) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return SimpleNamespace(return_value={"folder": "runs/mlp-1"})


def launched(fake: FakeRay, runs: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> Path:
    monkeypatch.setattr(fleet_ray, "connected", lambda *_: nullcontext((fake, False)))
    monkeypatch.setattr(fleet_ray, "_line", lambda _: fake.line)
    monkeypatch.setattr(fleet_ray, "_trainer", fake.trainer)
    work = partial(ray_work.train, "", "", ())
    return launch(work, WorkerCount(2, 2), runs, observers=(lambda event: said.append(event["line"]),))


@needs_ray
def test_a_port_that_was_taken_in_between_is_chosen_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train import ControllerError

    said: list[str] = []
    fake = FakeRay([ControllerError(RuntimeError(PORT_TAKEN)), RuntimeError("Address already in use")])
    assert launched(fake, tmp_path, monkeypatch, said) == Path("runs/mlp-1")
    assert len(set(fake.folders)) == 3  # a folder of its own for each start, so that Ray restores nothing
    assert ["EADDRINUSE" in line for line in said] == [False, True, True]
    assert list(tmp_path.iterdir()) == []


@needs_ray
def test_a_port_is_chosen_again_twice_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train import ControllerError

    fake = FakeRay([ControllerError(RuntimeError(PORT_TAKEN)) for _ in range(9)])
    with pytest.raises(TrainingError, match="EADDRINUSE"):
        launched(fake, tmp_path, monkeypatch, [])
    assert len(fake.folders) == 3


@needs_ray
def test_other_errors_start_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train import ControllerError, WorkerGroupError

    of_the_script = {"words": f"worker 0 could not start: {PORT_TAKEN}", "code": 1}
    for error, ended, words in (
        (ControllerError(RuntimeError("no disk")), None, "no disk"),
        (WorkerGroupError(PORT_TAKEN, {0: RuntimeError(PORT_TAKEN)}), None, "worker 0: .*EADDRINUSE"),
        (ControllerError(RuntimeError(PORT_TAKEN)), of_the_script, "worker 0 could not start"),
    ):
        fake = FakeRay([error], ended)
        with pytest.raises(TrainingError, match=words):
            launched(fake, tmp_path, monkeypatch, [])
        assert len(fake.folders) == 1


def test_ray_client_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ray://head:10001, a Ray Client address, .* http://host:8265"):
        launch(partial(ray_work.train, "", "", ()), WorkerCount(2, 2), tmp_path, address="ray://head:10001")
    assert list(tmp_path.iterdir()) == []


def test_a_job_needs_a_place_that_the_cluster_sees(recipe: Path) -> None:
    with pytest.raises(UsageError, match=r"--runs must be a folder that all nodes of the cluster share, .* got runs"):
        submit("http://127.0.0.1:1", recipe, [], Path("runs"), print)


@needs_ray
def test_nobody_takes_jobs_there(recipe: Path) -> None:
    with pytest.raises(MachineError, match=r"can't submit jobs at http://127\.0\.0\.1:1"):
        submit("http://127.0.0.1:1", recipe, [], recipe.parent / "runs", print)


def test_ray_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"--on ray needs ray, which is not installed: pip install 'flatout\[cluster\]'"):
        launch(partial(ray_work.train, "", "", ()), WorkerCount(2, 2), tmp_path)


@pytest.mark.parametrize(
    ("written", "words"),
    [("0", "at least 1"), ("8:2", "did you mean 2:8"), ("many", "such as 8"), ("-1", "such as 8"), ("0:4", "at least 1")],
)
def test_workers_that_make_no_sense(written: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        WorkerCount.parse(written)


def test_a_range_of_workers() -> None:
    assert WorkerCount.parse(" 2:8 ") == WorkerCount(2, 8)
    assert (str(WorkerCount.parse("4")), str(WorkerCount.parse("2:8"))) == ("4", "2 to 8")
