"""What was fitted, alone: without pyarrow and without the training data, raw rows become what evaluation feeds."""

from __future__ import annotations

import ast
import datetime as dt
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import Tensor

import flatout as fo
from flatout.base.errors import DataError
from flatout.data.data import Data
from flatout.data.feeds.evaluation import EvalFeed
from flatout.data.kept import recall, remember
from flatout.data.specs import parse_data

ROOT = Path(__file__).parent.parent.parent
ALONE = """
import json, pickle, sys
sys.modules["pyarrow"] = None
from flatout.data.fitted import Fitted
folder = sys.argv[1]
kinds = json.load(open(folder + "/fitted.json"))
raw = pickle.load(open(folder + "/raw.pickle", "rb"))
batches = {}
for kind, written in kinds.items():
    fitted = Fitted.from_json(written)
    batches[kind] = fitted.device(fitted.rows(raw[kind]))
pickle.dump(batches, open(folder + "/batches.pickle", "wb"))
"""


def fed(data: Data) -> dict[str, Tensor]:
    """All rows of the validation part as one batch, as evaluation feeds it."""
    assert data.validation is not None
    (batch,) = EvalFeed(data.validation, data.prepare, len(data.validation), "cpu")
    return batch


def check_equal(found: dict[str, Tensor], wanted: dict[str, Tensor], kind: str = "") -> None:
    """Bit for bit; y is no input."""
    names = sorted(set(wanted) - {"y"})
    assert sorted(set(found) - {"y"}) == names, kind
    for name in names:
        assert (found[name].dtype, found[name].shape) == (wanted[name].dtype, wanted[name].shape), (kind, name)
        assert torch.equal(found[name].contiguous().view(torch.uint8), wanted[name].contiguous().view(torch.uint8)), (
            kind,
            name,
        )


# ---- tables ----

PEOPLE = {
    "age": [39, 50, None, 28, 61, 33] * 5,
    "pay": [1.5, 2.25, 1e30, None, -3.0, 0.1] * 5,
    "job": ["cook", "clerk", None, "nurse", "cook", "pilot"] * 5,
    "zip": ["007", "7", "A7", "12", "007", "7"] * 5,
    "since": [dt.date(2020, 1, day) for day in range(1, 31)],
    "answer": ["yes", "no", "yes", "no", "no", "yes"] * 5,
}
OTHERS: dict[str, list[Any]] = {
    "age": [41, None, 2.5], "pay": [None, 7.0, 0.3], "job": ["astronaut", "cook", None], "zip": ["7", "007", "x"],
    "since": [dt.date(2024, 2, 29), None, dt.date(1999, 12, 31)], "answer": ["no", "yes", "no"],
}  # fmt: skip


@pytest.fixture
def people(tmp_path: Path) -> Data:
    pq.write_table(pa.table(PEOPLE), tmp_path / "people.parquet")
    pq.write_table(pa.table(OTHERS), tmp_path / "others.parquet")
    return fo.data.table(
        tmp_path / "people.parquet", label="answer", validation=str(tmp_path / "others.parquet"), onehot=2,
        steps={"zip": [{"hash": 9}], "pay": ["log"], "job": ["target_encode"]},
    )  # fmt: skip


def test_the_signature_of_a_table(people: Data) -> None:
    signature = people.fitted.signature
    assert [(one.name, one.kind) for one in signature.inputs] == [
        ("age", "number"), ("pay", "number"), ("job", "category"), ("zip", "category"), ("since", "date"),
    ]  # fmt: skip
    assert signature.classes == ("no", "yes") and {*signature.columns} == {"x", "categories"}


