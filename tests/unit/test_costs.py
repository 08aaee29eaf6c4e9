"""What runs cost: of finished, killed, failed, running, damaged and old ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from known_machine import known_cache
from typer.testing import CliRunner

import flatout as fo
from flatout.base.sealed import sealed
from flatout.cli.main import app
from flatout.store.run_folder import RunFolder, create
from flatout.store.sessions import sessions_of


def recipe(**more: Any) -> fo.Recipe:
    keys: dict[str, Any] = {"budget": "40 steps", "evaluate": "20 steps", "price_per_hour": 3600.0, "lr": 3e-3, **more}
    return fo.Recipe(data=fo.data.digits(holdout=0.2), model="mlp", batch=64, settings={"device": "cpu"}, **keys)


def said(*words: str, env: dict[str, str] | None = None, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["runs", "cost", *words], env=env)
    if isinstance(done.exception, fo.FlatoutError):
        return str(done.exception)
    assert done.exit_code == code, done.output
    return done.output


def told(*words: str, **how: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(*words, "--json", **how))
    return {**found, "kinds": {row["kind"]: row for row in found.get("by_kind", ())}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("finished")
    fo.run(recipe(), runs=runs, cache=known_cache(), planning="off")
    return runs


def made(runs: Path, events: list[dict[str, Any]], **files: Any) -> RunFolder:
    """A run as its files tell it. `files`: JSON by name without its ending."""
    folder = create(runs, "made", "0" * 32, "0.1.0")
    for name, content in {"recipe": {"price_per_hour": 3600.0}, "plan": {}, **files}.items():
        folder.write(f"{name}.json", content)
    folder.events_path.write_bytes(b"".join(sealed(event) + b"\n" for event in events))
    return folder


def at(kind: str, t: float, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "t": t, "at": 1.7e9 + t, **fields}


def test_a_finished_run_costs_its_wall_time_and_its_page_says_for_what(finished: Path, tmp_path: Path) -> None:
    result = RunFolder(finished / "mlp-1").result
    found = told("--runs", str(finished))
    assert found["usd"] == pytest.approx(result["wall_seconds"]) == pytest.approx(result["cost_usd"])
    training = sum(result["ledger"][row] for row in ("forward", "backward", "optimizer", "step", "device wait"))
    assert found["kinds"]["training"]["usd"] == pytest.approx(training)
    assert found["wasted_usd"] == pytest.approx(result["wall_seconds"] - training, rel=1e-3)
    text = said("--runs", str(finished))
    assert "Not training:" in text and "evaluation" in text and "unavailable" in text
    page = fo.report(finished / "mlp-1", out=tmp_path / "page.html").read_text()
    assert "3600 USD per hour" in page and "Not training:" in page


def test_work_that_a_kill_lost_is_counted(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if event["kind"] == "evaluation":
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(fo.FlatoutError, match="SIGTERM"):
        fo.run(recipe(), runs=tmp_path, cache=known_cache(), planning="off", observers=[stop])
    assert list(told("--runs", str(tmp_path))["kinds"]) == ["killed work", "unfinished, can be resumed", "all"]
    log = RunFolder(tmp_path / "mlp-1").events_path
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines) + sealed(at("step", 100.0, step=50)) + b"\n")  # as if it had gone on, and been killed
    fo.run(recipe(), runs=tmp_path, cache=known_cache(), planning="off")
    found = told("--runs", str(tmp_path))
    assert found["kinds"]["killed work"]["hours"] == pytest.approx(100 / 3600, rel=0.1)
    assert round(sessions_of(log)[0].seconds) == 100


def test_runs_that_failed_run_or_can_go_on_are_told_apart(tmp_path: Path) -> None:
    begun = [at("planned", 1.0), at("checkpoint_saved", 10.0, step=5), at("step", 30.0, step=9, energy_j=3.6e6)]
    made(tmp_path, begun, result={"status": "failed", "reason": "out of memory"})
    made(tmp_path, begun)
    with made(tmp_path, begun).locked():
        found = told("--runs", str(tmp_path), "--carbon", "0.5")["kinds"]
        total = told("--runs", str(tmp_path), "--carbon", "0.5")
    assert {kind: row["usd"] for kind, row in found.items()} == pytest.approx(
        {"killed work": 20, "failed runs": 30, "unfinished, can be resumed": 10, "still running": 30, "all": 90}
    )
    assert [kind for kind, row in found.items() if row["waste"]] == ["killed work", "failed runs"]
    assert total["kwh"] == pytest.approx(3.0) and total["co2_kg"] == pytest.approx(1.5)
    assert total["wasted_usd"] == pytest.approx(50)


def test_trials_before_a_run_are_waste_of_their_own(finished: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(finished, runs)
    RunFolder(runs / "mlp-1").write("receipt.json", {"took_s": 60.0})
    assert told("--runs", str(runs))["kinds"]["trials of settings"]["usd"] == pytest.approx(60)


def test_torn_damaged_old_and_strange_runs_do_not_stop_the_others(finished: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(finished, runs)
    old = made(runs, [at("planned", 0.5), at("step", 7.0, step=1)], result={"status": "finished", "energy_wh": 2.0})
    old.events_path.write_bytes(old.events_path.read_bytes() + b'{"kind": "step", "t": 99')  # torn
    made(runs, [], result={"status": "finished", "ledger": {"step": 5.0, "new row": 2.0, "data": None}})
    no_log = made(runs, [])
    no_log.events_path.unlink()
    damaged = made(runs, [])
    (damaged.path / "recipe.json").write_text("{")
    (runs / "notes").mkdir()
    made(runs, [at("planned", 1.0)]).manifest.path.unlink()
    found = told("--runs", str(runs))
    assert found["runs"] == 4 and len(found["unreadable"]) == 2
    assert any("recipe.json" in why for why in found["unreadable"].values())
    assert "not counted" in said("--runs", str(runs))


def test_prices_come_from_the_recipe_then_the_list_then_the_machine(tmp_path: Path) -> None:
    hour = {"status": "finished", "ledger": {"step": 3600.0}}
    own = {"result": {**hour, "price_per_hour": 1.0}, "recipe": {}}
    made(tmp_path, [at("planned", 1.0, machine="NVIDIA H200")], **own)
    for machine in ("NVIDIA H200", "NVIDIA H200 NVL", "AMD EPYC"):
        made(tmp_path, [at("planned", 1.0, machine=machine)], result=hour, recipe={})
    where = ("--runs", str(tmp_path))
    assert told(*where)["usd"] == 1.0 and told(*where)["runs_without_a_price"] == 3
    assert "No price is known of 3 runs" in said(*where)
    prices = tmp_path / "prices.yaml"
    prices.write_text("NVIDIA H200: 10\nNVIDIA H200 NVL: 100\n")
    assert told(*where, "--prices", str(prices))["usd"] == 111.0
    assert told(*where, "--prices", str(prices), "--price", "1000")["usd"] == 1111.0
    assert told(*where, env={"FLATOUT_PRICE_PER_HOUR": "2"})["usd"] == 7.0


def test_only_runs_of_the_time_asked_for_count(tmp_path: Path) -> None:
    for days in (1, 10, 100):
        folder = made(tmp_path, [], result={"status": "finished", "ledger": {"step": 3600.0}})
        folder.write("run.json", {**folder.about, "created": time.time() - 86400 * days})
    where = ("--runs", str(tmp_path))
    counts = {words: told(*where, *words)["runs"] for words in ((), ("--last", "1 week"), ("--last", "all"))}
    assert list(counts.values()) == [2, 1, 3]
    day = time.strftime("%Y-%m-%d", time.localtime(time.time() - 86400 * 50))
    assert told(*where, "--since", day)["runs"] == 2 and told(*where, "--until", day)["runs"] == 1
    assert told(*where, *where)["runs"] == 4  # two folders
    assert "no runs in" in said(*where, "--last", "1 s")


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (("--runs", "nowhere"), {}, "there is no folder nowhere"),
        (("--last", "soon"), {}, "--last must be a time such as '30 days'"),
        (("--since", "yesterday"), {}, "--since must be a day such as 2026-11-01"),
        (("--since", "2026-11-02", "--until", "2026-11-01"), {}, "is not before"),
        (("--price", "-1"), {}, "--price must be 0 or more"),
        (("--prices", "nowhere.yaml"), {}, "nowhere.yaml can't be read"),
        ((), {"FLATOUT_PRICE_PER_HOUR": "cheap"}, "FLATOUT_PRICE_PER_HOUR must be USD per hour"),
    ],
)
def test_wrong_requests_say_what_is_expected(
    words: tuple[str, ...], env: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert message in said(*words, env=env)


def test_a_price_of_the_machine_is_no_part_of_the_run_that_it_belongs_to(tmp_path: Path) -> None:
    plain, priced = recipe(price_per_hour=None), recipe(price_per_hour=None).priced(3600.0)
    assert plain.written() == priced.written() and plain.price is None
    done = fo.run(priced, runs=tmp_path, cache=known_cache(), planning="off")
    assert done.result["cost_usd"] == pytest.approx(done.result["wall_seconds"])
    assert next(event for event in done.events() if event["kind"] == "planned")["price_per_hour"] == 3600.0


def test_a_study_costs_the_time_of_all_its_processes_and_its_failed_trials_are_waste(tmp_path: Path) -> None:
    (tmp_path / "digits-tuned-1").mkdir()
    asked = {"flatout_study": 1, "name": "digits-tuned-1", "created": time.time(), "recipe": {"price_per_hour": 3600.0}}
    (tmp_path / "digits-tuned-1" / "study.json").write_text(json.dumps(asked))
    trials = [[number, {}] for number in range(4)]
    events = [
        at("begun", 0.5), at("rung", 20.0, trials=trials, failed={"2": "diverged"}, seconds=12.0, spent={"joules": 0.0}),
        at("resumed", 0.5), at("rung", 10.0, trials=trials[:2], failed={}, seconds=8.0, spent={"joules": 90.0}),
        at("finished", 11.0),
    ]  # fmt: skip
    lines = b"".join(sealed(event) + b"\n" for event in events)
    (tmp_path / "digits-tuned-1" / "study.jsonl").write_bytes(lines + b'{"kind": "ru')
    found = told("--runs", str(tmp_path))
    assert found["usd"] == pytest.approx(31.0) and found["wasted_usd"] == pytest.approx(3.0) and found["kwh"] == 90 / 3.6e6
    assert found["kinds"]["studies"]["hours"] == pytest.approx(28.0 / 3600)
    assert "failed trials of studies" in said("--runs", str(tmp_path))
    (tmp_path / "digits-tuned-1" / "study.json").write_text("{")
    assert "digits-tuned-1" in said("--runs", str(tmp_path))
