"""The page of a run: complete, small, on its own, and made from whatever is left of a run."""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
import sys
import tarfile
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from page_curves import chart, curves_in

import flatout as fo
from flatout.base.errors import FlatoutError, NotARun, StoreError, UsageError
from flatout.measure.receipt import Entry, Receipt
from flatout.reporting import story as of_runs
from flatout.reporting.verb import page_of, read_stories
from flatout.store.run_folder import RunFolder

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"
UPGRADES = Path(__file__).parent.parent / "fixtures" / "upgrade"


class Reader(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def page_about(*folders: RunFolder) -> str:
    return page_of(read_stories([folder.path for folder in folders], Path("nowhere")))


def test_the_page_says_how_the_run_was_trained(run: RunFolder) -> None:
    page = Reader(page_about(run)).text
    for part in ("Curves", "What happened", "Plan", "Where the time went", "To run it again", "Where it ran"):
        assert part in page
    assert "finished" in page and f"{run.result['metrics']['accuracy']:.4f}" in page
    assert "mlp" in page and "deterministic" in page and "Not all of the run" not in page


def test_the_curves_are_those_of_the_log(run: RunFolder) -> None:
    page = page_about(run)
    training, validation = chart(page, "loss")["series"]
    assert (training["name"], validation["name"]) == ("training", "validation")
    logged = [event["loss"] for event in fo.load(run.path).events() if event["kind"] == "step"]
    assert training["y"] == pytest.approx(logged, rel=1e-4) and sum(training["x"]) == 40
    assert len(chart(page, "accuracy")["series"][0]["y"]) == 4
    assert {"learning rate", "speed in samples/s", "peak memory"} <= {one["title"] for one in curves_in(page)["charts"]}


def test_it_is_one_small_file_that_loads_nothing(run: RunFolder) -> None:
    page = page_about(run)
    reader = Reader(page)
    assert len(page.encode()) < 200_000
    assert not {"link", "iframe", "object", "embed", "base"} & {tag for tag, _ in reader.tags}
    assert all((found.get("src") or "data:").startswith("data:") and "href" not in found for _, found in reader.tags)
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    policy = next(found["content"] for _, found in reader.tags if found.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in policy
    assert len(script) < 18_500 and "fetch(" not in script and "innerHTML" not in script and "eval" not in script


def test_every_trial_is_shown_with_its_interval(run: RunFolder) -> None:
    kept = Entry("compile", "step", "off", "kept", "faster", 1.9, 2.13, 2.05, 2.21, 24, 0.01, 0.0213, 11.0, 10**8)
    rejected = Entry("precision", "bf16", "fp32", "rejected", "slower", None, 0.61, 0.55, 0.66, 9, 0.02, 0.0122)
    receipt = Receipt(
        {}, {"compile": "step"}, (kept, rejected), 0.0213, 0.01, stopped="nothing is left to try", machine="a CPU"
    )
    run.write("receipt.json", receipt.to_dict())
    page = Reader(page_about(run))
    for words in ("2.05 to 2.21", "0.55 to 0.66", "24", "kept", "rejected", "nothing is left to try", "2.13x"):
        assert words in page.text
    assert "95% interval" in page.text and any("filled: kept" in (found.get("alt") or "") for _, found in page.tags)


def test_the_same_run_gives_the_same_page(run: RunFolder) -> None:
    assert page_about(run) == page_about(run)


def test_names_with_html_in_them_stay_words(run: RunFolder, log: Callable[..., None]) -> None:
    metrics = {"loss": 0.5, EVIL.replace(".", ""): 0.5}
    log(
        run,
        {"kind": "degraded", "t": 9.0, "at": 9.0, "what": EVIL, "why": EVIL},
        {"kind": "evaluation", "t": 9.1, "at": 9.1, "step": 40, "metrics": metrics, "best": False},
    )
    result = {**run.result, "reason": EVIL, "metrics": {**run.result["metrics"], **metrics}}
    run.write("result.json", result)
    run.write("recipe.json", {**run.read("recipe.json"), "label": EVIL})
    page = page_about(run)
    reader = Reader(page)
    assert [tag for tag, _ in reader.tags].count("script") == 2  # the data and our own
    assert all(not name.startswith("on") for _, found in reader.tags for name in found)
    assert EVIL in reader.text and any(EVIL in one["title"] for one in curves_in(page)["charts"])


def test_values_that_are_not_finite_are_marked(run: RunFolder, log: Callable[..., None]) -> None:
    values = [(float("nan"), float("inf")), (None, 1.0), (float("-inf"), 2.0), (0.25, 3.0)]
    steps = [{"kind": "step", "t": n, "at": n, "step": n, "loss": loss, "grad_norm": norm, "elapsed_s": n}
             for n, (loss, norm) in enumerate(values, 41)]  # fmt: skip
    log(
        run, *steps, {"kind": "evaluation", "t": 50.0, "at": 50.0, "step": 44, "metrics": {"loss": float("nan")}, "best": False}
    )
    page = page_about(run)
    training, validation = chart(page, "loss")["series"]
    assert training["bad"] == [41, 1, 1] and training["y"][-1] == 0.25
    assert validation["bad"] == [44]
    assert chart(page, "gradient norm")["series"][0]["bad"] == [41]


def test_steps_that_were_given_up_are_a_faint_curve(run: RunFolder, log: Callable[..., None]) -> None:
    log(
        run,
        {"kind": "rolled_back", "t": 9.0, "at": 9.0, "step": 30, "from_step": 40, "rate_factor": 0.5, "why": "loss not finite"},
        {"kind": "step", "t": 9.1, "at": 9.1, "step": 35, "loss": 0.1, "elapsed_s": 5.0},
    )
    page = page_about(run)
    kept, given_up = (one for one in chart(page, "loss")["series"] if one["name"].startswith("training"))
    assert given_up["style"] == "faint" and given_up["x"][0] == 31 and sum(given_up["x"]) == 40
    assert sum(kept["x"]) == 35 and len(kept["y"]) == 31
    assert "rolled back" in Reader(page).text and curves_in(page)["marks"][0]["step"] == 30


def test_the_time_line_shows_when_no_process_ran(run: RunFolder, log: Callable[..., None]) -> None:
    last = [event for event in fo.load(run.path).events()][-1]["at"]
    assert "Gaps" not in str([found.get("alt") for _, found in Reader(page_about(run)).tags])
    log(
        run,
        {"kind": "planned", "t": 0.1, "at": last + 3600, "run": run.name},
        {"kind": "resumed", "t": 0.2, "at": last + 3600.1, "step": 40},
        {"kind": "stopped", "t": 9.0, "at": last + 3609, "step": 40, "signal": "SIGTERM", "saved": True},
    )
    page = Reader(page_about(run))
    assert "Gaps: no process trained." in page.text and "by SIGTERM, saved" in page.text and "1 h 00 min" in page.text


def test_a_spike_of_one_log_point_stays_and_the_page_small(run: RunFolder, log: Callable[..., None]) -> None:
    def others(n: int) -> dict[str, Any]:
        return {name: 1e3 + n % 977 / 7 for name in ("lr", "grad_norm", "samples_per_s", "memory_bytes", "power_w")}

    steps = [{"kind": "step", "t": n / 10, "at": 1.7e9, "step": n, "loss": 99.0 if n == 17_123 else 1.0 + n % 7 / 10,
              "elapsed_s": n / 10, **others(n)} for n in range(41, 30_000)]  # fmt: skip
    metrics = {n: {f"metric{k}": n % 1009 / (k + 3) for k in range(9)} for n in range(50, 30_000, 20)}
    evaluations = [{"kind": "evaluation", "t": n / 10, "at": 1.7e9, "step": n, "best": False, "metrics": found}
                   for n, found in metrics.items()]  # fmt: skip
    log(run, *steps, *evaluations)
    page = page_about(run)
    loss = chart(page, "loss")["series"][0]
    at = loss["y"].index(99)
    assert len(loss["y"]) < 4000 and sum(loss["x"][: at + 1]) == 17_123
    assert len(page.encode()) < 200_000 and "30k log points" in curves_in(page)["note"]


def test_a_run_that_is_still_being_written(run: RunFolder) -> None:
    (run.path / "result.json").unlink()
    log = run.events_path.read_bytes().splitlines(keepends=True)
    run.events_path.write_bytes(b"".join(log[:30]) + log[30][:25])  # the writer is in the middle of a line
    lock = run.lock()
    lock.take()
    try:
        page = Reader(page_about(run)).text
    finally:
        lock.release()
    assert "is still training" in page and "Curves" in page
    assert "did not end" in Reader(page_about(run)).text


def test_before_the_first_step_there_is_a_page_too(run: RunFolder) -> None:
    (run.path / "result.json").unlink()
    run.events_path.write_bytes(run.events_path.read_bytes().splitlines(keepends=True)[0])
    page = Reader(page_about(run))
    assert "no step yet" in page.text and "Plan" in page.text and "Curves" not in page.text


def test_torn_lines_are_left_out_and_damaged_ones_are_named(run: RunFolder) -> None:
    lines = run.events_path.read_bytes().split(b"\n")
    steps = [place for place, line in enumerate(lines) if line.startswith(b'{"kind": "step"')]
    lines[steps[5]] = lines[steps[5]][:50] + b" [torn]"
    lines[steps[9]] = re.sub(rb'"loss": [0-9.e-]+', b'"loss": 77.0', lines[steps[9]])
    run.events_path.write_bytes(b"\n".join(lines))
    page = page_about(run)
    assert f"line {steps[9] + 1} does not match its checksum" in Reader(page).text
    loss = chart(page, "loss")["series"][0]
    assert len(loss["y"]) == 38 and max(loss["y"]) < 77


@pytest.mark.parametrize("name", ["plan.json", "environment.json", "origin.json", "recipe.json", "result.json", "events.jsonl"])
@pytest.mark.parametrize("how", ["gone", "cut"])
def test_without_one_of_its_files_the_rest_is_shown(run: RunFolder, name: str, how: str) -> None:
    path = run.path / name
    path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:40])
    page = Reader(page_about(run)).text
    assert run.name in page and "Where it ran" in page
    if name not in ("result.json", "events.jsonl") or (name, how) == ("result.json", "cut"):
        assert name in page