def test_rows_of_a_table_as_dicts(people: Data) -> None:
    raw = [dict(zip(OTHERS, row, strict=True)) for row in zip(*OTHERS.values(), strict=True)]
    check_equal(people.fitted.device(people.fitted.rows(raw)), fed(people))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"age": [1.0, "old", 2.0]}, "column 'age' holds numbers; row 1 has 'old'"),
        ({"pay": [1.0, 2.0, 1e300]}, r"row 2: column 'pay' is 1e\+300, too large for float32"),
        ({"since": ["2020-01-01", None, "soon"]}, "row 2: column 'since' has 'soon', which is no date in ISO 8601"),
        ({"job": ["cook", {}, None]}, r"row 1: column 'job': \{\} can't be a category"),
        ({"job": "cook"}, "column 'job' is a list or an array, one value a row, got 'cook'"),
        ({"job": ["cook"]}, "columns differ in length: .*job has 1"),
    ],
)
def test_bad_rows_of_a_table_are_named(people: Data, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        people.fitted.rows({**OTHERS, **change})


def test_rows_of_a_table_that_lack_a_value_are_named(people: Data) -> None:
    rows = [{name: column[place] for name, column in OTHERS.items()} for place in range(3)]
    del rows[1]["job"]
    with pytest.raises(DataError, match="row 1 has no 'job'"):
        people.fitted.rows(rows)
    with pytest.raises(DataError, match="no column 'age'"):
        people.fitted.rows({"job": ["cook"]})
    with pytest.raises(DataError, match="columns by name"):
        people.fitted.rows([[39, "cook"]])


# ---- photos ----


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for number in range(12):
        folder = tmp_path / "photos" / ("train" if number < 6 else "val") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = Image.fromarray(random.integers(0, 256, (90 + 11 * number, 140 - 7 * number, 3), dtype=np.uint8))
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8  # how the camera was held
        kind = ("jpg", "png", "webp")[number % 3]
        (pixels.convert("L") if number == 9 else pixels).save(folder / f"{number:02}.{kind}", exif=exif.tobytes())
    return tmp_path / "photos"


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / "val").glob("*/*"))]


def photo_data(folder: Path) -> Data:
    return fo.data.images(folder, size=24, normalize="auto", augment=["random_resized_crop", "flip"])


