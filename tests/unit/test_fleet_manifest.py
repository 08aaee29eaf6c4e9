"""Jobs for a cluster: word for word, against the published schemas, and what is said when something is wrong."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict

from flatout.base.errors import StoreError, UsageError
from flatout.cli.fleet import app
from flatout.fleet.clusterjob import Nodes
from flatout.fleet.interruptions import Interruptions, daly_interval_s, grace_seconds
from flatout.fleet.kubernetes_names import suggested_name
from flatout.fleet.spot import CLOUDS

GOLDEN = Path(__file__).parent.parent / "golden"
RECIPE = """\
# a model of books
data: {text: /data/books.txt, window: 256}
model: {gpt: {layers: 2, width: 96, heads: 4}}
objective: next_token
batch: 32
lr: 3e-4
budget: 2 epochs
"""
IMAGE = ["--image", "registry.example.org/team/gpt:1"]
BASE = ["gpt.yaml", *IMAGE, "--runs-claim", "runs", "--save-time", "20 s"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLATOUT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "gpt.yaml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def written(place: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """`written("gpt.yaml", ...)`: what the command prints."""

    def command(*arguments: str) -> str:
        capsys.readouterr()
        app(["manifest", *arguments], standalone_mode=False)
        return capsys.readouterr().out

    return command


def by_kind(text: str) -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


# ---- the text ----

GOLDENS = {
    "fleet_trainjob.yaml": [
        "--nodes", "4", "--devices", "8", "--spot", "eks", "--storage", "500Gi", "--data-claim", "books", "--queue", "research",
    ],
    "fleet_rayjob.yaml": [
        "--kind", "rayjob", "--nodes", "2:8", "--devices", "8", "--spot", "gke", "--runs-claim", "runs", "--namespace", "team",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDENS)
def test_the_file_word_for_word(name: str, written: Any) -> None:
    said = written("gpt.yaml", *IMAGE, "--save-time", "20 s", *GOLDENS[name])
    golden = GOLDEN / name
    if os.environ.get("FLATOUT_UPDATE_GOLDEN"):
        golden.write_text(said)
    assert said == golden.read_text(), f"{golden.name} differs: look at both, then FLATOUT_UPDATE_GOLDEN=1 accepts it"
    assert said == written("gpt.yaml", *IMAGE, "--save-time", "20 s", *GOLDENS[name])


def test_a_file_instead_of_the_terminal(written: Any, place: Path) -> None:
    printed = written(*BASE)
    assert "kubectl apply -f job.yaml" in written(*BASE, "--out", "job.yaml")
    assert (place / "job.yaml").read_text() == printed


def test_numbers_and_objects_for_a_program(written: Any) -> None:
    found = json.loads(written(*BASE, "--json", "--nodes", "2"))
    assert found["kind"] == "TrainJob" and found["workers"] == 2
    assert [one["kind"] for one in found["objects"]] == ["ConfigMap", "TrainingRuntime", "TrainJob"]
    assert {row["key"]: row["value"] for row in found["worked_out"]}["save"] == 20.0


# ---- the schemas ----


class Strict(BaseModel):
    """No field that is not in the schema; numbers are numbers and texts are texts."""

    model_config = ConfigDict(extra="forbid", strict=True)


class AutoscalerOptions(Strict):
    version: Literal["v1", "v2"]
    upscalingMode: Literal["Default", "Aggressive", "Conservative"]
    idleTimeoutSeconds: int


class HeadGroup(Strict):
    rayStartParams: dict[str, str]
    template: dict[str, Any]


class WorkerGroup(Strict):
    groupName: str
    replicas: int
    minReplicas: int
    maxReplicas: int
    rayStartParams: dict[str, str]
    template: dict[str, Any]


class RayCluster(Strict):
    enableInTreeAutoscaling: bool | None = None
    autoscalerOptions: AutoscalerOptions | None = None
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup]


class RayJobSpec(Strict):
    entrypoint: str
    submissionMode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]
    backoffLimit: int
    shutdownAfterJobFinishes: bool
    ttlSecondsAfterFinished: int
    rayClusterSpec: RayCluster


class RayJob(Strict):
    """The fields that are used, as the CRD ray.io_rayjobs of KubeRay 1.7.0 has them: no package holds its schema."""

    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: dict[str, Any]
    spec: RayJobSpec


def valid(one: dict[str, Any]) -> bool:
    """By Kubeflow's own models, generated from the schemas of Trainer and of Kubernetes. They drop what they do not know."""
    from kubeflow_trainer_api import models

    known: dict[str, Any] = {
        "ConfigMap": models.IoK8sApiCoreV1ConfigMap,
        "PersistentVolumeClaim": models.IoK8sApiCoreV1PersistentVolumeClaim,
        "Service": models.IoK8sApiCoreV1Service,
        "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
        "TrainJob": models.TrainerV1alpha1TrainJob,
    }
    if one["kind"] != "RayJob":
        return bool(known[one["kind"]].from_dict(one).to_dict() == one)
    cluster = RayJob.model_validate(one).spec.rayClusterSpec
    metadata = models.IoK8sApimachineryPkgApisMetaV1ObjectMeta.from_dict(one["metadata"]).to_dict()
    pods = [group.template for group in (cluster.headGroupSpec, *cluster.workerGroupSpecs)]
    return metadata == one["metadata"] and all(
        models.IoK8sApiCoreV1PodTemplateSpec.from_dict(pod).to_dict() == pod for pod in pods
    )


