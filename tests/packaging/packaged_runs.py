"""Small runs of every kind of data, the packages they were exported to, and rows to ask them about."""

from __future__ import annotations

import datetime as dt
import io
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from PIL import Image
from torch import Tensor, nn

import flatout as fo
from flatout import __version__
from flatout.packaging.folder import MANIFEST, write_manifest
from flatout.packaging.package import Package, open_package

MLP = {"mlp": {"hidden": [8]}}


@dataclass(frozen=True)
class Exported:
    """`rows` gives the first n raw rows; `file` are the same rows as a file, if that kind of data has files."""

    run: fo.Run
    path: Path
    rows: Callable[[int], Any]
    file: str | None = None

    def package(self) -> Package:
        return open_package(self.path)

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.path, to)
        return to


def trained(folder: Path, data: Any, model: Any = MLP, objective: Any = "classify", **more: Any) -> fo.Run:
    asked: dict[str, Any] = {
        "batch": 8,
        "lr": 1e-2,
        "budget": "3 steps",
        "evaluate": None,
        "settings": {"device": "cpu"},
        **more,
    }
    recipe = fo.Recipe(data=data, model=model, objective=objective, **asked)
    return fo.run(recipe, runs=folder / "runs", cache=None, planning="off")


def same(found: Mapping[str, Any], wanted: Mapping[str, Any], rows: slice = slice(None), atol: float = 1e-5) -> None:
    """Every column of `found` is that of `wanted`; numbers nearly, classes exactly."""
    assert found
    for name, column in found.items():
        expected = wanted[name][rows]
        assert len(column) == len(expected), name
        if isinstance(column, Tensor) and column.is_floating_point():
            torch.testing.assert_close(column, torch.as_tensor(expected), rtol=1e-5, atol=atol, equal_nan=True)
        else:
            assert np.array_equal(np.asarray(column), np.asarray(expected)), name


def reseal(folder: Path) -> None:
    """Write the manifest anew, as somebody would who wants a changed package to be accepted."""
    (folder / MANIFEST).unlink(missing_ok=True)
    write_manifest(folder, __version__)