def test_photos_that_can_not_be_read_are_named(photos: Path) -> None:
    fitted = photo_data(photos).fitted
    good = contents(photos)
    bads: list[tuple[Any, str]] = [
        (good[0][: len(good[0]) // 2], "row 1: the photo can't be decoded"),
        (b"hello", "row 1: the photo is text, not an image"),
        ("a/path.jpg", "row 1: a photo is the bytes of its file"),
        (np.zeros((4, 4)), r"row 1: a photo is uint8 \[height, width, 3\].*got float64 \[4, 4\]"),
    ]
    for bad, said in bads:
        with pytest.raises(DataError, match=said):
            fitted.rows([good[1], bad])
    with pytest.raises(DataError, match="expected a list of photos"):
        fitted.rows(good[0])
    assert fitted.signature.classes == ("a", "b") and fitted.signature.columns["x"].shape == (3, 24, 24)


# ---- text and sequences ----

WORDS = "to be or not to be, that is the question. " * 12
LINES = [{"said": "a horse", "who": "kate"}, {"said": "my kingdom", "who": "rick"}, {"said": "for a", "who": "kate"}] * 4


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([WORDS], trainer)
    made.save(str(tmp_path / "words.json"))
    return tmp_path / "words.json"


@pytest.fixture
def words(tmp_path: Path) -> Path:
    (tmp_path / "words.txt").write_text(WORDS)
    return tmp_path / "words.txt"


def said(tmp_path: Path, **options: Any) -> Data:
    for name, lines in (("lines", LINES), ("more", LINES[1:3])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    more = {"validation": str(tmp_path / "more.jsonl"), "field": "said", "label": "who", "pad": 3, **options}
    return fo.data.sequences(str(tmp_path / "lines.jsonl"), **more)


def windows(text: str, window: int) -> list[str]:
    return [text[start : start + window] for start in range(0, len(text) - window, window)]


def test_tokens_that_a_model_does_not_know_are_named(words: Path, tmp_path: Path) -> None:
    text = fo.data.text(words, window=8).fitted
    with pytest.raises(DataError, match=r"row 1: the training text has no 'Q' \(character 2\)"):
        text.rows(["to be or", "toQbe or"])
    with pytest.raises(DataError, match="row 1 has 3 tokens and row 0 has 5"):
        text.rows(["to be", "not"])
    with pytest.raises(DataError, match=r"column 'x': token ids are 0 to .*; row 1, token 2 has 99"):
        text.rows([[0, 1, 2], [3, 4, 99]])
    with pytest.raises(DataError, match="a row of x is 9 tokens, and the model was trained on 8 at most"):
        text.rows(["to be, to"])
    assert text.rows("to be")["x"].shape == (1, 5) and text.signature.inputs[0].kind == "text"
    lines = said(tmp_path).fitted
    with pytest.raises(DataError, match="row 1, token 0: token ids are 0 to 255, got 256"):
        lines.rows([[1, 2], [256]])
    with pytest.raises(DataError, match="row 1: no tokens in it"):
        lines.rows([[1, 2], []])
    with pytest.raises(DataError, match=r"a row of x is 11 tokens \(row 0\), and the model was trained on 10 at most"):
        lines.rows(["my kingdoms"])
    ids = fo.data.sequences([[1, 2], [3]], [0, 1]).fitted
    with pytest.raises(DataError, match="trained on token ids, and no tokenizer came with them"):
        ids.rows(["a", "b"])


# ---- arrays and datasets ----


def array_data() -> tuple[dict[str, Any], Data]:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (20, 6, 5, 3), dtype=np.uint8), np.array(["up", "down"] * 10)
    other = random.normal(size=(20, 4))
    held = {"x": x[:7], "y": y[:7], "other": other[:7]}
    columns = {"x": x, "y": y, "other": other}
    return held, fo.data.arrays(columns, validation=held, layout="hwc", normalize="auto", augment=["flip"])


class Waves(torch.utils.data.Dataset[Any]):
    classes = ("low", "high")

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((2, 3), float(index)), index % 2


def test_arrays_that_do_not_fit_are_named() -> None:
    held, data = array_data()
    fitted = data.fitted
    rows = fitted.rows(held)
    assert rows["y"].tolist() == [1, 0, 1, 0, 1, 0, 1] and rows["x"].shape == (7, 3, 6, 5)
    assert torch.equal(fitted.rows(rows["x"])["x"], rows["x"]), "rows in the model's own layout stay as they are"
    strange = held["other"].copy()
    strange[3, 1] = np.nan
    changes: list[tuple[dict[str, Any], str]] = [
        ({"x": held["x"][:, :5]}, r"a row of x is \[5, 5, 3\], and \[6, 5, 3\] in what the model was trained on"),
        ({"other": strange}, "column 'other' has NaN or infinite values in 1 of 7 rows, first in row 3"),
        ({"other": held["other"][:2]}, "columns differ in length"),
        ({"y": ["up", "sideways"] * 3 + ["up"]}, "y: row 1 has label 'sideways', which no training row has"),
        ({"x": [["a"]]}, "column 'x' must hold numbers"),
    ]
    for change, said in changes:
        with pytest.raises(DataError, match=said):
            fitted.rows({**held, **change})
    inputs = {one.name: one for one in fitted.signature.inputs}
    assert (inputs["x"].dtype, inputs["x"].shape, inputs["other"].kind) == ("uint8", (6, 5, 3), "array")


def test_a_tensor_keeps_its_gradient() -> None:
    data = fo.data.arrays(np.ones((4, 2), "float32"), normalize={"mean": 1.0, "std": 2.0})
    x = torch.zeros(3, 2, requires_grad=True)
    data.fitted.device(data.fitted.rows(x))["x"].sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[0.5, 0.5]] * 3


# ---- all of them, in a process of their own ----


def test_every_kind_alone_makes_what_evaluation_feeds(
    people: Data, photos: Path, words: Path, tokenizer: Path, tmp_path: Path
) -> None:
    import tokenizers

    held, arrays = array_data()
    (tmp_path / "ids.bin").write_bytes(np.arange(60, dtype=np.uint16).tobytes())
    (tmp_path / "stories.jsonl").write_text("\n".join(json.dumps({"text": "to be or not"}) for _ in range(20)))
    subwords = fo.data.text(words, window=8, tokenizer=tokenizer, cache=tmp_path / "cache")
    decode = tokenizers.Tokenizer.from_file(str(tokenizer)).decode
    held_out = WORDS[len(WORDS) - int(len(WORDS) * 0.1) :]
    cases: dict[str, tuple[Data, Any]] = {
        "table": (people, {name: column for name, column in OTHERS.items() if name != "answer"}),
        "photos": (photo_data(photos), contents(photos)),
        "characters": (fo.data.text(words, window=16), windows(held_out, 16)),
        "bytes": (fo.data.text(words, window=16, encoding="bytes"), windows(held_out, 16)),
        "tokenizer": (subwords, [decode(row) for row in fed(subwords)["x"].tolist()]),
        "token files": (fo.data.text(tmp_path / "ids.bin", window=4), [[54, 55, 56, 57]]),
        "documents": (
            fo.data.text(tmp_path / "stories.jsonl", window=12, boundaries="attention", holdout=0.2),
            ["to be or not"] * 3,
        ),
        "sequences": (said(tmp_path), [line["said"] for line in LINES[1:3]]),
        "sequences of subwords": (said(tmp_path, tokenizer=tokenizer), [line["said"] for line in LINES[1:3]]),
        "arrays": (arrays, {name: column for name, column in held.items() if name != "y"}),
        "dataset": (
            fo.data.dataset(Waves(), validation=Waves(), workers=0, processes=False),
            torch.stack([Waves()[index][0] for index in range(6)]),
        ),
    }
    written = {kind: data.fitted.to_json() for kind, (data, _) in cases.items()}
    (tmp_path / "fitted.json").write_text(json.dumps(written, allow_nan=False))
    (tmp_path / "raw.pickle").write_bytes(pickle.dumps({kind: raw for kind, (_, raw) in cases.items()}))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], check=True, env=environment, cwd=tmp_path)
    found = pickle.loads((tmp_path / "batches.pickle").read_bytes())
    for kind, (data, _) in cases.items():
        check_equal(found[kind], fed(data), kind)


