"""Everything a person can get wrong: a clear message, the right exit code, and nothing written or lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from commands import Command, contents, signal_at, table

NET = """\
from torch import nn

class Narrow(nn.Module):
    def __init__(self, wide=1):
        super().__init__()
        self.layer = nn.Linear(5, wide)
    def forward(self, x):
        return self.layer(x)

class Short(Narrow):
    def forward(self, x):
        return self.layer(x[:, :3])

class Scalar(Narrow):
    def forward(self, x):
        return self.layer(x).mean()
"""


def save(name: str, **columns: Any) -> None:
    np.savez(name, **{**table(), **columns})


@pytest.fixture
def refused(desk: Path, flatout: Command) -> Callable[..., None]:
    """`flatout run table.yaml ...` and `explain` say all of `words`, exit with `code`, and leave the folder as it was."""

    def check(*arguments: str, code: int, words: tuple[str, ...], verbs: tuple[str, ...] = ("run", "explain")) -> None:
        before = contents(desk)
        for verb in verbs:
            answer = flatout(verb, "table.yaml", *arguments)
            assert answer.code == code, answer.err
            assert answer.out == ""
            assert answer.err.startswith("flatout: ") and "Traceback" not in answer.err
            for word in words:
                assert word in answer.err
        assert contents(desk) == before
        assert not (desk / "runs").exists()

    return check


# ---- the recipe ----


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("lrr=3", ("1 mistake in table.yaml", "lrr: no such key", "did you mean 'lr'?")),
        ("data.holdot=0.1", ("arrays has no option 'holdot'", "did you mean 'holdout'?")),
        ("model.hiden=[8]", ("mlp has no option 'hiden'", "did you mean 'hidden'?")),
        ("model=mpl", ("unknown model 'mpl'; did you mean 'mlp'?",)),
        ("objective=clasify", ("did you mean 'classify'?",)),
        ("optimizer=adamww", ("did you mean 'adamw'?",)),
        ("optimizer.moment=0.9", ("adamw has no option 'moment'",)),
        ("settings.precisoin=bf16", ("settings.precisoin: no such setting; did you mean 'precision'?",)),
        ("_folder=x", ("_folder: no such key",)),
    ],
)
def test_unknown_key(refused: Callable[..., None], argument: str, words: tuple[str, ...]) -> None:
    refused(argument, code=2, words=words, verbs=("run",))


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("lr=fast", ("lr: expected a number such as 1e-3, or auto, got 'fast'",)),
        ("lr=.inf", ("lr: expected a finite number, got inf",)),
        ("lr=-1", ("lr: expected more than 0, got -1",)),
        ("batch=yes", ("batch: expected a number, got True",)),
        ("batch=1.5", ("batch: expected a whole number, got 1.5",)),
        ("batch=[1, 2]", ("batch: expected a whole number, got [1, 2]",)),
        ("freeze=head", ("freeze: expected a list, got 'head'",)),
        ("rates.x=much", ("rates.x: expected a number, got 'much'",)),
        ("settings=fast", ("settings: expected keys and values, got 'fast'",)),
        ("settings.tier=disk", ("expected one of resident, pinned, mapped, streamed, got 'disk'",)),
        ("settings.checkpoint_every=1 epoch", ("settings.checkpoint_every: expected auto, end, a time or steps", "'1 epoch'")),
        ("settings.grace=long", ("settings.grace: expected a time, such as 30 s, got 'long'",)),
        ("settings.nonfinite_limit=0", ("settings.nonfinite_limit: expected 1 or more",)),
        ("settings.log_every=2.5", ("settings.log_every: expected a whole number, got 2.5",)),
        ("settings.log_every=.inf", ("settings.log_every: expected a whole number, got inf",)),
        ("settings.reader_threads=yes", ("settings.reader_threads: expected a whole number, got True",)),
        ("settings.reader_threads=100000", ("settings.reader_threads: expected 1,024 or less, got 100000",)),
        ("settings.prefetch=4097", ("settings.prefetch: expected 4,096 or less, got 4097",)),
        ("settings.vocabulary_padding=1e4", ("settings.vocabulary_padding: expected 1,024 or less, got 10000.0",)),
        ("settings.log_every=5000", ("settings.log_every: expected 4,096 or less, got 5000",)),
        ("data.holdout=3", ("data: holdout: expected a share", "got 3")),
        ("data=5", ("data: expected", "fo.data.arrays(...)", "got int")),
        ("inputs=5", ("a column 'x'", "got 5")),
        ("early_stop=soon", ("early_stop is a number of evaluations", "'soon'")),
        ("evaluate=3 min", ("evaluate: expected epochs", "'3 min'")),
        ("ema=1", ("ema: expected less than 1, got 1",)),
        ("lr=[1", ("the value of 'lr=[1' is not YAML",)),
        ("lr.x=1", ("lr is a float, which has no keys to set",)),
        ("lr", ("an override is written key=value", "'lr'")),
        ("model..x=1", ("an override is written key=value",)),
    ],
)
def test_wrong_type(desk: Path, refused: Callable[..., None], argument: str, words: tuple[str, ...]) -> None:
    (desk / "table.yaml").write_text((desk / "table.yaml").read_text().replace("1e-2", "0.01"))  # YAML reads 1e-2 as text
    refused(argument, code=2, words=words, verbs=("run",))


def test_several_mistakes_at_once(refused: Callable[..., None]) -> None:
    mistakes = ("lr=fast", "bach=3", "model=mpl", "budget=3 bananas", "data.holdout=3", "settings.tier=disk", "clip=-1")
    told = ("lr: ", "bach: ", "model: ", "budget: ", "data: holdout: ", "settings.tier: ", "clip: ")
    refused(*mistakes, code=2, words=("7 mistakes in table.yaml:", *(f"\n  - {place}" for place in told)))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("empty.yaml", "", "must hold keys and values (data:, model:, ...), got an empty file"),
        ("list.yaml", "- a", "got list"),
        ("broken.yaml", "a: [b", "is not YAML"),
        ("number.yaml", "1: 2", "1: no such key"),
        ("bare.yaml", "data: digits", "lr: missing; write for example lr: 1e-3"),
        ("recipe.txt", "data: digits", "a recipe is a .yaml or a .py file"),
        ("broken.py", "recipe = 1 / 0", "could not be run: ZeroDivisionError: division by zero (line 1)"),
        ("function.py", "def recipe():\n    return 1 / 0", "division by zero (line 2)"),
        ("other.py", "recipe = 3", "a flatout.Recipe, or a function that returns one; got int"),
        ("nothing.py", "", "must define `recipe`"),
    ],
)
def test_a_file_that_is_no_recipe(desk: Path, flatout: Command, name: str, text: str, words: str) -> None:
    (desk / name).write_text(text)
    answer = flatout("run", name)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err
    assert not (desk / "runs").exists()


def test_a_recipe_that_is_not_there(desk: Path, flatout: Command) -> None:
    answer = flatout("run", "tabel.yaml")
    assert answer.code == 2
    assert "recipe not found: tabel.yaml" in answer.err


# ---- the data ----


def test_missing_file(refused: Callable[..., None]) -> None:
    refused("data.arrays=trian.npz", code=2, words=("1 mistake", "data: no file at trian.npz"))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": np.zeros((0, 5), "float32"), "y": np.zeros(0, "int64")}, ("data is empty: x has shape [0, 5]",)),
        ({"y": np.full(128, 3)}, ("labels must be 0 to 1", "row 0 has 3", "128 of 128 rows")),
        ({"y": np.zeros(50, "int64")}, ("columns differ in length", "x has 128 rows", "y has 50 rows")),
        ({"y": np.zeros(128, "complex64")}, ("column 'y' must hold numbers",)),
    ],
    ids=["empty", "labels out of range", "mismatched lengths", "not numbers"],
)
def test_bad_columns(refused: Callable[..., None], columns: dict[str, Any], words: tuple[str, ...]) -> None:
    save("bad.npz", **columns)
    refused("data.arrays=bad.npz", "data.classes=2", code=1, words=words)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite(refused: Callable[..., None], value: float) -> None:
    x = table()["x"]
    x[[7, 9], 2] = value
    save("bad.npz", x=x)
    refused("data.arrays=bad.npz", code=1, words=("column 'x' has NaN or infinite values in 2 of 128 rows, first in row 7",))


def test_a_damaged_file_and_a_pickled_one(desk: Path, refused: Callable[..., None]) -> None:
    whole = (desk / "train.npz").read_bytes()
    (desk / "cut.npz").write_bytes(whole[: len(whole) // 2])
    refused("data.arrays=cut.npz", code=1, words=("cut.npz can't be read as npz",))
    np.save("objects.npy", np.array([{}, {}]), allow_pickle=True)
    refused("data.arrays={x: objects.npy}", code=1, words=("holds Python objects (pickled)",))


def test_fewer_rows_than_a_batch(refused: Callable[..., None]) -> None:
    refused("batch=1000", code=1, words=("batch is 1000, more than the 96 training samples",))


# ---- the model and its objective ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model=net:Narrow"], ("the data has 2 classes but the model returns 1 columns", "make its last layer 2 wide")),
        (["model=net:Scalar"], ("classify needs logits of shape [rows, classes]",)),
        (["model=net:Short"], ("Short failed on its first batch (x [2, 5] float32", "cannot be multiplied", "net.py:12")),
        (["model={'net:Narrow': {wide: 3}}", "objective=regress"], ("regress",)),
        (["objective=next_token"], ("next_token needs data with a vocabulary",)),
        (["inputs=z"], ("a column 'z'",)),
    ],
)
def test_an_output_that_does_not_fit(
    desk: Path, refused: Callable[..., None], arguments: list[str], words: tuple[str, ...]
) -> None:
    (desk / "net.py").write_text(NET)
    sys.modules.pop("net", None)
    refused(*arguments, code=1, words=words)


def test_a_model_that_is_not_there(refused: Callable[..., None]) -> None:
    refused("model=nonsuch:Net", code=2, words=("can't import 'nonsuch'",))
    refused("model=torch.nn:Lineer", code=2, words=("'torch.nn' has no 'Lineer'",))


def test_weights_that_are_not_there(refused: Callable[..., None]) -> None:
    refused("init_from=nonsuch.safetensors", code=1, words=("no weights at nonsuch.safetensors",))


# ---- the budget ----


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ("3 bananas", ("'bananas'", "'3 epochs'")),
        ("10", ("such as '10 epochs', got 10",)),
        ("soon", ("'3 epochs'",)),
        ("0 epochs", ("greater than 0",)),
        ("5 USD", ("the budget 5 USD needs a price: set price_per_hour",)),
        ("accurcy >= 0.9 within 2 epochs", ("did you mean 'accuracy'?",)),
    ],
)
def test_a_budget_that_cannot_be_counted(refused: Callable[..., None], budget: str, words: tuple[str, ...]) -> None:
    refused(f"budget={budget}", code=2, words=words)


def test_energy_without_a_counter(refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.recipe import build as building

    meters = SimpleNamespace(read=lambda: SimpleNamespace(energy_j=None), why_unavailable="nothing here counts energy")
    monkeypatch.setattr(building, "Meters", lambda device: meters)
    refused("budget=200 Wh", code=1, words=("the budget 200 Wh can't be counted here: nothing here counts energy",))


def test_a_target_that_nothing_evaluates(refused: Callable[..., None]) -> None:
    aim = "budget=accuracy >= 0.9 within 2 epochs"
    refused(aim, "data.holdout=0", code=2, words=("budget needs accuracy, but nothing is evaluated: set data.holdout",))


# ---- the machine ----


def test_cuda_where_there_is_none(refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    refused("settings.device=cuda", code=1, words=("device 'cuda'", "only the CPU", "'auto' or 'cpu'"))
    refused("settings.device=gpu9", code=2, words=("device must be 'auto' or 'cpu'; got 'gpu9'",))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--off", "compil"], "did you mean 'compile'?"),
        (["--off", "grace"], "--off grace: this setting can't be off"),
        (["--set", "precision"], "--set needs name=value"),
        (["--set", "precision=fp31"], "expected one of fp32, tf32, bf16, fp16, fp8, got 'fp31'"),
        (["--nonsuch"], "No such option"),
    ],
)
def test_bad_options(desk: Path, flatout: Command, arguments: list[str], words: str) -> None:
    answer = flatout("run", "table.yaml", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err
    assert not (desk / "runs").exists()


def test_a_page_that_can_not_be_written_is_refused_before_anything_is_planned(
    desk: Path, flatout: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plans(*given: Any, **more: Any) -> Any:
        raise AssertionError("planned")

    monkeypatch.setattr("flatout.runs.verbs.explain", plans)
    (desk / "folder").mkdir()
    for page, words in (("nowhere/x.html", "--html: folder not found"), ("folder", "folder is a folder")):
        answer = flatout("explain", "table.yaml", "--html", page)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith("flatout: --html") and words in answer.err and answer.err.count("\n") == 1


def test_a_page_that_the_disk_refuses(desk: Path, flatout: Command) -> None:
    answer = flatout("explain", "table.yaml", "--html", "/dev/full")
    assert answer.code == 1
    assert "flatout: can't write /dev/full: No space left on device" in answer.err


# ---- what lies in the run folder ----


@pytest.fixture
def stopped(desk: Path, flatout: Command, during_run: Callable[..., None]) -> Path:
    """A run that SIGTERM stopped half-way."""
    during_run(signal_at(3, signal.SIGTERM))
    assert flatout("run", "table.yaml").code == 143
    during_run(None)
    return desk / "runs" / "table-1"


def test_a_checkpoint_of_another_version(stopped: Path, flatout: Command) -> None:
    for manifest in stopped.glob("checkpoints/step-*/manifest.json"):
        manifest.write_text(json.dumps({"format": 99, "sha256": {}}))
    before = contents(stopped / "checkpoints")
    answer = flatout("run", "table.yaml")
    assert answer.code == 1
    assert "checkpoint format 99, this flatout reads format 1" in answer.err
    assert "--fresh" in answer.err
    assert contents(stopped / "checkpoints") == before
    assert flatout("run", "table.yaml", "--fresh").code == 0
    assert contents(stopped / "checkpoints") == before


def test_a_run_of_another_version(stopped: Path, flatout: Command) -> None:
    about = stopped / "run.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "flatout_run": 99}))
    (stopped / "manifest.jsonl").unlink()
    before = contents(stopped)
    for command in (["runs", "show", "table-1"], ["evaluate", "table-1"], ["predict", "table-1", "train.npz"]):
        answer = flatout(*command)
        assert answer.code == 1
        assert "has run format 99, this flatout reads format 2" in answer.err
    assert flatout("run", "table.yaml").code == 0  # beside it
    assert contents(stopped) == before


@pytest.mark.parametrize("about", [None, "{", "[]", "{}", '{"flatout_run": 1}'])
def test_a_folder_that_is_not_ours(desk: Path, flatout: Command, about: str | None) -> None:
    foreign = desk / "runs" / "table-1"
    foreign.mkdir(parents=True)
    (foreign / "thesis.txt").write_text("years of work")
    if about is not None:
        (foreign / "run.json").write_text(about)
    before = contents(foreign)
    for command in (["runs", "show", "table-1"], ["evaluate", str(foreign)], ["runs", "compare", "table-1", "table-1"]):
        answer = flatout(*command)
        assert answer.code == 1
        assert "is not a flatout run: it has no run.json" in answer.err
    assert flatout("run", "table.yaml", "budget=1 epoch").code == 0
    assert (desk / "runs" / "table-2").is_dir()
    assert "table-1" not in flatout("runs").out
    assert contents(foreign) == before


def test_a_run_that_is_not_there(desk: Path, flatout: Command) -> None:
    assert "there is no run in runs yet" in flatout("evaluate", "last").err
    assert flatout("run", "table.yaml", "budget=1 epoch").code == 0
    answer = flatout("runs", "show", "tabel-1")
    assert answer.code == 1
    assert "did you mean 'table-1'?" in answer.err


def test_a_run_that_was_killed_before_it_began(stopped: Path, flatout: Command) -> None:
    """Only its mark is there: the same command begins it."""
    for path in stopped.iterdir():
        if path.name != "run.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert flatout("run", "table.yaml").code == 0
    assert [path.name for path in stopped.parent.iterdir()] == ["table-1"]


# ---- data for a trained model ----


def test_other_data_that_does_not_fit_the_model(desk: Path, flatout: Command) -> None:
    assert flatout("run", "table.yaml", "budget=1 epoch").code == 0
    save("narrow.npz", x=table()["x"][:, :3])
    save("labels.npz", y=table()["y"] + 5)
    np.savez("only_x.npz", x=table()["x"])
    np.savez("other.npz", a=table()["x"], b=table()["y"])
    before = contents(desk)
    for command, words in {
        ("evaluate", "last", "--data", "narrow.npz"): "narrow.npz: a row of x is [3], and [5] in what",
        ("predict", "last", "narrow.npz"): "a row of x is [3]",
        ("evaluate", "last", "--data", "labels.npz"): "labels.npz: labels must be 0 to 1 (classes=2); row 0 has",
        ("evaluate", "last", "--data", "only_x.npz"): "classify needs targets in a column 'y'",
        ("predict", "last", "other.npz"): "no column 'x', which the model was trained with; got a, b",
        ("predict", "last", "nonsuch.npz"): "no file at",
    }.items():
        answer = flatout(*command)
        assert (answer.code, answer.out) == (1, "")
        assert words in answer.err
    for out, words in {"p.txt": ".parquet, .csv or .npz", "nonsuch/p.csv": "folder not found"}.items():
        answer = flatout("predict", "last", "train.npz", "--out", out)
        assert answer.code == 2
        assert words in answer.err
    assert contents(desk) == before


def test_text_with_letters_the_model_has_not_seen(desk: Path, flatout: Command) -> None:
    (desk / "train.txt").write_text("abcd " * 100)
    (desk / "same.txt").write_text("dcba " * 20)
    (desk / "other.txt").write_text("abcz " * 20)
    (desk / "text.yaml").write_text(
        "data: {text: train.txt, window: 8}\nmodel: {gpt: {layers: 1, heads: 1, width: 8}}\nobjective: next_token\n"
        "batch: 4\nlr: 1e-3\nbudget: 3 steps\n"
    )
    assert flatout("run", "text.yaml").code == 0
    assert flatout("evaluate", "last", "--data", "same.txt").code == 0
    answer = flatout("evaluate", "last", "--data", "other.txt")
    assert answer.code == 1
    assert "has characters that the training text has not: 'z'" in answer.err


# ---- the disk ----


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of one's own, 256 kB large; skips where mounting is not allowed."""
    folder = Path(tempfile.mkdtemp(prefix="flatout-disk-"))  # not in pytest's folders, which it could then not remove
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "flatout-test", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield folder
    finally:
        # weights are read in place: their file is open for as long as a tensor of it lives, hence lazily
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def fill(disk: Path) -> Path:
    """Not a byte is left."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 512)
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return filler


def test_no_space_to_begin(disk: Path, flatout: Command) -> None:
    fill(disk)
    answer = flatout("run", "table.yaml", "--runs", str(disk / "runs"))
    assert (answer.code, answer.out) == (1, "")
    assert "No space left on device" in answer.err
    assert "--runs" in answer.err
    assert list((disk / "runs").glob("*")) == []


def test_no_space_half_way(
    disk: Path, desk: Path, flatout: Command, during_run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on to its end, the last good checkpoint stays, and with room again nothing was lost."""
    run = disk / "runs" / "table-1"
    kept: dict[str, str] = {}

    def full_after_two_evaluations(event: Any) -> None:
        if event["kind"] == "checkpoint_saved" and event["step"] == 12:
            fill(disk)
            kept.update(contents(run / "checkpoints"))

    during_run(full_after_two_evaluations)
    answer = flatout("run", "table.yaml", "evaluate=6 steps", "--runs", str(disk / "runs"))
    during_run(None)
    assert answer.code == 1
    assert "No space left on device" in answer.err
    assert "checkpoint failed (step 18): No space left on device" in answer.err
    assert "step 48: " in answer.err, "the run went on"
    assert "the same command to resume from the last" in answer.err
    assert kept and kept.items() <= contents(run / "checkpoints").items()

    (disk / "filler").unlink()
    again = flatout("run", "table.yaml", "evaluate=6 steps", "--runs", str(disk / "runs"))
    assert again.code == 0
    assert "resumed at step 12" in again.err
    assert flatout("run", "table.yaml", "evaluate=6 steps", "--runs", "whole").code == 0
    whole = desk / "whole" / "table-1" / "model.safetensors"
    assert (run / "model.safetensors").read_bytes() == whole.read_bytes()


