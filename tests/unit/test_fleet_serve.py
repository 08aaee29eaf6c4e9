"""A package as a service in a cluster: against the published schemas, what the numbers mean, and what bad input is told."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import psutil
import pytest
import yaml
from custom_resources import check_object
from pydantic import ValidationError

import flatout as fo
from flatout.base.errors import DamagedFile, FlatoutError, MachineError, UsageError
from flatout.cli.fleet import app
from flatout.fleet.scaling import ReplicaRange, ScalingRule, expected_peak
from flatout.fleet.scaling_simulation import ReplicaModel, Simulated, by_rule, simulate
from flatout.fleet.spot import CLOUDS

GOLDEN = Path(__file__).parent.parent / "golden"
GOAL = {"share": 0.99, "limit_ms": 50.0}
ANY = ["--image", "registry.example.org/churn:1", "--measured", "load.json", "--memory", "2Gi", "--cpus", "2"]
KEDA = ["--autoscaler", "keda", "--prometheus", "http://prometheus.monitoring:9090"]
KSERVE = ["--kind", "kserve", "--prometheus", "http://prometheus.monitoring:9090"]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the package `churn` and the load test of its service."""
    from flatout.packaging import export as exporting
    from flatout.packaging import package

    folder = tmp_path_factory.mktemp("desk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLATOUT_CACHE", str(folder / "cache"))
        patch.setattr(package, "SIZES", (1, 8))
        patch.setattr(exporting, "_write_onnx", lambda *given: None)
        recipe = fo.Recipe(data="digits", model={"mlp": {"hidden": [8]}}, batch=8, lr=1e-2, budget="3 steps", evaluate=None,
                           settings={"device": "cpu"})  # fmt: skip
        exporting.export(fo.run(recipe, runs=folder / "runs", cache=None, planning="off"), folder / "churn")
        (folder / "load.json").write_text(json.dumps({"goal": GOAL, "highest_rate": 1200.0, "steps": []}))
        patch.chdir(folder)
        yield folder


