"""export, why, explain and predict of packages as people and programs use them: what is printed, written, and how they end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
import torch
from packaged_runs import Exported, reseal

import flatout as fo
from flatout.base.errors import UsageError
from flatout.packaging import export as exporting
from flatout.packaging import package as packages
from flatout.packaging.capture import Captured
from flatout.packaging.runtimes.choice import RUNTIMES

QUICK = tuple(kind for kind in RUNTIMES if not kind.needs_compiler)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def table(exported: Callable[[str], Exported]) -> Exported:
    return exported("classes_table")


@pytest.fixture
def converted(table: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph and the ONNX file are those of the package that is there, because making them takes seconds."""
    package = table.package()

    def copied(folder: Path, *given: Any) -> Path:
        return Path(shutil.copy(table.path / "model.onnx", folder))

    monkeypatch.setattr(exporting, "_program", lambda *given: Captured(package.program, package.weights, ()))
    monkeypatch.setattr(exporting, "_write_onnx", copied)


def numbers(text: str) -> Any:
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_export_says_what_was_written_and_how_it_was_checked(
    command: Run, table: Exported, tmp_path: Path, converted: None
) -> None:
    code, out, err = command("export", table.run.path, "--out", tmp_path / "package")
    assert code == 0, err
    first, *lines = out.splitlines()
    assert first.startswith(f"wrote {tmp_path / 'package'}: ") and "60 samples" in first, first
    assert any(line.startswith("  eager: same outputs as the run, largest difference") for line in lines)
    assert any(line.startswith("  onnxruntime: same outputs") for line in lines)
    assert any("fastest here for one row" in line for line in lines)
    assert "ONNX" in err and not out.startswith("reading"), "progress is on stderr"
    code, out, err = command("export", table.run.path, "--out", tmp_path / "package")
    assert (code, out) == (2, "") and "exists already" in err and "--out" in err


def test_export_as_json(command: Run, table: Exported, tmp_path: Path, converted: None) -> None:
    code, out, err = command("export", table.run.path, "--out", tmp_path / "package", "--json")
    assert code == 0, err
    found = numbers(out)
    assert found["package"] == str(tmp_path / "package") and len(found["hash"]) == 16
    assert [one["name"] for one in found["runtimes"]] == ["eager", "onnxruntime"]
    assert fo.load(found["package"]).folder.hash == found["hash"]


