"""`flatout shrink` as a user runs it: the package that comes out, its receipt, and bad input."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gating import smaller

import flatout as fo
from flatout.base.errors import FlatoutError, MissingExtra, UsageError
from flatout.packaging.export import export
from flatout.packaging.onnx_libraries import library
from flatout.packaging.package import Package, open_package
from flatout.shrinking import making
from flatout.shrinking.making import make_smaller
from flatout.shrinking.request import ShrinkRequest
from flatout.shrinking.rows import rows_of_run
from flatout.shrinking.trials import ShrinkTrials
from flatout.shrinking.views.receipt import shrink_doc
from flatout.shrinking.workshop import bench
from flatout.shrinking.workshop.bench import CandidateBench
from flatout.shrinking.workshop.workshop import Workshop

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def as_if_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is real but the clock: each change takes half as long as the source, int8 static a third."""

    def timed(self: CandidateBench, first: str, second: str, batch: int, turns: int, most_s: float) -> dict[str, Any]:
        return {"first": _arm(first, turns), "second": _arm(second, turns)}

    monkeypatch.setattr(CandidateBench, "_time", timed)


@pytest.fixture
def int8_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: one for name, one in bench.CHANGES.items() if name.startswith("int8")}
    monkeypatch.setattr(bench, "CHANGES", few)


def _arm(name: str, turns: int) -> dict[str, Any]:
    seconds = {"source": 6e-4, "candidate-1": 2e-4}.get(name, 3e-4)
    return {"blocks_s": [seconds] * turns, "calls_s": [seconds] * turns}


def test_a_faster_package_answers_like_its_source(package: Package, as_if_fast: None, command: Command) -> None:
    made = smaller(package, margin=1.0, batch=(1, 64), training="off")
    assert made.kept == ("int8 static",) and made.goal_met
    assert re.search(r"3\.00x as fast at batch 1.*smaller.*accuracy", made.sentence)

    shrunk = open_package(Path("shrunk"))
    x = package.samples.rows["x"][:40].numpy()
    found, wanted = shrunk.predict(x)["probabilities"], package.predict(x)["probabilities"]
    assert not torch.equal(found, wanted)
    torch.testing.assert_close(found, wanted, atol=0.15, rtol=0.0)
    torch.testing.assert_close(shrunk.model()(x)["probabilities"], found, atol=0.02, rtol=0.0)
    names = {one.name: one.why_not for one in shrunk.measured(torch.device("cpu"), None)}
    assert names["onnxruntime"] is None and "ONNX file alone" in str(names["eager"])

    code, out, _ = command("why", "shrunk")
    assert code == 0 and f"from {package.path}, hash {package.folder.hash}" in out and "int8 static" in out
    code, out, _ = command("receipt", "shrunk", "--html", "page.html")
    assert code == 0
    for words in (
        "3.00x",
        "accuracy",
        "1,500 rows, the validation part",
        "replaced by" if "replaced" in out else "kept",
        "p99",
    ):
        assert words in out
    page = Path("page.html").read_text()
    assert "data:image/svg+xml" in page
    written = json.loads(command("receipt", "shrunk", "--json")[1])
    static = next(one for one in written["entries"] if one["name"] == "int8_static")
    assert static["check"]["checks"][0]["n"] == 1500 and static["check"]["notes"]["steady"] in (True, False)


def test_where_nothing_pays_the_package_is_unchanged_and_one_sentence_says_why(
    package: Package, int8_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CandidateBench, "_time", lambda self, first, second, batch, turns, most_s: {
        "first": _arm("source", turns), "second": _arm("other", turns)})  # fmt: skip
    made = smaller(package, training="off")
    assert made.kept == () and made.sentence.startswith("nothing pays; the best was int8")
    x = np.zeros((3, 8, 8), np.uint8)
    assert torch.equal(open_package(Path("shrunk")).predict(x)["probabilities"], package.predict(x)["probabilities"])
    assert "nothing pays" in str(shrink_doc(made.package).nodes[0])