@pytest.fixture
def written(desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`written("churn", ...)`: what `fleet manifest serve` prints."""
    monkeypatch.setattr(
        "flatout.cli.fleet_serve._batch_seconds", lambda *given: 0.010
    )  # of a curve that is the same everywhere

    def command(*arguments: str) -> str:
        capsys.readouterr()
        app(["manifest", "serve", *arguments], standalone_mode=False)
        return capsys.readouterr().out

    return command


def by_kind(text: str) -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def pod_of(text: str) -> dict[str, Any]:
    found = by_kind(text)["Deployment"]["spec"]["template"]["spec"]
    return dict(found)


# ---- the text and the schemas ----


@pytest.mark.parametrize("name", ["fleet_serve.yaml", "fleet_serve_kserve.yaml"])
def test_the_file_word_for_word(name: str, written: Any) -> None:
    more = (
        [*KSERVE, "--storage-uri", "s3://models/churn"] if "kserve" in name else [*KEDA, "--spot", "eks", "--namespace", "team"]
    )
    said, golden = written("churn", *ANY, *more), GOLDEN / name
    if os.environ.get("FLATOUT_UPDATE_GOLDEN"):
        golden.write_text(said)
    assert said == golden.read_text(), f"{golden.name} differs: look at both, then FLATOUT_UPDATE_GOLDEN=1 accepts it"


FULL = ["--namespace", "team", "--node-label", "example.org/kind=c7g", "--token-secret", "churn-token", "--drain", "90 s"]
FORMS = {
    "hpa": [],
    "keda": [*KEDA, "--spot", "gke", "--claim", "models", "--path", "/models/churn", *FULL],
    "none": ["--replicas", "3", "--spot", "aks", "--devices", "1"],
    "kserve": [*KSERVE, "--spot", "eks", "--storage-uri", "s3://models/churn", *FULL],
    "kserve of a fixed number": ["--kind", "kserve", "--replicas", "1", "--claim", "models"],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_published_schemas_take_it(form: str, written: Any) -> None:
    found = list(yaml.safe_load_all(written("churn", *ANY, *FORMS[form])))
    for one in found:
        check_object(one)
    kinds = [one["kind"] for one in found]
    assert kinds == (["InferenceService"] if "kserve" in form else ["Deployment", "Service", "PodDisruptionBudget", *{
        "hpa": ["HorizontalPodAutoscaler"], "keda": ["ScaledObject"]}.get(form, [])])  # fmt: skip


def test_the_schemas_are_strict(written: Any) -> None:
    service, scaled = by_kind(written("churn", *ANY, *KSERVE))["InferenceService"], by_kind(written("churn", *ANY, *KEDA))
    wrong = [copy.deepcopy(one) for one in (service, service, scaled["ScaledObject"], scaled["Deployment"])]
    wrong[0]["spec"]["predictor"]["minReplica"] = 2
    wrong[1]["spec"]["predictor"]["autoScaling"]["metrics"][0]["external"]["metric"]["server"] = "x"
    wrong[2]["spec"]["triggers"][0]["metadata"]["threshold"] = 800
    wrong[3]["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"] = {"second": 5}
    for one in wrong:
        with pytest.raises((ValidationError, kubernetes_validate.ValidationError)):
            check_object(one)
    with pytest.raises(kubernetes_validate.utils.SchemaNotFoundError):  # an object without a schema is not taken on trust
        check_object({"apiVersion": "example.org/v1", "kind": "Unheard", "metadata": {}})


# ---- what it means ----


def test_thresholds_follow_from_what_one_replica_holds(written: Any) -> None:
    rate, queue, peak = by_kind(written("churn", *ANY, *KEDA))["ScaledObject"]["spec"]["triggers"]
    assert rate["metadata"]["threshold"] == "800" and rate["metricType"] == "AverageValue"  # 1,200/s over the burst of 1.5
    assert 'flatout_requests_total{model="churn"}' in rate["metadata"]["query"]
    assert queue["metadata"]["threshold"] == "20" and queue["metricType"] == "Value"  # half of 50 ms less a batch of 10 ms
    assert peak["metadata"]["threshold"] == "1090" and "[3600s:15s]" in peak["metadata"]["query"]  # 1,200/s over 1.1
    *careful, service = by_kind(written("churn", *ANY, "--burst", "3"))["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert [one["pods"]["target"]["averageValue"] for one in careful] == ["400000m", "20000m"]
    assert service["external"]["metric"]["selector"] == {"matchLabels": {"model": "churn"}}
    assert service["external"]["target"] == {"type": "AverageValue", "averageValue": "1090909m"}


def test_the_queries_name_metrics_that_a_server_has(written: Any) -> None:
    from flatout.serving.counters import SharedCounters
    from flatout.serving.metrics import metrics_text

    counters = SharedCounters()
    text = metrics_text(counters, {"churn": ("1", 1)}, {})
    asked = written("churn", *ANY, *KSERVE)
    names = set(re.findall(r"((?:flatout|nv)_[a-z_]+)\{", asked))
    assert names == {"flatout_requests_total", "flatout_request_seconds_sum", "flatout_request_seconds_count",
                     "nv_inference_pending_request_count"}  # fmt: skip
    for name in names:
        assert f'{name}{{model="churn"' in text, name
    assert 'part="queue"' in text


def test_a_pod_leaves_after_it_has_answered(written: Any) -> None:
    pod = pod_of(written("churn", *ANY, "--drain", "90 s"))
    container = pod["containers"][0]
    assert container["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}
    assert container["args"][-2:] == ["--drain", "90 s"] and pod["terminationGracePeriodSeconds"] == 5 + 90 + 5
    assert container["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": "http"}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_spot_node_leaves_no_more_than_its_notice(cloud: str, written: Any) -> None:
    said = written("churn", *ANY, "--spot", cloud, "--drain", "2 min")
    pod = pod_of(said)
    assert pod["terminationGracePeriodSeconds"] <= CLOUDS[cloud].notice_s and "not 2 min" in said
    assert dict(CLOUDS[cloud].node_labels).items() <= pod["nodeSelector"].items()


def test_the_package_comes_with_the_image_a_volume_or_kserve(written: Any) -> None:
    assert "churn=/package" in pod_of(written("churn", *ANY))["containers"][0]["args"]
    pod = pod_of(written("churn", *ANY, "--claim", "models", "--path", "/models/churn"))
    assert "churn=/models/churn" in pod["containers"][0]["args"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    service = by_kind(written("churn", *ANY, *KSERVE, "--storage-uri", "s3://models/churn"))["InferenceService"]
    container = service["spec"]["predictor"]["containers"][0]
    assert {"name": "STORAGE_URI", "value": "s3://models/churn"} in container["env"] and "churn=/mnt/models" in container[
        "args"
    ]


def test_the_arguments_are_those_of_serve(written: Any) -> None:
    """The command in the pod is one that `flatout serve` takes."""
    from typer.testing import CliRunner

    from flatout.cli.main import app as whole

    container = pod_of(written("churn", *ANY, "--token-secret", "t"))["containers"][0]
    asked = [*container["command"], *container["args"]]
    result = CliRunner().invoke(whole, [*asked[1:], "--workers", "none"])
    assert "no such option" not in str(result.output).lower() and "--workers is a whole number" not in str(result.exception)
    assert "/package" in str(result.exception) or "/token" in str(result.exception)


def test_replicas_for_a_rate() -> None:
    rule = ScalingRule.of(1200, 0.05, 0.01, ReplicaRange(2, 10))
    assert rule.wanted(2, 4000, 0.0) == 5 and rule.wanted(5, 4100, 0.0) == 5, "a tenth more changes nothing"
    assert rule.wanted(2, 100, 0.0) == 2 and rule.wanted(2, 1e6, 0.0) == 10
    assert rule.wanted(4, 3200, 3 * rule.queue_s) == 10, "the queue adds replicas where the rate does not"


def test_measured_here_with_the_real_server(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory and the time to start; the rate is given, as searching it takes a minute."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    app(["manifest", "serve", "churn", *ANY[:4], "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    worked = {row["key"]: row["value"] for row in found["worked_out"]}
    assert 50e6 < worked["memory"] < 3e9 and worked["start"] > 0.5
    requests = found["objects"][0]["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert 1.2 * worked["memory"] < int(requests["memory"].removesuffix("Mi")) * 2**20 < 1.5 * worked["memory"] + 2**27
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


# ---- bad input ----

BAD = {
    "no image": (["churn", *ANY[2:]], "--image is missing"),
    "no package": (["nothing", *ANY], "nothing"),
    "a goal in words": (["churn", *ANY, "--slo", "fast"], "expected a latency goal"),
    "another goal than measured": (["churn", *ANY, "--slo", "p99 20 ms"], "measured for the goal p99 50 ms, not for p99 20 ms"),
    "a range the wrong way": (["churn", *ANY, "--replicas", "9:2"], "did you mean 2:9?"),
    "no replicas": (["churn", *ANY, "--replicas", "0:2"], "at least 1 replica"),
    "replicas in words": (["churn", *ANY, "--replicas", "few"], "a range such as 2:10"),
    "an unknown kind": (["churn", *ANY, "--kind", "deploymnt"], "did you mean 'deployment'?"),
    "an unknown autoscaler": (["churn", *ANY, "--autoscaler", "kead"], "did you mean 'keda'?"),
    "KEDA without Prometheus": (["churn", *ANY, "--autoscaler", "keda"], "--prometheus is missing"),
    "an address that is none": (["churn", *ANY, *KEDA[:2], "--prometheus", "prom"], "--prometheus must be an address"),
    "a burst that shrinks": (["churn", *ANY, "--burst", "0.5"], "--burst"),
    "a path beside": (["churn", *ANY, "--path", "package"], "--path must be an absolute path"),
    "two places": (["churn", *ANY, *KSERVE, "--claim", "m", "--storage-uri", "s3://m"], "give only one"),
    "a place that nobody fetches": (["churn", *ANY, "--storage-uri", "s3://m"], "add --kind kserve"),
    "devices without a measurement": (["churn", "--image", "a:1", "--devices", "1"], "--measured load.json"),
    "more cores than there are": (["churn", "--image", "a:1", "--cpus", "4096"], "usable cores"),
    "no measurement": (["churn", *ANY[:2], "--measured", "none.json"], "none.json can't be read"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input(what: str, written: Any) -> None:
    arguments, says = BAD[what]
    with pytest.raises(FlatoutError, match=says.replace("?", r"\?")):
        written(*arguments)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"rate": 3}, "no result of flatout load --find"),
        ({"goal": GOAL, "highest_rate": None}, "no rate held the goal"),
        ({"highest_rate": 30.0}, "does not say for which goal"),
        ([], "no result of flatout load"),
    ],
)
def test_a_measurement_that_says_nothing(content: Any, says: str, written: Any, desk: Path) -> None:
    (desk / "other.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=says):
        written("churn", "--image", "a:1", "--measured", "other.json")


def test_a_damaged_package(written: Any, desk: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(desk / "churn", tmp_path / "churn")
    weights = tmp_path / "churn" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedFile, match=r"weights\.safetensors"):
        written(str(tmp_path / "churn"), *ANY)


def test_a_model_that_is_too_slow_for_the_goal(desk: Path) -> None:
    with pytest.raises(MachineError, match=r"no time to wait within p99 0\.1 ms"):
        app(["manifest", "serve", "churn", *ANY[:2], "--slo", "p99 0.1 ms", "--cpus", "1"], standalone_mode=False)


# ---- the rule on arrivals ----


def on_arrivals(arrivals: list[float], most: int = 40, start_s: float = 30.0) -> Simulated:
    limits = ReplicaRange(2, most)
    model = ReplicaModel(per_replica=100.0, waits_s=0.04, start_s=start_s)
    return simulate(arrivals, by_rule(ScalingRule.of(100.0, 0.05, 0.01, limits)), limits, model)


def test_a_steady_load_is_held_by_as_many_replicas_as_the_rule_says() -> None:
    steady = on_arrivals([1000.0] * 1800)
    assert steady.missed == 0 and 13.5 <= steady.replicas <= 16.5  # 1,000/s over 66.7/s each, within the tolerance


def test_a_sudden_load_misses_the_goal_only_until_replicas_have_started() -> None:
    sudden = [300.0] * 600 + [1500.0] * 1200
    quick, slow = on_arrivals(sudden, start_s=10.0), on_arrivals(sudden, start_s=90.0)
    assert 0 < quick.missed < slow.missed <= 1500 * 120
    assert on_arrivals(sudden, most=8).missed > 700 * 1000, "eight replicas answer 800/s and no more"
    assert on_arrivals(sudden + [300.0] * 12000).replicas < 0.6 * quick.replicas, "they are removed again after an hour"


def test_a_load_that_has_come_once_is_expected_again() -> None:
    assert expected_peak([100.0] * 9) == 100.0, "a steady load"
    crowd = [100.0] * 8 + [1000.0] * 8
    assert expected_peak(crowd) == 1000.0, "no more than the highest rate"
    assert expected_peak([*crowd, *[90.0] * 8]) == pytest.approx(900.0), "ten times as much within a minute"
    assert expected_peak([*crowd, *[0.0] * 8]) == 0.0 and expected_peak([0.0] * 9 + [50.0]) == 50.0
    again = [300.0] * 600 + [1500.0] * 600 + [300.0] * 1200 + [1500.0] * 600
    first, both = on_arrivals(again[:2400]), on_arrivals(again)
    assert first.missed > 1000 and both.missed == first.missed, "replicas are there when it comes again"


def test_recorded_arrivals_are_tried(written: Any, desk: Path) -> None:
    (desk / "times.txt").write_text("\n".join(str(second + part / 50) for second in range(120) for part in range(50)))
    assert "would miss the goal  0.00%  of 6k recorded requests; 2 replicas on average" in re.sub(
        r"  +", "  ", written("churn", *ANY, "--arrivals", "times.txt")
    )
    for content in ("soon\n", "", "1\nnan\n"):
        (desk / "wrong.txt").write_text(content)
        with pytest.raises(UsageError, match="--arrivals"):
            written("churn", *ANY, "--arrivals", "wrong.txt")
