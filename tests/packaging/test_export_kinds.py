"""A package of every kind of run answers as the run does: one row, several, a file, and without the code and the data."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from packaged_runs import KINDS, Exported, change_json, same

import flatout as fo
from flatout.base.errors import DataError
from flatout.packaging import export as exporting
from flatout.packaging.capture import Captured
from flatout.packaging.package import open_package

SOURCES = Path(__file__).parent.parent.parent / "src"


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_answers_as_its_run(kind: str, exported: Callable[[str], Exported]) -> None:
    made = exported(kind)
    package = made.package()
    for rows in (1, 5):
        wanted = fo.predict(made.run, made.rows(rows), device="cpu", cache=None)
        found = package.predict(made.rows(rows))
        assert list(found) == list(wanted)
        same(found, wanted)
        model = fo.load(made.path).model()
        assert isinstance(model, torch.nn.Module) and not model.training
        same(model(made.rows(rows)), wanted)
    if made.file is not None:
        whole = fo.predict(made.run, made.file, device="cpu", cache=None)
        same(package.predict(made.file), whole)
        assert len(next(iter(whole.values()))) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_how_it_was_checked(kind: str, exported: Callable[[str], Exported]) -> None:
    card = exported(kind).package().card
    assert card["samples"]["rows"] > 0 and "made up" not in card["samples"]["origin"], card["samples"]
    for runtime in ("eager", "onnxruntime") if "model.onnx" in os.listdir(exported(kind).path) else ("eager",):
        assert card["parity"][runtime]["problem"] is None and card["parity"][runtime]["worst"] <= 1e-5
    assert card["code"] is None


def test_names_of_classes_are_in_the_answers(exported: Callable[[str], Exported]) -> None:
    made = exported("classes_table")
    assert set(made.package().predict(made.rows(30))["class"]) <= {"good", "bad", "so so"}
    assert made.package().folder.parsed("signature.json", dict)["classes"] == ["bad", "good", "so so"]


ELSEWHERE = """\
import sys
from pathlib import Path
import numpy as np
import flatout as fo
from flatout.base.errors import DataError
from flatout.packaging.package import open_package
for folder in sorted(Path("packages").iterdir()):
    given = np.load(f"rows/{folder.name}.npz", allow_pickle=True)["rows"].item()["rows"]
    found = fo.load(folder).predict(given)
    np.savez(f"{folder.name}.npz", **{name: np.asarray(column) for name, column in found.items()})
strange = [name for name in sys.modules if name in ("packaged_runs", "pytest")]
assert not strange, strange
"""


def test_a_package_needs_neither_data_nor_code(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    """In another process, where the run, its data and the classes of its model are not reachable."""
    kinds = ("classes_table", "photos", "chars", "sequences", "several")
    (tmp_path / "rows").mkdir()
    for kind in kinds:
        made = exported(kind)
        made.copy(tmp_path / "packages" / kind)
        np.savez(tmp_path / f"rows/{kind}.npz", rows=np.array({"rows": made.rows(5)}, dtype=object))
    hidden = [(exported(kind).path.parent, exported(kind).path.parent.with_name(f"{kind}-hidden")) for kind in kinds]
    for folder, aside in hidden:
        folder.rename(aside)
    try:
        environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        for folder, aside in hidden:
            aside.rename(folder)
    assert done.returncode == 0, done.stderr
    for kind in kinds:
        made = exported(kind)
        wanted = fo.predict(made.run, made.rows(5), device="cpu", cache=None)
        with np.load(tmp_path / f"{kind}.npz") as found:
            assert set(found) == set(wanted)
            same({n: torch.from_numpy(found[n]) if found[n].dtype.kind in "fiub" else found[n] for n in found}, wanted)


def test_without_the_data_samples_are_made_up_and_said(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    made = exported("classes_table")
    runs = tmp_path / "runs"
    shutil.copytree(made.run.path, runs / "gone")
    table = made.path.parent / "mood.parquet"
    table.rename(table.with_suffix(".hidden"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "_write_onnx", lambda *given: None)
        patch.setattr(exporting, "_program", lambda *given: Captured(made.package().program, made.package().weights, ()))
        try:
            done = exporting.export(fo.load("gone", runs=runs), tmp_path / "package")
        finally:
            table.with_suffix(".hidden").rename(table)
    assert any("made up at random" in note and "mood.parquet" in note for note in done.notes), done.notes
    same(done.package.predict(made.rows(5)), fo.predict(made.run, made.rows(5), device="cpu"))


@pytest.mark.parametrize("kind", ["classes_table", "several"])
def test_many_rows_are_answered_by_the_fastest_runtime(
    kind: str, exported: Callable[[str], Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are worth comparing the runtimes once; what was measured is kept, and damage to that costs time only."""
    made = exported(kind)
    some = made.rows(20)
    many = {name: list(column) * 205 for name, column in some.items()}
    wanted = fo.predict(made.run, many, device="cpu", cache=None)
    same(made.package().predict(many, cache=tmp_path / "kept"), wanted)
    (kept,) = (tmp_path / "kept").rglob("*.json")
    for content in (kept.read_text(), '{"format": 1, "runtimes": [{"name": "eager"}]}', "null"):
        kept.write_text(content)
        same(made.package().predict(many, cache=tmp_path / "kept"), wanted)


def test_rows_that_are_prepared_differently_are_not_answered(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    """Another version of a library may read the same values differently: the raw samples show it."""
    made = exported("classes_table")
    package = open_package(made.copy(tmp_path / "package"))
    package.check_preparation()
    change_json(package.path, "samples.json", lambda raw: raw["age"].__setitem__(0, 99.0))
    with pytest.raises(DataError, match="numeric"):
        open_package(package.path).check_preparation()


def test_a_text_may_be_shorter_than_a_window(exported: Callable[[str], Exported]) -> None:
    made = exported("chars")
    model, of_run = made.package().model(), made.run.model()
    for texts in (["to be"], ["t"], ["to", "be"]):
        same(model(texts), of_run.predict(texts))