def test_a_goal_that_is_not_met_offers_the_nearest_point(
    package: Package, as_if_fast: None, int8_alone: None, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_smaller, "__kwdefaults__", {**make_smaller.__kwdefaults__, "isolated": False})
    code, out, errors = command("shrink", package.path, "--goal", "speed 20x", "--margin", "1", "--training", "off", "--quiet")
    assert code == 1 and "the goal is not met; shrunk has the nearest package" in errors
    assert "The goal speed 20x is not met: 3.00x is the nearest that is as accurate" in out
    assert command("shrink", package.path, "--quiet")[2].startswith("flatout: shrunk exists already")


def test_a_runtime_that_crashes_in_a_trial_is_rejected_and_the_search_goes_on(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a segmentation fault in a kernel: the process of the trials is gone, and the next trial gets another one."""
    opened: list[Workshop] = []

    def open_workshop(*given: Any, **named: Any) -> Workshop:
        opened.append(Workshop(*given, **named))
        return opened[0]

    def crash(line: str) -> None:
        if line == "trying int8 static":
            assert opened[0]._child is not None and opened[0]._child._running is not None
            os.kill(opened[0]._child._running.child.pid, signal.SIGSEGV)

    monkeypatch.setattr(making, "Workshop", open_workshop)
    monkeypatch.setattr(ShrinkTrials, "_timed", lambda self, first, second, batch, turns: (
        _arm("candidate-1" if first != "source" else first, turns), _arm(second, turns)))  # fmt: skip
    monkeypatch.setattr(ShrinkTrials, "together", lambda self, *given, **more: iter(()))
    made = make_smaller(package, Path("shrunk"), ShrinkRequest.read("speed 1.5x", 1.0, training="off"), say=crash)
    found = {one.name: one for one in made.receipt.entries}
    assert found["int8_static"].verdict == "rejected" and found["int8_static"].why.startswith("crashed: the trial")
    assert "SIGSEGV" in found["int8_static"].why and "crashed" in str(shrink_doc(made.package).nodes)
    assert made.kept == ("int8 dynamic",) and open_package(Path("shrunk")).predict(package.samples.rows["x"][:2].numpy())


# ---- bad input ----


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--goal", "quick"], "--goal is 'p99 5 ms'"),
        (["--goal", "size 1x"], "a factor above 1 is expected"),
        (["--margin", "0"], "--margin is above 0"),
        (["--batch", "few"], "--batch is a number of rows"),
        (["--within", "soon"], "expected a number and a unit"),
        (["--training", "some"], "expected a number and a unit"),
        (["--slo", "quick"], "expected a latency goal"),
        (["--slo", "p99 5 ms", "--batch", "8"], "give one of them"),
    ],
)
def test_bad_options_are_refused_before_anything_is_tried(
    package: Package, given: list[str], words: str, command: Command
) -> None:
    code, out, errors = command("shrink", package.path, *given)
    assert code == 2 and words in errors and not out and not Path("shrunk").exists()


def test_a_run_without_held_out_rows_says_what_to_set(command: Command) -> None:
    x, y = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32), np.arange(64) % 2
    data = fo.data.arrays(x, y)
    recipe = fo.Recipe(data=data, model="mlp", batch=32, lr=1e-2, budget="1 epoch", evaluate=None, settings={"device": "cpu"})
    run = fo.run(recipe, cache=None, planning="off")
    export(run, Path("package"))
    with pytest.raises(UsageError, match=r"has no held-out rows.*holdout: 0.2.*--data"):
        rows_of_run(open_package(Path("package")), data)
    code, out, errors = command("shrink", "package")
    assert code != 0 and not out and "--data" in errors and not Path("shrunk").exists()
    np.savez("held.npz", x=np.where(np.arange(64)[:, None] % 3, x, np.nan), y=y)
    code, _, errors = command("shrink", "package", "--data", "held.npz")
    assert code != 0 and "column 'x' has NaN or infinite values in 22 of 64 rows" in errors and not Path("shrunk").exists()
    np.savez("held.npz", x=x, y=y)
    made = smaller(open_package(Path("package")), data="held.npz", training="off")
    assert made.about["rows"]["judging"] == 48 and "three quarters of held.npz" in made.about["rows"]["origin"]


def test_without_onnxruntime_the_extra_is_named(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, need: str = "") -> Any:
        if name == "onnxruntime":
            raise MissingExtra(name, "export", need)
        return library(name, need)

    monkeypatch.setattr(making, "library", missing)
    with pytest.raises(FlatoutError, match=r"shrink needs onnxruntime.*pip install 'flatout\[export\]'"):
        fo.shrink(package)


def test_a_package_without_onnx_says_why(run: fo.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.packaging import export as exporting

    monkeypatch.setattr(exporting, "_write_onnx", lambda *given: None)
    export(run, Path("plain"))
    with pytest.raises(FlatoutError, match=r"has no model.onnx, which shrink starts from: the package has no model.onnx"):
        fo.shrink("plain")


def test_a_quantiser_whose_file_can_not_be_read_back_is_a_failed_trial(
    package: Package, as_if_fast: None, int8_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(model: Any, out: Path, **given: Any) -> None:
        out.write_bytes(model.SerializeToString()[:100])

    monkeypatch.setattr(library("onnxruntime.quantization"), "quantize_dynamic", torn)
    made = smaller(package, margin=1.0, training="off")
    dynamic = next(one for one in made.receipt.entries if one.name == "int8_dynamic")
    assert dynamic.verdict == "rejected" and dynamic.why.startswith("failed: DecodeError")
    assert made.kept and made.kept[0].startswith("int8 static"), "the search goes on"


def test_a_model_that_can_not_be_written_as_a_graph_says_why(tmp_path: Path) -> None:
    recipe = fo.Recipe(
        data=fo.data.arrays(np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32), np.arange(64) % 2),
        model=Branching(), batch=32, lr=1e-2, budget="2 steps", evaluate=None, settings={"device": "cpu"},
    )  # fmt: skip
    with pytest.raises(FlatoutError, match=r"can't write the model as a graph(.|\n)*To export it as code"):
        fo.shrink(fo.run(recipe, runs=tmp_path, cache=None, planning="off"), cache=None)
    assert not Path("shrunk").exists()


class Branching(torch.nn.Linear):
    """Which way it goes depends on the values."""

    def __init__(self) -> None:
        super().__init__(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x.sum() > 0 else -x)


def test_a_run_in_python_as_on_the_command_line(
    run: fo.Run, as_if_fast: None, int8_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_smaller, "__kwdefaults__", {**make_smaller.__kwdefaults__, "isolated": False})
    shrunk = fo.shrink(run, "mine", margin=1.0, goal="p99 2 ms", training="off", cache=Path("cache"))
    assert shrunk.package.path == Path("mine") and shrunk.goal_met and shrunk.kept == ("int8 static",)
    assert str(shrunk) == f"mine: {shrunk.sentence}"
    assert shrunk.about["batches"][0] == 1 < shrunk.about["batches"][1] <= 256, "and what the goal permits"
    served = fo.shrink(run, "served", margin=1.0, slo="p99 2 ms", training="off", cache=Path("cache"))
    assert served.about["batches"][0] == 1 < served.about["batches"][1] and served.about["goal"]["kind"] == "speed"
    with pytest.raises(UsageError, match="shrink takes a run or a package"):
        fo.shrink(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--batch takes numbers of rows"):
        fo.shrink(run, batch=(1, 0))


def test_the_receipt_of_an_exported_package_is_refused(package: Package, command: Command) -> None:
    code, _, errors = command("receipt", package.path)
    assert code == 2 and "was exported, not shrunk" in errors