def test_export_of_one_onnx_file(command: Run, table: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    package = table.package()
    monkeypatch.setattr(exporting, "_captured", lambda *given: Captured(package.program, package.weights, ()))

    out_file = tmp_path / "model.onnx"
    code, out, err = command("export", table.run.path, "--to", "onnx", "--out", out_file)
    assert code == 0, err
    assert out.startswith(f"wrote {out_file}: ") and "same outputs as the run" in out
    session = onnxruntime.InferenceSession(str(out_file), providers=["CPUExecutionProvider"])
    assert {one.name for one in session.get_inputs()} == {"age", "job", "since", "code"}
    code, out, err = command("export", table.run.path, "--to", "onnx", "--out", out_file, "--json")
    assert code == 2 and "exists already" in err
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["model.onnx"]


def test_an_onnx_file_as_json(command: Run, table: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(run: Any, target: Path, **more: Any) -> list[str]:
        target.write_bytes(b"123")
        return ["a note"]

    monkeypatch.setattr(exporting, "export_onnx", written)
    code, out, err = command("export", table.run.path, "--to", "onnx", "--out", tmp_path / "model.onnx", "--json")
    assert code == 0, err
    assert numbers(out) == {"file": str(tmp_path / "model.onnx"), "bytes": 3, "notes": ["a note"]}


def test_mistakes_of_export(command: Run, table: Exported, tmp_path: Path) -> None:
    code, _, err = command("export", table.run.path, "--to", "tflite")
    assert code == 2 and "tflite" in err and "onnx" in err
    code, _, err = command("export", "nowhere", "--runs", tmp_path)
    assert code != 0 and "nowhere" in err and "Traceback" not in err
    code, _, err = command("export", table.path, "--out", tmp_path / "again")
    assert code != 0 and "Traceback" not in err and "run" in err


def test_why_walks_back_to_the_run(command: Run, table: Exported, tmp_path: Path) -> None:
    code, out, err = command("why", table.path)
    assert code == 0, err
    words = ("package", "checked", "run", "result", "plan", "recipe", "data", "versions", table.run.name, "60 training rows")
    assert [word for word in words if word not in out] == []
    assert all(len(line) <= 100 for line in out.splitlines() if not line.startswith(("Where", "run", "package")))  # paths
    found = numbers(command("why", table.path, "--json")[1])
    assert found["run_exists"] is True and found["card"]["run"]["name"] == table.run.name
    moved = table.run.path.with_name("moved")
    table.run.path.rename(moved)
    try:
        code, out, _ = command("why", table.path)
        assert code == 0 and "no longer at" in out
        assert numbers(command("why", table.path, "--json")[1])["run_exists"] is False
    finally:
        moved.rename(table.run.path)


def test_why_of_something_else(command: Run, table: Exported, tmp_path: Path) -> None:
    for path in (table.run.path, tmp_path, tmp_path / "nowhere"):
        code, out, err = command("why", path)
        assert (code, out) == (1, "") and "is no package" in err and "flatout export" in err


def test_explain_shows_runtimes_by_batch_size(command: Run, table: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "RUNTIMES", QUICK)
    code, out, err = command("explain", table.path)
    assert code == 0, err
    assert str(table.path) in out and "2 runtimes give the run's outputs on 60 samples" in out
    for word in ("batch", "eager", "onnxruntime", "taken", "rows/s", "of ceiling"):
        assert word in out, word
    again, _, said = command("explain", table.path)
    assert again == 0 and "comparing" not in said, "measured once, then kept"
    found = numbers(command("explain", table.path, "--json")[1])
    assert [one["name"] for one in found["runtimes"]] == ["eager", "onnxruntime"]
    assert [row["batch"] for row in found["batches"]] == [1, 2]


def test_predict_writes_a_table(command: Run, table: Exported, tmp_path: Path) -> None:
    assert table.file is not None
    wanted = fo.predict(table.run, table.file, device="cpu")
    for name in ("p.csv", "p.parquet"):
        code, out, err = command("predict", table.path, table.file, "--out", tmp_path / name)
        assert code == 0, err
        assert "wrote 60 rows" in out and "class" in out and name in out
        found = csv.read_csv(tmp_path / name) if name == "p.csv" else parquet.read_table(tmp_path / name)
        assert found["class"].to_pylist() == list(wanted["class"])
        probability = torch.as_tensor(wanted["probability"]).numpy()
        np.testing.assert_allclose(found["probability"].to_numpy(), probability, rtol=1e-4, atol=1e-6)


def test_predict_with_a_damaged_package_writes_nothing(command: Run, table: Exported, tmp_path: Path) -> None:
    folder = table.copy(tmp_path / "package")
    content = bytearray((folder / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "weights.safetensors").write_bytes(content)
    for again in range(2):
        code, out, err = command("predict", folder, table.file, "--out", tmp_path / "p.csv")
        assert (code, out) == (1, "") and ("weights.safetensors" in err if not again else "run's outputs" in err), err
        assert not (tmp_path / "p.csv").exists() and "Traceback" not in err
        content[-1] ^= 65  # another number, in a package that is sealed again
        (folder / "weights.safetensors").write_bytes(content)
        reseal(folder)


def test_predict_with_columns_missing_names_them(command: Run, table: Exported, tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("age,since\n33,2024-01-01T00:00:00\n")
    for which in (table.path, table.run.path):
        code, out, err = command("predict", which, tmp_path / "few.csv", "--out", tmp_path / "p.csv")
        assert (code, out) == (1, "") and "'job'" in err and not (tmp_path / "p.csv").exists(), err


def test_load_gives_a_package_or_a_run(table: Exported) -> None:
    assert isinstance(fo.load(table.path), packages.Package)
    assert isinstance(fo.load(table.run.path), fo.Run)


def test_a_package_of_text_continues_it_greedily(exported: Callable[[str], Exported], command: Any) -> None:
    made = exported("chars")
    package, said = made.package(), list[str]()
    texts = made.run.generate(["to be", "or"], tokens=20, greedy=True, device="cpu", say=said.append)
    assert package.generate(["to be", "or"], tokens=20) == texts and "8 tokens" in said[0]
    assert "".join(package.generate("to be", tokens=20, stream=True)) == texts[0]
    code, out, err = command("generate", made.path, "to be", "--tokens", 20, "--device", "cpu")
    assert code == 0 and out == f"to be{texts[0]}\n" and "8 tokens" in err
    code, _, err = command("generate", made.path, "to be", "--temperature", "1")
    assert code == 2 and "--temperature" in err
    with pytest.raises(UsageError, match="classify"):
        exported("classes_table").package().generate("to be")
