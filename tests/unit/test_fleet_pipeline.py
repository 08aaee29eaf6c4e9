"""A pipeline as a CronJob: against the published schema, on which schedule, and what bad input is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from custom_resources import check_object

from flatout.base.errors import FlatoutError, UsageError
from flatout.cli.fleet import app

ANY = ["--image", "registry.example.org/train:1", "--claim", "churn"]


@pytest.fixture
def job(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`job("every 6 h", ...)`: the CronJob of a pipeline with a stage of this `when`."""
    monkeypatch.chdir(tmp_path)

    def made(when: str | None, *arguments: str) -> dict[str, Any]:
        due = "" if when is None else f", when: {when}"
        Path("night ly.yaml").write_text(f"stages:\n  rows: {{run: python rows.py, outputs: [rows.csv]{due}}}\n")
        Path("rows.py").write_text("open('rows.csv', 'w').close()\n")
        capsys.readouterr()
        app(["manifest", "pipeline", "night ly.yaml", *arguments], standalone_mode=False)
        (found,) = yaml.safe_load_all(capsys.readouterr().out)
        return dict(found)

    return made


@pytest.mark.parametrize(("when", "arguments", "schedule"), [
    ("every 6 h", [], "0 */6 * * *"), ("every 10 min", [], "*/10 * * * *"), ("every 1 day", [], "0 0 * * *"),
    ("every 1 h", [], "0 * * * *"), ("at 03:05", [], "5 3 * * *"), (None, ["--at", "23:59"], "59 23 * * *"),
    ("every 1 h", ["--every", "7 days"], "0 0 * * 0"), ("drift in a.json", ["--every", "1 h"], "0 * * * *"),
    (None, ["--schedule", "0 3 * * 1-5"], "0 3 * * 1-5"),
])  # fmt: skip
def test_the_schedule(when: str | None, arguments: list[str], schedule: str, job: Any) -> None:
    assert job(when, *ANY, *arguments)["spec"]["schedule"] == schedule


def test_the_schema_takes_it_and_a_killed_pod_goes_on(job: Any) -> None:
    more = ["--devices", "1", "--memory", "8Gi", "--cpus", "4", "--time-zone", "Europe/Berlin", "--namespace", "team"]
    found = job("at 03:00", *ANY, *more, "--path", "/data/churn/pipeline.yaml", "--node-label", "example.org/kind=h200")
    check_object(found)
    assert found["metadata"]["name"] == "night-ly" and found["spec"]["concurrencyPolicy"] == "Forbid"
    spec = found["spec"]["jobTemplate"]["spec"]
    failing, ignored = spec["podFailurePolicy"]["rules"]
    assert failing["onExitCodes"]["values"] == [1, 2, 3] and ignored["action"] == "Ignore" and spec["backoffLimit"] == 3
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["restartPolicy"] == "Never", "a policy of failures asks for it"
    assert container["args"] == ["pipeline", "/data/churn/pipeline.yaml"] and container["workingDir"] == "/data/churn"
    assert (
        container["volumeMounts"][0]["mountPath"] == "/data"
        and {"name": "FLATOUT_CACHE", "value": "/data/.flatout"} in container["env"]
    )
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    check_object(job("at 03:00", *ANY))


@pytest.mark.parametrize(("when", "arguments", "said"), [
    (None, [], "no stage of the file has `when`"), ("drift in a.json", [], "how often it looks"),
    ("every 7 h", [], "divide an hour, a day"),
    (None, ["--at", "25:00"], "--at"), (None, ["--at", "03:00", "--every", "1 h"], "give one of them"),
    (None, ["--schedule", "at night"], "--schedule"), ("every 1 h", ["--path", "pipeline.yaml"], "--path"),
    ("every 1 h", ["--time-zone", "Europe Berlin"], "--time-zone"), ("every 1 h", ["--memory", "lots"], "--memory"),
    ("every 1 h", ["--claim", ""], "--claim is missing"), ("every 1 h", ["--image", ""], "--image is missing"),
])  # fmt: skip
def test_mistakes(when: str | None, arguments: list[str], said: str, job: Any) -> None:
    with pytest.raises(UsageError, match=said):
        job(when, *ANY, *arguments)


def test_a_mistake_in_the_pipeline_is_said_before_anything_is_written(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("stages:\n  rows: {runn: python rows.py}\n")
    with pytest.raises(FlatoutError, match="did you mean 'run'"):
        app(
            ["manifest", "pipeline", str(file), *ANY, "--at", "03:00", "--out", str(tmp_path / "out.yaml")],
            standalone_mode=False,
        )
    assert not (tmp_path / "out.yaml").exists()