# ---- runs of earlier versions ----

EARLIER = json.loads((Path(__file__).parent / "earlier_data.json").read_text())
"""What runs kept in data.json before there was one form for all kinds of data, and the data of their recipes."""


@pytest.fixture
def earlier_files(tmp_path: Path) -> Path:
    """The files that those runs were trained on."""
    rows = [f"{20 + i},{'cook' if i % 3 else 'clerk'},2020-01-{i + 1:02},{'yes' if i % 2 else 'no'}" for i in range(12)]
    (tmp_path / "people.csv").write_text("\n".join(["age,job,since,answer", *rows, ""]))
    np.savez(tmp_path / "words.npz", x=np.arange(48, dtype=np.uint8).reshape(8, 2, 3, 1), y=np.array(["up", "down"] * 4))
    (tmp_path / "text.txt").write_text("to be or not to be, " * 10)
    lines = [{"said": "a horse", "who": "kate"}, {"said": "my kingdom", "who": "rick"}, {"said": "for a", "who": "kate"}]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, lines * 3)))
    for number in range(4):
        folder = tmp_path / "photos" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20 + number, 30, 3), 40 * number, np.uint8)).save(folder / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("kind", EARLIER)
def test_runs_of_earlier_versions_prepare_rows_as_before(kind: str, earlier_files: Path, tmp_path: Path) -> None:
    asked, kept = EARLIER[kind]["asked"], EARLIER[kind]["kept"]
    data = parse_data(asked, earlier_files, tmp_path / "cache")
    found = recall(kept, asked, earlier_files)
    read, wanted = (json.loads(json.dumps(one.fitted.to_json())) for one in (found, data))
    if kind == "table":  # notes are sentences for people: new versions may word them otherwise
        read["host"].pop("notes"), wanted["host"].pop("notes")
    assert (read["host"], read["device"]) == (wanted["host"], wanted["device"])
    assert {name: read["reading"][name] for name in wanted["reading"]} == wanted["reading"]
    if kind != "photos":  # their files are written by another library each time
        assert data.fingerprint() == kept["fingerprint"], "else no earlier run could be resumed"
    again = recall(json.loads(json.dumps(remember(data))))
    assert json.loads(json.dumps(again.fitted.to_json())) == json.loads(json.dumps(data.fitted.to_json()))
    assert again.target() == found.target() == data.target() and again.shapes_x() == found.shapes_x() == data.shapes_x()


# ---- where it stands ----

ABOVE = (
    "sources",
    "feeds",
    "cache",
    "workers",
    "data",
    "kept",
    "others",
    "specs",
)  # of all of data: what it may not reach, at any depth


def test_it_stands_below_the_sources() -> None:
    folder = ROOT / "src" / "flatout" / "data"
    names = {".".join(path.relative_to(folder).with_suffix("").parts): path for path in folder.rglob("*.py")}
    todo = [name for name in names if name.startswith("fitted.")]
    reached: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            nodes = [node for node in ast.walk(ast.parse(names[name].read_text())) if isinstance(node, ast.ImportFrom)]
            imported = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names} | {
                node.module for node in nodes
            }
            todo += [other for other in names if f"flatout.data.{other}" in imported]
    assert not {name for name in reached if name.split(".")[0] in ABOVE}
