"""Arrays in, data out: every form they come in, and every way in which they can be wrong."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from flatout.base.errors import DataError
from flatout.data import arrays, digits

X = np.arange(60, dtype=np.float64).reshape(20, 3)
Y = np.arange(20) % 4


def test_types_are_those_that_training_uses() -> None:
    data = arrays(X, Y.astype(np.uint8), weight=np.ones(20, np.float16))
    assert {name: column.dtype for name, column in data.train.schema.items()} == {
        "x": torch.float32, "y": torch.int64, "weight": torch.float16,
    }  # fmt: skip
    assert data.classes == 4 and data.shapes_x() == (3,) and data.row_bytes == 12 + 8 + 2
    assert arrays(np.zeros((2, 4, 4), np.uint8)).train.schema["x"].dtype == torch.uint8
    assert arrays(np.zeros((2, 4), np.uint16)).train.schema["x"].dtype == torch.int32
    assert arrays(X, Y * 0.5).classes is None
    assert arrays([[1, 2], [3, 4]], [0, 0]).classes == 1


def test_labels_may_be_words() -> None:
    data = arrays(X[:4], np.array(["dog", "cat", "dog", "emu"]), validation=(X[:1], np.array(["emu"])))
    assert data.labels == ("cat", "dog", "emu") and data.classes == 3
    assert data.train.read(torch.arange(4))["y"].tolist() == [1, 0, 1, 2]
    with pytest.raises(DataError, match="row 0 has label 'yak'"):
        arrays(X[:1], np.array(["dog"]), validation=(X[:1], np.array(["yak"])))


def _write_idx(path: Path, array: np.ndarray[Any, Any]) -> Path:
    content = struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_every_file_format_gives_the_same_data(tmp_path: Path) -> None:
    x, y = np.arange(64, dtype=np.uint8).reshape(4, 4, 4), np.array([0, 1, 2, 1], np.uint8)
    np.savez(tmp_path / "both.npz", x=x, y=y)
    save_file({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, tmp_path / "both.safetensors")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    images = _write_idx(tmp_path / "t-images-idx3-ubyte.gz", x)
    labels = _write_idx(tmp_path / "t-labels-idx1-ubyte", y)
    reference = arrays(x, y).fingerprint()
    assert arrays(tmp_path / "both.npz").fingerprint() == reference
    assert arrays(str(tmp_path / "both.safetensors")).fingerprint() == reference
    assert arrays(tmp_path / "x.npy", tmp_path / "y.npy").fingerprint() == reference
    assert arrays(images, labels).fingerprint() == reference
    assert arrays({"x": images, "y": labels}).fingerprint() == reference
    assert arrays(torch.from_numpy(x), torch.from_numpy(y)).fingerprint() == reference
    x[3, 3, 3] += 1
    assert arrays(x, y).fingerprint() != reference


def test_hwc_becomes_chw_once() -> None:
    x = np.random.default_rng(0).integers(0, 255, (5, 8, 6, 3), dtype=np.uint8)
    data = arrays(x, layout="hwc")
    assert data.shapes_x() == (3, 8, 6)
    assert data.train.read(torch.tensor([2]))["x"][0].numpy().tolist() == x[2].transpose(2, 0, 1).tolist()


def test_holdout_is_stable_disjoint_and_whole() -> None:
    x = np.arange(100, dtype=np.float32)
    first, again, other = arrays(x, holdout=0.25), arrays(x, holdout=0.25), arrays(x, holdout=0.25, seed=1)
    assert first.validation is not None and again.validation is not None and other.validation is not None
    held = first.validation.read(torch.arange(25))["x"]
    assert len(first.train) == 75 and len(first.validation) == 25
    assert sorted(held.tolist() + first.train.read(torch.arange(75))["x"].tolist()) == x.tolist()
    assert held.equal(again.validation.read(torch.arange(25))["x"])
    assert not held.equal(other.validation.read(torch.arange(25))["x"])


def test_weights_follow_their_rows_into_the_holdout() -> None:
    x = np.arange(40, dtype=np.float32)
    data = arrays(x, holdout=0.5, draw=x + 1)
    assert isinstance(data.draw, torch.Tensor)
    assert data.draw.equal(data.train.read(torch.arange(20))["x"] + 1)


def test_large_content_is_sampled_yet_a_changed_end_is_seen() -> None:
    x = torch.zeros(10_000_000)
    before = arrays(x).train.fingerprint()
    x[-1] = 1
    assert arrays(x).train.fingerprint() != before


NAN = X.copy()
NAN[[3, 7], 1] = [np.nan, np.inf]
BAD: list[tuple[str, Any, str]] = [
    ("lengths", lambda: arrays(X, Y[:19]), "x has 20 rows, y has 19 rows"),
    ("extra column", lambda: arrays(X, Y, w=np.ones(3)), "w has 3 rows"),
    ("nan", lambda: arrays(NAN, Y), "column 'x' has NaN or infinite values in 2 of 20 rows, first in row 3"),
    ("nan in validation", lambda: arrays(X, Y, validation=(NAN, Y)), "'validation x'.*first in row 3"),
    ("negative label", lambda: arrays(X, Y - 1), "labels must be 0 to 2 .*row 0 has -1"),
    ("label too large", lambda: arrays(X, Y, classes=3), r"0 to 2 \(classes=3\); row 3 has 3, and 5 of 20"),
    ("classes of floats", lambda: arrays(X, Y * 1.0, classes=4), "one integer a row"),
    ("empty", lambda: arrays(np.zeros((0, 3))), r"empty: x has shape \[0, 3\]"),
    ("one number", lambda: arrays(np.float32(3)), "one number"),
    ("words", lambda: arrays(np.array(["a", "b"])), "must hold numbers"),
    ("ragged", lambda: arrays([[1.0], [1.0, 2.0]]), "not an array"),
    ("no x", lambda: arrays({"y": Y}), "needs a column 'x'"),
    ("holdout", lambda: arrays(X, Y, holdout=1.5), "between 0 and 1, got 1.5"),
    ("holdout of one", lambda: arrays(X[:1], holdout=0.5), "2 rows or more"),
    ("both", lambda: arrays(X, Y, holdout=0.5, validation=(X, Y)), "give one of them"),
    ("other shape", lambda: arrays(X, Y, validation=(X[:, :2], Y)), r"\[3\] in the training data and \[2\] in validation"),
    ("no targets", lambda: arrays(X, Y, validation={"x": X}), "validation has no column 'y'"),
    ("layout", lambda: arrays(X, layout="wh"), "'hw', 'hwc' or 'chw', got 'wh'"),
    ("layout dims", lambda: arrays(X, layout="hwc"), "4 dimensions"),
    ("normalize", lambda: arrays(X, normalize="automatic"), "'auto'"),
    ("means", lambda: arrays(X, normalize={"mean": [0, 0], "std": [1, 1]}), "2 means, and x has 3 channels"),
    ("std", lambda: arrays(X, normalize={"std": 0}), "above 0"),
    ("flip of rows", lambda: arrays(X, augment=["flip"]), "flip needs images"),
    ("crop too wide", lambda: arrays(np.zeros((2, 4, 4)), augment=[{"crop": 4}]), "crop: padding 4 .* 4 x 4"),
    ("draw", lambda: arrays(X, Y, draw="balance"), "did you mean 'balanced'"),
    ("balanced floats", lambda: arrays(X, Y * 1.0, draw="balanced"), "class labels"),
    ("few weights", lambda: arrays(X, Y, draw=np.ones(7)), "7 weights for 20"),
]


@pytest.mark.parametrize(("attempt", "message"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_what_is_wrong_is_said(attempt: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        attempt()


def test_bad_files_are_said(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("1,2")
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 torn")
    (tmp_path / "torn.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "torn.safetensors").write_bytes(b"\xff" * 20)
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "named.npz", images=X, labels=Y)
    cut = _write_idx(tmp_path / "cut.idx", np.zeros((5, 5)))
    cut.write_bytes(cut.read_bytes()[:-3])
    (tmp_path / "other.idx").write_bytes(b"nothing of the kind")
    (tmp_path / "cut.idx.gz").write_bytes(gzip.compress(b"\0" * 100)[:-9])
    for name, message in (
        ("absent.npy", "no file at .*absent.npy"), ("table.csv", "no known format; arrays are read from .npy"),
        (".", "is a folder"), ("torn.npz", "can't be read as npz"), ("torn.npy", "can't be read as npy"),
        ("torn.safetensors", "can't be read as safetensors"), ("objects.npy", "Python objects"),
        ("named.npz", "'x' for the inputs, got images, labels"), ("cut.idx", "cut off or damaged"),
        ("other.idx", "first four bytes"), ("cut.idx.gz", "can't be read to its end"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            arrays(tmp_path / name)


def test_digits_are_inside_the_package() -> None:
    data = digits()
    assert (len(data.train), data.classes, data.shapes_x()) == (1438, 10, (8, 8))
    assert data.validation is not None and len(data.validation) == 359
    target = data.target()
    assert target is not None and target.dtype == torch.int64 and target.shape == ()
    assert data.train.schema["x"].dtype == torch.uint8
    assert json.loads(json.dumps(data.describe()))["validation_rows"] == 359
    assert data.fingerprint() == digits().fingerprint() != digits(augment=["flip"]).fingerprint()


def test_fashion_mnist_reads_as_it_is_published(shared_data: Any) -> None:
    folder = shared_data("fashion-mnist")
    data = arrays(folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz", layout="hw", normalize="auto")
    assert (len(data.train), data.classes, data.shapes_x()) == (10_000, 10, (28, 28))
    assert torch.bincount(data.train.read(torch.arange(10_000))["y"]).tolist() == [1000] * 10


@pytest.mark.parametrize("given", [True, 1, [0.5], "yes"])
def test_a_normalize_that_is_none_is_said(given: Any) -> None:
    with pytest.raises(DataError, match="normalize is 'auto', or scale, mean and std; got"):
        arrays(torch.randn(8, 4), torch.randint(0, 2, (8,)), normalize=given)