FULL = [
    "--namespace",
    "team",
    "--data-claim",
    "books",
    "--node-label",
    "example.org/gpu=h100",
    "--cpus",
    "64",
    "--memory",
    "1Ti",
]


@pytest.mark.parametrize("cloud", [None, *CLOUDS])
@pytest.mark.parametrize(
    "job", [["--nodes", "1"], ["--nodes", "4"], ["--kind", "rayjob"], ["--kind", "rayjob", "--nodes", "1:4"]]
)
@pytest.mark.parametrize(
    "more", [["--runs-claim", "runs"], ["--storage", "1Ti", "--resource", "none", *FULL]], ids=["few", "all"]
)
def test_the_published_schemas_take_it(cloud: str | None, job: list[str], more: list[str], written: Any) -> None:
    spot = [] if cloud is None else ["--spot", cloud]
    found = list(yaml.safe_load_all(written("gpt.yaml", *IMAGE, "--save-time", "20 s", *spot, *job, *more)))
    assert len(found) >= 3
    for one in found:
        assert valid(one), one["kind"]


def test_the_schemas_are_strict(written: Any) -> None:
    train, ray = by_kind(written(*BASE)), by_kind(written(*BASE, "--kind", "rayjob"))
    train["TrainJob"]["spec"]["trainer"]["numNode"] = 1
    train["ConfigMap"]["datas"] = {}
    ray["RayJob"]["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["images"] = "x"
    assert not any(valid(one) for one in (train["TrainJob"], train["ConfigMap"], ray["RayJob"]))


# ---- what it means ----


def test_a_lost_pod_is_not_a_failure(written: Any) -> None:
    runtime = by_kind(written(*BASE, "--spot", "gke", "--restarts", "2"))["TrainingRuntime"]["spec"]["template"]["spec"]
    assert runtime["failurePolicy"]["maxRestarts"] == 2
    (rule,) = runtime["failurePolicy"]["rules"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts" and rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    job = runtime["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0 and job["template"]["spec"]["restartPolicy"] == "Never"
    lost, left = job["podFailurePolicy"]["rules"]
    assert lost["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}] and lost["action"] == "FailJob"
    assert left["onExitCodes"]["values"] == [143] and left["action"] == "FailJob"


@pytest.mark.parametrize(("cloud", "label"), [(name, dict(cloud.node_labels)) for name, cloud in CLOUDS.items()])
def test_spot_nodes_are_asked_for(cloud: str, label: dict[str, str], written: Any) -> None:
    runtime = by_kind(written(*BASE, "--spot", cloud, "--node-label", "example.org/gpu=h100"))["TrainingRuntime"]
    pod = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {**label, "example.org/gpu": "h100"}
    taints = {toleration["key"] for toleration in pod["tolerations"]}
    assert CLOUDS[cloud].taint is None or CLOUDS[cloud].taint[0] in taints
    assert pod["terminationGracePeriodSeconds"] == 55
    assert pod["containers"][0]["env"] == [{"name": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "value": "50"}]


def test_the_head_of_a_ray_cluster_is_on_no_spot_node(written: Any) -> None:
    cluster = by_kind(written(*BASE, "--kind", "rayjob", "--spot", "aks"))["RayJob"]["spec"]["rayClusterSpec"]
    assert "nodeSelector" not in cluster["headGroupSpec"]["template"]["spec"]
    assert cluster["workerGroupSpecs"][0]["template"]["spec"]["nodeSelector"] == dict(CLOUDS["aks"].node_labels)
    assert "enableInTreeAutoscaling" not in cluster  # of a fixed number: the operator replaces what is lost


def test_the_run_is_told_what_it_needs(written: Any) -> None:
    ask = [*BASE, "lr=1e-3", "--nodes", "4", "--devices", "2", "--lost-every", "8 h", "--spot", "gke"]
    trainer = by_kind(written(*ask))["TrainJob"]["spec"]["trainer"]
    assert trainer["command"] == ["flatout", "fleet", "node", "-m"]
    assert trainer["args"][:6] == ["flatout", "run", "/recipe/gpt.yaml", "lr=1e-3", "--runs", "/runs"]
    assert trainer["args"][6:] == ["--set", "failure_every=7200 s", "--set", "grace=15 s"]
    entrypoint = by_kind(written(*ask, "--kind", "rayjob"))["RayJob"]["spec"]["entrypoint"]
    assert entrypoint.endswith("--set 'failure_every=7200 s' --set 'grace=15 s' --on ray --workers 8")
    asked = by_kind(written(*ask, "--set", "grace=40 s"))["TrainJob"]["spec"]["trainer"]["args"]
    assert asked.count("grace=40 s") == 1 and "grace=15 s" not in asked


def test_the_recipe_goes_along(written: Any, place: Path) -> None:
    (place / "mine.py").write_text("x = 1\n")
    found = by_kind(written(*BASE, "--with", "mine.py"))["ConfigMap"]["data"]
    assert found == {"gpt.yaml": RECIPE, "mine.py": "x = 1\n"}


def test_one_node_alone_needs_no_shared_volume(written: Any) -> None:
    def modes(*more: str) -> list[str]:
        found = by_kind(written("gpt.yaml", *IMAGE, "--storage", "10Gi", *more))["PersistentVolumeClaim"]
        return list(found["spec"]["accessModes"])

    assert modes() == ["ReadWriteOnce"] and modes("--nodes", "2") == modes("--kind", "rayjob") == ["ReadWriteMany"]


# ---- how often to save, how long to wait ----


def lost_share(interval_s: float, save_s: float, lost_every_s: float) -> float:
    """Daly's whole model, without the time to start again: what a second of work takes beyond that second."""
    return lost_every_s / (interval_s - save_s) * (math.exp(interval_s / lost_every_s) - 1)


@pytest.mark.parametrize(("save_s", "lost_every_s"), [(1, 3600), (20, 21600), (60, 3600), (300, 3600)])
def test_no_other_interval_is_better(save_s: float, lost_every_s: float) -> None:
    best = lost_share(daly_interval_s(save_s, lost_every_s), save_s, lost_every_s)
    others = [save_s * (1 + 0.02 * step) for step in range(1, 20_000)]
    assert best <= 1.001 * min(lost_share(other, save_s, lost_every_s) for other in others)


def test_saves_that_take_longer_than_nodes_last() -> None:
    assert daly_interval_s(500, 100) == 100


def test_grace_holds_two_saves() -> None:
    assert [grace_seconds(save_s) for save_s in (0.1, 20, 61)] == [30, 55, 140]


def test_more_nodes_stop_more_often() -> None:
    few, many = (Interruptions(20, "", 86400, nodes, CLOUDS["gke"]) for nodes in (1, 16))
    assert many.lost_every_s == few.lost_every_s / 16
    assert many.interval_s is not None and few.interval_s is not None and many.interval_s < few.interval_s / 3
    assert few.notice_s == 15 and not few.save_fits and Interruptions(20, "", 86400, 1).save_fits


def test_a_save_that_does_not_fit_is_said(written: Any) -> None:
    assert "a save does not fit into the notice of a spot node of 15 s" in written(*BASE, "--spot", "gke")
    assert "does not fit" not in written(*BASE, "--spot", "eks")
    assert "a save does not fit into the grace period of 10 s" in written(*BASE, "--grace", "10 s")


def test_a_save_is_predicted_from_the_model(written: Any, place: Path) -> None:
    (place / "digits.yaml").write_text("{data: digits, model: mlp, batch: 16, lr: 1e-3, budget: 1 epoch}")
    assert " parameters and their optimizer, " in written("digits.yaml", *IMAGE, "--storage", "1Gi", "--spot", "aks")


# ---- what a node runs ----

CHILD = """\
import signal, sys, threading
asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: asked.set())
print("ready", flush=True)
code = int(sys.argv[1])
if code < 0:
    while not asked.wait(0.05):
        pass
sys.exit(143 if code < 0 else code)
"""


NODE = "from flatout.cli.fleet import app; app()"
LEAVE = """\
import sys
from flatout.fleet.node import launch
print([launch(["--standalone", "child.py", code]) for code in sys.argv[1:]])
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "1")


@pytest.mark.usefixtures("child")
def test_a_node_says_why_it_left() -> None:
    """Done, failed, and stopped because another node was asked to stop."""
    done = subprocess.run([sys.executable, "-c", LEAVE, "0", "3", "143"], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[0, 3, 143]", done.stderr


@pytest.mark.usefixtures("child")
def test_a_node_that_is_asked_to_stop() -> None:
    command = [sys.executable, "-c", NODE, "node", "--standalone", "child.py", "-1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as node:
        assert node.stdout is not None and node.stdout.readline() == b"ready\n"
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=60)
    assert node.returncode == 143


# ---- bad input ----

BAD = {
    "no image": (["gpt.yaml", "--runs-claim", "runs"], "--image is missing"),
    "an image that is none": (["gpt.yaml", "--runs-claim", "runs", "--image", "Not An Image"], "--image: 'Not An Image'"),
    "no place for runs": (["gpt.yaml", *IMAGE], "--runs-claim.*--storage 100Gi"),
    "two places": ([*BASE, "--storage", "1Gi"], "--runs-claim"),
    "a class without a claim": ([*BASE, "--storage-class", "nfs"], "add --storage"),
    "a name that is no label": ([*BASE, "--name", "My_Job"], "try --name my-job"),
    "a long name": ([*BASE, "--name", "a" * 41], "at most 40"),
    "a namespace that is no label": ([*BASE, "--namespace", "a.b"], "--namespace: 'a.b'"),
    "a claim that is no name": ([*BASE, "--data-claim", "Books"], "--data-claim: 'Books'"),
    "no nodes": ([*BASE, "--nodes", "0"], "at least 1 node"),
    "nodes in words": ([*BASE, "--nodes", "many"], "a range such as 2:8, got 'many'"),
    "a range the wrong way": ([*BASE, "--nodes", "4:1"], "did you mean 1:4?"),
    "a range of a TrainJob": ([*BASE, "--nodes", "1:4"], "a TrainJob has a fixed number of nodes, got 1:4; use --nodes 4"),
    "a range in a queue": ([*BASE, "--kind", "rayjob", "--nodes", "1:4", "--queue", "q"], "Kueue needs a fixed number"),
    "no devices": ([*BASE, "--devices", "0"], "--devices: each node needs at least 1"),
    "an unknown kind": ([*BASE, "--kind", "trainjobs"], "did you mean 'trainjob'?"),
    "an unknown cloud": ([*BASE, "--spot", "gks"], "did you mean 'gke'?"),
    "a cloud by its maker": ([*BASE, "--spot", "aws"], "did you mean 'eks'?"),
    "a size in words": ([*BASE, "--memory", "64 GB"], "such as 64Gi, got '64 GB'"),
    "cores in words": ([*BASE, "--cpus", "many"], "--cpus must be a number"),
    "a resource that is none": ([*BASE, "--resource", "gpu"], "such as nvidia.com/gpu, or none; got 'gpu'"),
    "a label without a value": ([*BASE, "--node-label", "gpu"], "--node-label must be key=value"),
    "a time without a unit": ([*BASE, "--grace", "30"], "--grace: expected a duration"),
    "no time": ([*BASE, "--save-time", "0 s"], "--save-time: expected a duration greater than 0"),
    "no recipe": (["none.yaml", *IMAGE, "--runs-claim", "runs"], "none.yaml"),
    "a bad recipe": ([*BASE, "modle=mlp"], "modle"),
    "a file that is not there": ([*BASE, "--with", "mine.py"], "--with: .*mine.py"),
    "a file twice": ([*BASE, "--with", "gpt.yaml"], "--with: two files are named gpt.yaml"),
    "a folder that is not there": ([*BASE, "--out", "none/job.yaml"], "--out: folder not found"),
    "a folder for a file": ([*BASE, "--out", "."], "is a folder"),
    "a save of unknown length": (
        ["gpt.yaml", *IMAGE, "--runs-claim", "runs", "--spot", "gke"], "which is unknown: data.*give --save-time"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input(what: str, written: Any, place: Path) -> None:
    arguments, says = BAD[what]
    with pytest.raises(UsageError, match=says.replace("(", r"\(").replace("?", r"\?")):
        written(*arguments)
    assert not (place / "job.yaml").exists()


def test_all_mistakes_come_at_once(written: Any) -> None:
    with pytest.raises(UsageError) as error:
        written("gpt.yaml", "--name", "A", "--devices", "0", "--memory", "much")
    assert len(str(error.value).splitlines()) == 5


def test_files_beside_the_recipe_are_not_in_a_pod(written: Any, place: Path) -> None:
    (place / "books.txt").write_text("many words")
    (place / "near.yaml").write_text(RECIPE.replace("/data/books.txt", "books.txt"))
    with pytest.raises(UsageError, match=r"data\.text=/data/books\.txt --data-claim NAME"):
        written("near.yaml", *BASE[1:])
    written("near.yaml", "data.text=/data/books.txt", *BASE[1:])


def test_a_recipe_in_python_is_checked_and_not_run(written: Any, place: Path) -> None:
    (place / "mine.py").write_text("raise RuntimeError\n")
    found = by_kind(written("mine.py", *IMAGE, "--runs-claim", "runs"))
    assert found["ConfigMap"]["data"] == {"mine.py": "raise RuntimeError\n"}
    (place / "mine.py").write_text("recipe = (\n")
    with pytest.raises(UsageError, match="is not valid Python"):
        written("mine.py", *IMAGE, "--runs-claim", "runs")


def test_a_recipe_that_no_config_map_holds(written: Any, place: Path) -> None:
    (place / "large.txt").write_text("x" * 2**20)
    with pytest.raises(UsageError, match="a ConfigMap holds 1 MiB"):
        written(*BASE, "--with", "large.txt")


def test_a_disk_that_refuses(written: Any, place: Path) -> None:
    with pytest.raises(StoreError, match="can't write /dev/full"):
        written(*BASE, "--out", "/dev/full")


def test_names_of_recipes_as_names_of_jobs() -> None:
    assert [suggested_name(stem) for stem in ("gpt", "My_Model.v2", "2nd", "_")] == ["gpt", "my-model-v2", "run-2nd", "run"]


def test_ranges() -> None:
    assert (Nodes.parse("3"), Nodes.parse("1:4")) == (Nodes(3, 3), Nodes(1, 4))
    assert not Nodes.parse("2:2").varies