def test_runs_of_older_versions(tmp_path: Path) -> None:
    made = 0
    for archive in sorted(UPGRADES.glob("*/runs.tar.xz")):
        with lzma.open(archive) as raw, tarfile.open(fileobj=raw) as files:
            files.extractall(tmp_path / archive.parent.name, filter="data")
        for about in sorted((tmp_path / archive.parent.name).rglob("run.json")):
            page = page_about(RunFolder(about.parent))
            assert "Plan" in page and len(page.encode()) < 200_000
            made += 1
    assert made > 3


def test_a_run_before_there_were_manifests(run: RunFolder) -> None:
    about = run.about
    for name in ("manifest.jsonl", "environment.json", "origin.json", "data.json"):
        (run.path / name).unlink(missing_ok=True)
    run.write("run.json", {**about, "flatout_run": 1})
    run.manifest.path.unlink()
    run.events_path.write_bytes(re.sub(rb', "crc": "[0-9a-f]{8}"', b"", run.events_path.read_bytes()))
    page = page_about(run)
    assert "environment.json is missing" in Reader(page).text and len(chart(page, "loss")["series"][0]["y"]) == 40


def test_a_folder_that_vanishes_is_said(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = of_runs.scan_log

    def vanishing(path: Path) -> Any:
        found = scan(path)
        shutil.rmtree(run.path)
        return found

    loaded = fo.load(run.path)
    monkeypatch.setattr(of_runs, "scan_log", vanishing)
    with pytest.raises(StoreError, match="vanished while it was read"):
        page_about(run)
    with pytest.raises(StoreError, match="is gone"):
        loaded.report()


def test_a_run_that_does_not_exist(runs: Path) -> None:
    with pytest.raises(NotARun, match="no run named 'nope'"):
        fo.report("nope", folder=runs)
    with pytest.raises(UsageError, match="needs a run"):
        fo.report(folder=runs)


def test_several_runs_lie_on_top_of_each_other(run: RunFolder, runs: Path) -> None:
    other = runs / "other-1"
    shutil.copytree(run.path, other)
    twin = RunFolder(other)
    twin.write("recipe.json", {**run.read("recipe.json"), "lr": 0.125})
    twin.write("result.json", {**run.result, "samples_per_s": 2 * run.result["samples_per_s"]})
    page = page_about(run, twin)
    text = Reader(page).text
    assert [one["run"] for one in chart(page, "accuracy")["series"]] == [0, 1]
    assert [one["name"] for one in curves_in(page)["runs"]] == [run.name, "other-1"]
    assert "Differences in recipe and plan" in text and "0.125" in text and "2.00x" in text and "time to accuracy" in text
    assert page_about(run, run) == page_about(run)


def test_in_python_and_on_the_command_line(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = fo.load("last").report()
    assert made == Path(f"{run.name}-report.html") and made.read_text() == page_about(run)
    assert fo.report("last", out="mine.html") == Path("mine.html") and Path("mine.html").exists()
    with pytest.raises(FlatoutError, match="can't write"):
        fo.report("last", out=tmp_path / "no" / "where.html")
    command = [sys.executable, "-m", "flatout", "report", "last"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith(f"wrote {run.name}-report.html (") and not done.stderr