def change_json(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """`change` edits the parsed content in place, or returns other content."""
    content = json.loads((folder / name).read_text())
    made = change(content)
    (folder / name).write_text(json.dumps(content if made is None else made))
    reseal(folder)


# ---- the kinds ----


def _people(rows: int = 60) -> dict[str, list[Any]]:
    random = np.random.default_rng(0)
    ages, hours, codes = (random.integers(*ends, rows).tolist() for ends in ((20, 70), (0, 20_000), (0, 4)))
    jobs, begin = random.choice(["cook", "clerk", "nurse"], rows).tolist(), dt.datetime(2023, 1, 1)
    return {
        "age": [None if row % 7 == 3 else float(age) for row, age in enumerate(ages)],
        "job": [None if row % 9 == 4 else job for row, job in enumerate(jobs)],
        "since": [None if row % 11 == 5 else begin + dt.timedelta(hours=hour) for row, hour in enumerate(hours)],
        "code": codes,
    }


def _table(folder: Path, label: str, values: Callable[[dict[str, list[Any]]], list[Any]], objective: str, **more: Any) -> Any:
    people = _people()
    file = folder / f"{label}.parquet"
    parquet.write_table(pa.table({**people, label: values(people)}), file)
    run = trained(folder, {"table": str(file), "label": label, **more}, objective=objective)
    others = {**people, "job": ["astronaut", *people["job"][1:]]}
    other_file = folder / f"other-{label}.parquet"
    parquet.write_table(pa.table(others), other_file)
    return run, (lambda rows: {name: column[:rows] for name, column in others.items()}), str(other_file)


def classes_table(folder: Path) -> Any:
    return _table(folder, "mood", lambda some: [("good", "bad", "so so")[code % 3] for code in some["code"]], "classify")


def numbers_table(folder: Path) -> Any:
    return _table(folder, "pay", lambda some: [900.0 + 100 * code for code in some["code"]], "regress", target="number")


def binary_table(folder: Path) -> Any:
    return _table(folder, "left", lambda some: ["yes" if code > 1 else "no" for code in some["code"]], "binary")


def photos(folder: Path) -> Any:
    random = np.random.default_rng(0)
    kinds = ("jpeg", "png", "webp")
    for place in range(12):
        below = folder / f"photos/{'ab'[place % 2]}"
        below.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (20 + place, 34 - place, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(below / f"{place:02}.{kinds[place % 3]}")
    run = trained(folder, fo.data.images(str(folder / "photos"), size=16), {"convnet": {"channels": [4], "hidden": 8}})
    files = [path.read_bytes() for path in sorted((folder / "photos").glob("*/*"))]
    assert len({Image.open(io.BytesIO(file)).size for file in files[:5]}) == 5
    return run, (lambda rows: files[:rows]), str(folder / "photos")


def chars(folder: Path) -> Any:
    return _text(folder, "to be or not to be ", {})


def in_bytes(folder: Path) -> Any:
    return _text(folder, "tö bé ör nöt ", {"encoding": "bytes"})


def _text(folder: Path, words: str, more: dict[str, Any]) -> Any:
    file = folder / "words.txt"
    file.write_text(words * 40)
    tiny = {"gpt": {"layers": 1, "heads": 1, "width": 8}}
    run = trained(folder, fo.data.text(str(file), window=8, **more), tiny, "next_token", batch=4)
    other = folder / "other.txt"
    other.write_text(words * 3)
    text = words * 3
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    if more:  # a window may begin inside of a character
        return run, (lambda rows: ids[: 8 * rows].reshape(rows, 8)), str(other)
    return run, (lambda rows: [text[begin : begin + 8] for begin in range(0, 8 * rows, 8)]), str(other)


class MeanOfTokens(nn.Module):
    """Of rows of any length: the padding is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        seen = (torch.arange(x.shape[1], device=x.device) < length[:, None]).unsqueeze(-1)
        logits: Tensor = self.head((self.tokens(x) * seen).sum(1) / length[:, None])
        return logits


def sequences(folder: Path) -> Any:
    rows = [[1, 2, 3], [4, 5], [6, 1, 2, 3, 4], [2], [8, 8, 1, 7]] * 4
    data = fo.data.sequences(rows, y=[0, 1, 0, 1, 1] * 4, vocabulary=9)
    run = trained(folder, data, MeanOfTokens, inputs=["x", "length"], batch=4)
    return run, (lambda count: rows[:count]), None


def images(folder: Path) -> Any:
    x = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    data = fo.data.arrays(x, np.arange(20) % 3, normalize="auto", layout="hwc")
    np.savez(folder / "images.npz", x=x)
    run = trained(folder, data, {"convnet": {"channels": [4], "hidden": 8}})
    return run, (lambda rows: x[:rows]), str(folder / "images.npz")


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 3), nn.Embedding(4, 3)

    def forward(self, x: Tensor, kind: Tensor) -> dict[str, Tensor]:
        both = self.a(x) + self.b(kind)
        return {"scores": both, "most": both.amax(1), "place": both.argmax(1)}


def scores_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    scores = model(batch["x"], batch["kind"])["scores"]
    return nn.functional.cross_entropy(scores, batch["y"], reduction="sum"), len(scores)


def several(folder: Path) -> Any:
    random = np.random.default_rng(0)
    x, kind = random.normal(size=(24, 5)).astype(np.float32) * 30 + 5, random.integers(0, 4, 24)
    data = fo.data.arrays(x, np.arange(24) % 3, kind=kind, normalize="auto")
    run = trained(folder, data, TwoInputs, scores_loss, inputs=["x", "kind"])
    np.savez(folder / "several.npz", x=x, kind=kind)
    return run, (lambda rows: {"x": x[:rows], "kind": kind[:rows]}), str(folder / "several.npz")


def labels(folder: Path) -> Any:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(24, 5)).astype(np.float32), random.integers(0, 2, (24, 3))
    run = trained(folder, fo.data.arrays(x, y), objective="multilabel")
    return run, (lambda rows: x[:rows]), None


KINDS: dict[str, Callable[[Path], Any]] = {
    made.__name__: made
    for made in (classes_table, numbers_table, binary_table, photos, chars, in_bytes, sequences, images, several, labels)
}