def test_no_space_for_predictions(disk: Path, flatout: Command) -> None:
    assert flatout("run", "table.yaml", "budget=1 epoch").code == 0
    fill(disk)
    for name in ("p.parquet", "p.csv", "p.npz"):
        (disk / name).touch()
        answer = flatout("predict", "last", "train.npz", "--out", str(disk / name))
        assert answer.code == 1
        assert "No space left on device" in answer.err
        assert (disk / name).read_bytes() == b"", "what was there is still there"
    assert sorted(path.name for path in disk.iterdir()) == ["filler", "p.csv", "p.npz", "p.parquet"]


def test_a_disk_that_refuses_without_a_mount(stopped: Path, flatout: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above for machines where nothing can be mounted: the disk says ENOSPC when asked to keep what was written."""
    before = contents(stopped / "checkpoints")

    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        answer = flatout("run", "table.yaml", "--fresh")
        assert answer.code == 1
        assert "can't create a run in runs: No space left on device" in answer.err
        answer = flatout("run", "table.yaml")
        assert answer.code == 1
        assert "the same command to resume from the last" in answer.err
    assert [path.name for path in stopped.parent.iterdir()] == ["table-1"]
    assert before.items() <= contents(stopped / "checkpoints").items()
    assert flatout("run", "table.yaml").code == 0


def test_a_read_only_folder(disk: Path, flatout: Command, during_run: Callable[..., None]) -> None:
    runs = str(disk / "runs")
    during_run(signal_at(3, signal.SIGTERM))
    assert flatout("run", "table.yaml", "--runs", runs).code == 143
    during_run(None)
    before = contents(disk)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for more in ([], ["--fresh"]):
        answer = flatout("run", "table.yaml", "--runs", runs, *more)
        assert (answer.code, answer.out) == (1, "")
        assert "Read-only file system" in answer.err
    answer = flatout("predict", "last", "train.npz", "--runs", runs, "--out", str(disk / "p.csv"))
    assert answer.code == 1
    assert "Read-only file system" in answer.err
    assert flatout("evaluate", "last", "--runs", runs).code == 0, "reading needs no writing"
    assert flatout("runs", "show", "last", "--runs", runs).code == 0
    assert contents(disk) == before


def test_runs_below_a_file(desk: Path, flatout: Command) -> None:
    before = contents(desk)
    answer = flatout("run", "table.yaml", "--runs", "table.yaml/runs")
    assert answer.code == 1
    assert "can't create a run in table.yaml/runs: Not a directory; choose another folder with --runs" in answer.err
    assert contents(desk) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="permission bits don't bind root")
def test_a_folder_one_may_not_write(desk: Path, flatout: Command) -> None:
    (desk / "locked").mkdir(mode=0o555)
    answer = flatout("run", "table.yaml", "--runs", "locked/runs")
    assert answer.code == 1
    assert "Permission denied" in answer.err
