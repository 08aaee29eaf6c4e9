"""Tables from files to batches: kinds of columns, labels, splits, rows larger than memory, bad input, and real data."""

from __future__ import annotations

import datetime as dt
import json
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
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from flatout.base.errors import DataError, UsageError
from flatout.data.data import Data
from flatout.data.order.keyed import Keys
from flatout.data.source import ArraySource, Source
from flatout.data.sources.tables import encoding, row_files
from flatout.data.sources.tables.encoding import TableEncoder
from flatout.data.sources.tables.row_files import RowFiles, RowWriter, is_complete, rows_on_disk
from flatout.data.sources.tables.scan import scan
from flatout.data.sources.tables.table import table

ADULT = [
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race", "sex",
    "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
]  # fmt: skip


@pytest.fixture
def wrote(tmp_path: Path) -> Any:
    """`wrote({"a": [1, 2]})` -> the path of a Parquet file."""

    def write(columns: Any, name: str | None = None) -> Path:
        path = tmp_path / (name or f"{len(list(tmp_path.iterdir()))}.parquet")
        pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path)
        return path

    return write


def _all(source: Source | None) -> dict[str, Any]:
    assert source is not None
    return source.read(torch.arange(len(source)))


def _prepared(data: Data, source: Source | None) -> dict[str, Any]:
    batch = _all(source)
    none = torch.zeros(len(batch["y"]), dtype=torch.int64)
    for transform in data.prepare:
        batch = transform(batch, Keys(0, none, none))
    return batch


def _rows(count: int = 300, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "n": rng.normal(size=count),
        "id": np.arange(count),
        "kind": rng.choice(["u", "v", "w"], count),
        "y": rng.choice(["no", "yes"], count),
    }


# Kinds of columns


def test_columns_are_sorted_by_type_or_as_told(wrote: Any) -> None:
    columns = {
        "f": [0.5, 1.0, 1.5, 2.0],
        "i": [1, 2, 3, 4],
        "s": ["a", "b", "a", "b"],
        "t": [True, False, False, True],
        "d": [dt.date(2020, 1, day) for day in (1, 2, 3, 4)],
        "y": [0, 1, 0, 1],
    }
    path = wrote(columns)

    def used(**options: Any) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        parts = table(path, label="y", **{"min_count": 1, **options})
        return parts.host.codings.numeric, parts.host.codings.ids, parts.notes

    constant = "left out: the same value in every training row: 'd.year', 'd.month'"
    assert used() == (("f", "i", "d.day", "d.weekday"), ("s", "t"), (constant,))
    assert used(categorical=["i", "s"], drop="d")[:2] == (("f",), ("i", "s"))
    assert used(categorical=["i", "s"], drop="d")[2] == ("left out: neither numeric nor categorical names them: 't'",)
    assert used(numeric=["i"])[:2] == (("i",), ("s", "t"))
    assert used(numeric=["i", "t", "d"], categorical=[])[:2] == (("i", "t", "d.day", "d.weekday"), ())
    assert used(drop=["f", "d"], steps={"i": {"min_count": 1}})[:2] == ((), ("i", "s", "t"))


def test_columns_that_say_nothing_are_left_out_with_a_note(wrote: Any) -> None:
    empty = pa.nulls(6)
    columns = {
        "same": [7] * 6, "word": ["x"] * 6, "none": empty, "nan": [float("nan")] * 6, "lost": pa.nulls(6, pa.string()),
        "name": list("abcdef"), "some": [1.0, None] * 3, "n": range(6), "y": [0, 1] * 3,
    }  # fmt: skip
    data = parts = table(wrote(columns), label="y")
    assert parts.prepare[0].feature_names == ("n", "some=missing")
    assert parts.notes == (
        "left out: the same value in every training row: 'same', 'word'",
        "left out: no value in any training row: 'none', 'nan', 'lost'",
        "'name' left out: none of its 6 values occurs 2 times",
    )
    assert _prepared(data, data.train)["x"][:, 1].tolist() == [0, 1] * 3
    with pytest.raises(DataError, match=r"no column is left to learn from: left out: .*'same'"):
        table(wrote({"same": [7] * 6, "y": [0, 1] * 3}), label="y")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"label": "Y"}, DataError, "no column 'Y' for the label; known: id, kind, n, y"),
        ({"drop": ["idd"]}, DataError, "drop: the table has no column 'idd'; did you mean 'id'"),
        ({"numeric": ["nn"]}, DataError, "numeric: the table has no column 'nn'"),
        ({"numeric": ["kind"]}, DataError, "numeric: column 'kind' holds text"),
        ({"numeric": "n"}, UsageError, "numeric is 'auto' or a list of columns, got 'n'"),
        ({"numeric": ["n"], "categorical": ["n"]}, UsageError, "'n' .*both numeric and categorical"),
        ({"categorical": ["y"]}, UsageError, "categorical: column 'y' is not an input"),
        ({"split": "kind"}, DataError, "row 1: column 'kind' is '[uvw]'; expected train, validation or test"),
        ({"split": "parts"}, DataError, "split: the table has no column 'parts'"),
        ({"split": "kind", "holdout": 0.1}, UsageError, "leave out holdout"),
        ({"holdout": 0.1, "validation": "x.parquet"}, UsageError, "holdout and validation"),
        ({"holdout": 1.5}, UsageError, "holdout is the share of rows to validate on"),
        ({"draw": "weights"}, DataError, "draw: the table has no column 'weights'"),
        ({"draw": "n"}, DataError, r"row \d+: column 'n' holds weights, 0 or more; this row has -"),
        ({"target": "classes"}, UsageError, "target is one of auto, class, number"),
        ({"target": "number"}, DataError, "label 'y' is string, target='number' needs numbers"),
        ({"classes": 1}, DataError, "classes=1, .*'y' has 2: no, yes"),
        ({"classes": 5}, DataError, "classes=5, .* 2 values of 'y'"),
        ({"on_bad": "ignore"}, UsageError, "on_bad is 'error' or 'skip'"),
        ({"sql": "select 1"}, UsageError, "give one of them, not both"),
        ({"delimeter": ";"}, UsageError, "table has no option 'delimeter'; did you mean 'delimiter'"),
        ({"onehot": -1}, UsageError, "onehot is a whole number, 0 or more, got -1"),
    ],
)
def test_options_that_do_not_fit_are_said(wrote: Any, options: dict[str, Any], error: type[Exception], said: str) -> None:
    path = wrote(_rows())
    with pytest.raises(error, match=said):
        table(path, **{"label": "y", **options})


def test_nested_columns_are_refused_by_name(wrote: Any) -> None:
    path = wrote({"v": [[1.0], [2.0]], "n": [1, 2], "y": [0, 1]})
    with pytest.raises(DataError, match="v"):
        table(path, label="y")


# Labels


def test_labels_are_classes_by_name_or_numbers(wrote: Any) -> None:
    def label(values: Any, **options: Any) -> tuple[Any, Any, Any]:
        data = table(wrote({"n": range(len(values)), "y": values}), label="y", **options)
        return _all(data.train)["y"].tolist(), data.labels, data.classes

    assert label(["b", "a", "c", "a"]) == ([1, 0, 2, 0], ("a", "b", "c"), 3)
    assert label([10, 2, 7, 2]) == ([2, 0, 1, 0], ("2", "7", "10"), 3)
    assert label([True, False, True]) == ([1, 0, 1], ("false", "true"), 2)
    assert label([0.5, 1.0, 0.5]) == ([0.5, 1.0, 0.5], None, None)
    assert label([1.0, 0.0, 1.0], target="class") == ([1, 0, 1], ("0", "1"), 2)
    assert label([3, 4, 5], target="number") == ([3.0, 4.0, 5.0], None, None)
    assert label([3, 1, 3], classes=5) == ([3, 1, 3], ("0", "1", "2", "3", "4"), 5)
    many = list(range(101))
    assert label(many)[1:] == (None, None) and label(many[:100])[2] == 100
    assert label(many, target="class")[2] == 101
    data = parts = table(wrote({"n": range(3), "y": [0.0, 1.0, 1.0]}), label="y")
    assert _all(data.train)["y"].dtype == torch.float32
    assert parts.notes == ("label 'y' is a number to predict, with 2 distinct values: set target='class' if they are classes",)


def test_the_scale_of_a_number_is_that_of_the_training_rows_wherever_it_lies(wrote: Any) -> None:
    random = np.random.default_rng(0)
    values = 1e6 + 30 * random.standard_normal(5000)
    data = table(wrote({"n": random.standard_normal(5000), "y": values}), label="y", holdout=0.2)
    seen = _all(data.train)["y"].double().numpy()
    assert data.target_scale is not None and len(seen) == 4000
    kept = values[np.isin(values.astype(np.float32), seen.astype(np.float32))]
    assert data.target_scale[0] == pytest.approx(kept.mean(), rel=1e-6) and data.target_scale[1] == pytest.approx(30, rel=0.1)
    assert table(wrote({"n": [1, 2], "y": ["a", "b"]}), label="y").target_scale is None
    with pytest.raises(DataError, match=r"label 'y' has the mean 1e\+09 .* 64, are too coarse: subtract a constant"):
        table(wrote({"n": range(50), "y": 1e9 + np.linspace(0, 1, 50)}), label="y")


@pytest.mark.parametrize("values", [["a"] * 4, [3] * 4, [2.5] * 4])
def test_a_constant_label_is_refused(wrote: Any, values: Any) -> None:
    with pytest.raises(DataError, match=r"label 'y' is .* in all 4 training rows: nothing to learn"):
        table(wrote({"n": range(4), "y": values}), label="y")


@pytest.mark.parametrize(
    "values", [["a", "b", None, "a"], [1, 2, None, 1], [0.5, 1.5, float("nan"), 1.0], [1.0, 2.0, float("inf"), 3]]
)
def test_a_missing_label_stops_or_is_left_out(wrote: Any, values: Any) -> None:
    path = wrote({"n": range(4), "y": values}, "t.parquet")
    why = r"the label 'y' is (missing|nan, not finite|inf, not finite)\."
    with pytest.raises(DataError, match=rf"t\.parquet, row 3: {why}.*on_bad='skip'"):
        table(path, label="y")
    data = parts = table(path, label="y", on_bad="skip")
    assert _all(data.train)["numeric"][:, 0].tolist() == [0, 1, 3]
    (said,) = [note for note in parts.notes if "left out" in note]
    assert said.startswith("1 bad sample was left out:") and "t.parquet, row 3" in said


def test_numbers_that_are_not_finite_stop_or_are_left_out(wrote: Any) -> None:
    path = wrote({"n": [1.0, float("-inf"), None, 4.0], "m": [1.0, 2.0, 3.0, 1e300], "y": [0, 1, 1, 0]}, "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet, row 2: column 'n' is -inf, too large for float32"):
        table(path, label="y")
    data = parts = table(path, label="y", on_bad="skip", min_count=1)
    assert len(data.train) == 2 and "2 bad samples were left out" in parts.notes[-1]


def test_a_label_that_training_never_saw_is_named(wrote: Any) -> None:
    train, held = wrote(_rows()), wrote({**_rows(4), "y": ["no", "yes", "perhaps", "no"]}, "held.parquet")
    with pytest.raises(
        DataError,
        match=r"validation: .*held\.parquet, row 3: label 'y' is 'perhaps', which no training row has \(known: no, yes\)",
    ):
        table(train, label="y", validation=held)


# Splits


def test_the_split_goes_by_content_and_not_by_order(wrote: Any) -> None:
    rows = pa.table(_rows(500))
    path = wrote(rows)

    def held(path: Any, **options: Any) -> list[float]:
        data = table(path, label="y", holdout=0.2, **options)
        assert len(data.train) == 400
        return sorted(_all(data.validation)["numeric"][:, 0].tolist())

    order = np.random.default_rng(1).permutation(500)
    first = held(path)
    assert first == held(wrote(rows.take(order))) == held([wrote(rows.slice(300)), wrote(rows.slice(0, 300))])
    assert first == held(path, drop=["id"]) == held(path, steps={"n": ["log"]})  # whatever is used of a row
    assert first != held(path, seed=1)
    more = table(path, label="y", holdout=0.3)
    assert set(first) < set(_all(more.validation)["numeric"][:, 0].tolist())


def test_nothing_is_fitted_on_rows_held_out(wrote: Any) -> None:
    rows = _rows(300)
    rows["part"] = ["train"] * 200 + ["valid", " Validation"] * 30 + ["TEST"] * 40
    rows["n"][200:] *= 100
    data = parts = table(wrote(rows), label="y", split="part")
    (feature,) = [feature for feature in parts.prepare[0].numbers if feature.name == "n"]
    assert abs(feature.mean - rows["n"][:200].mean()) < 1e-12 and abs(feature.std - rows["n"][:200].std()) < 1e-12
    assert (len(data.train), len(data.validation or ()), len(parts.test or ())) == (200, 60, 40)
    assert _all(parts.test)["numeric"][:, 1].tolist() == list(range(260, 300))


def test_validation_and_test_files_are_prepared_as_in_training(wrote: Any, tmp_path: Path) -> None:
    train, other = _rows(400), _rows(50, seed=2)
    other["kind"] = np.where(np.arange(50) < 3, "new", other["kind"])
    data = parts = table(wrote(train), label="y", validation=wrote(other), test=wrote(_rows(20, seed=3)))
    assert len(data.validation or ()) == 50 and len(parts.test or ()) == 20
    assert "validation: 'kind' has a value unknown from training in 3 rows" in parts.notes
    x = _prepared(data, data.validation)["x"]
    np.testing.assert_allclose(x[:, 0], (other["n"] - train["n"].mean()) / train["n"].std(), atol=1e-6)
    assert (x[:3, 2:].sum(1) == 0).all() and (x[3:, 2:].sum(1) == 1).all()
    again = TableEncoder(parts.host).read(scan(wrote(other)))
    assert again.fingerprint() == (data.validation or again).fingerprint()
    unlabelled = wrote({name: column for name, column in other.items() if name != "y"})
    rows = TableEncoder(parts.host).read(scan(unlabelled), targets=False)
    assert set(rows.schema) == {"numeric", "ids"} and rows.read(torch.arange(50))["ids"].equal(_all(data.validation)["ids"])
    with pytest.raises(DataError, match=r"validation: .*\.parquet has no column 'kind'"):
        table(wrote(train), label="y", validation=wrote({"n": [1.0], "id": [2], "y": ["no"]}))


def test_text_stays_text_in_other_files(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("zip,n,y\n007,1,a\n7,2,b\n007,3,a\nA7,4,b\n7,5,a\nA7,6,b\n")
    (tmp_path / "other.csv").write_text("y,zip,n\na,007,1\nb,7,2\n")
    data = parts = table(tmp_path / "train.csv", label="y", validation=tmp_path / "other.csv")
    assert parts.prepare[0].feature_names == ("n", "zip=007", "zip=7", "zip=A7")
    assert _all(data.validation)["ids"].tolist() == [[1], [2]] and _all(data.validation)["numeric"].tolist() == [[1], [2]]


def test_a_query_is_a_table(wrote: Any, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    wrote(_rows(100), "t.parquet")
    query = "select n * 2 as twice, kind, y from 't.parquet' where id {}"
    data = parts = table(
        sql=query.format("< 80"), validation=query.format(">= 80"), label="y", base_folder=tmp_path, steps={"twice": []}
    )
    assert (len(data.train), len(data.validation or ())) == (80, 20) and parts.host.codings.ids == ("kind",)
    np.testing.assert_allclose(sorted(_all(data.train)["numeric"][:, 0].tolist()), sorted(_rows(100)["n"][:80] * 2), rtol=1e-6)
    with pytest.raises(UsageError, match="an sql query reads its files itself: leave out 'delimiter'"):
        table(sql=query, label="y", delimiter=";")


def test_draws_balanced_and_by_weight(wrote: Any) -> None:
    rows = {**_rows(1000), "w": np.where(np.arange(1000) < 10, 50.0, 0.5)}
    rows["y"] = np.where(np.arange(1000) < 100, "rare", "usual")
    data = parts = table(wrote(rows), label="y", draw="w", holdout=0.1)
    assert "w" not in parts.host.types and len(data.sampler(0).rows(0, 10)) == 10
    drawn = _all(data.train)["numeric"][data.sampler(0).rows(0, 4000)][:, 1]
    assert 0.4 < (drawn < 10).double().mean() < 0.6
    balanced = table(wrote(rows), label="y", draw="balanced")
    share = _all(balanced.train)["y"][balanced.sampler(0).rows(0, 4000)].double().mean()
    assert 0.45 < share < 0.55


# Rows larger than memory


def test_rows_on_disk_are_those_in_memory(wrote: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wrote(_rows(5000))
    near = parts = table(path, label="y", holdout=0.3)
    monkeypatch.setattr(encoding, "MEMORY_BYTES", 20_000)
    monkeypatch.setattr(row_files, "BLOCK_ROWS", 1000)
    far = others = table(path, label="y", holdout=0.3, cache=tmp_path / "cache")
    assert isinstance(near.train, ArraySource) and isinstance(far.train, RowFiles) and isinstance(far.validation, RowFiles)
    assert (others.host, others.prepare) == (parts.host, parts.prepare) and far.train.schema == near.train.schema
    order = torch.randperm(3500)
    for name, column in near.train.read(order).items():
        assert torch.equal(far.train.read(order)[name], column)
    assert far.train.blocks() == (1000, 1000, 1000, 500)
    travelled = pickle.loads(pickle.dumps(far.train))
    assert travelled.fingerprint() == far.train.fingerprint() and travelled.read(order)["y"].equal(near.train.read(order)["y"])
    assert len(pickle.dumps(far.train)) < 1000


def test_rows_on_disk_are_kept_for_the_next_run(wrote: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MEMORY_BYTES", 20_000)
    path = wrote(_rows(5000))
    first = table(path, label="y", cache=tmp_path / "cache")
    (folder,) = (tmp_path / "cache" / "tables").glob("*/train")
    stamp = (folder / "numeric").stat().st_mtime_ns
    second = table(path, label="y", cache=tmp_path / "cache")
    assert (folder / "numeric").stat().st_mtime_ns == stamp and second.fingerprint() == first.fingerprint()
    with (folder / "y").open("r+b") as file:
        file.truncate(100)
    mended = table(path, label="y", cache=tmp_path / "cache")
    assert mended.fingerprint() == first.fingerprint() and (folder / "numeric").stat().st_mtime_ns != stamp
    table(path, label="y", drop="id", cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache" / "tables").iterdir())) == 2


def test_rows_kept_of_other_files_are_never_stale(wrote: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MEMORY_BYTES", 1000)
    path = wrote(_rows(500))
    first = table(path, label="y", validation=wrote(_rows(200, seed=1), "v.parquet"), cache=tmp_path / "cache")
    second = table(path, label="y", validation=wrote(_rows(200, seed=2), "v.parquet"), cache=tmp_path / "cache")
    assert isinstance(second.validation, RowFiles) and isinstance(first.validation, RowFiles)
    np.testing.assert_allclose(_all(second.validation)["numeric"][:, 0], _rows(200, seed=2)["n"], rtol=1e-6)


def test_a_folder_of_rows_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def failing() -> Any:
        yield {"a": np.arange(3)}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rows_on_disk(tmp_path / "rows", failing())
    assert list(tmp_path.iterdir()) == []
    pieces = [{"a": np.arange(3), "b": np.zeros((3, 2), np.float32)}, {"a": np.arange(3, 5), "b": np.ones((2, 2), np.float32)}]
    rows = rows_on_disk(tmp_path / "rows", pieces)
    assert rows.read(torch.tensor([4, 0]))["a"].tolist() == [4, 0] and rows.read(torch.tensor([4]))["b"].tolist() == [[1, 1]]
    late = RowWriter(tmp_path / "rows")
    late.add({"a": np.arange(9)})
    late.finish()  # another process was first
    late.discard()
    assert len(RowFiles(tmp_path / "rows")) == 5 and is_complete(tmp_path / "rows")
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_a_passing_folder_goes_with_its_source(wrote: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MEMORY_BYTES", 20_000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    data = parts = table(wrote(_rows(5000)), label="y")
    assert len(list((tmp_path / "temporary").iterdir())) == 1 and len(_all(data.train)["y"]) == 5000
    del data, parts
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_table_larger_than_memory_takes_little_of_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    schema = pa.schema([*((f"c{n}", pa.float64()) for n in range(12)), ("y", pa.int64())])
    pieces = [pa.record_batch([*(rng.random(65536) for _ in range(12)), rng.integers(0, 2, 65536)], schema) for _ in range(2)]
    for name, times in (("small", 1), ("large", 6)):
        with pa.ipc.new_file(tmp_path / f"{name}.arrow", schema) as file:
            for piece in pieces * times:
                file.write(piece)
    code = """
import json, re, threading
from flatout.data.sources.tables import encoding
from flatout.data.sources.tables.table import table

peaks, over = [0], threading.Event()

def watch():  # what is mapped from files is not counted: the system may drop it at any time
    while not over.wait(0.01):
        held = int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
        peaks[-1] = max(peaks[-1], held)

watcher = threading.Thread(target=watch)
watcher.start()
encoding.MEMORY_BYTES = 8 << 20
for name in ("small", "large"):
    peaks.append(0)
    data = table(f"{name}.arrow", label="y", holdout=0.1, cache="cache")
over.set()
print(json.dumps([peaks[-1] - peaks[-2], len(data.train), len(data.validation)]))
"""
    run = [sys.executable, "-c", code]
    found = subprocess.run(run, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    grown, train, held = json.loads(found.stdout)
    assert (train, held) == (12 * 65536 - round(1.2 * 65536), round(1.2 * 65536))
    assert grown < 50 << 20, f"68 MB more rows took {grown >> 20} MB more memory"


# Real data


def test_adult_is_prepared_well_enough_for_a_linear_model(shared_data: Any) -> None:
    data = parts = table(
        shared_data("adult/adult.data.gz"), label="income", names=ADULT, header=False, strip=True, na=["?"],
        holdout=0.25, onehot=64, steps={"capital-gain": ["log", "standardise"], "capital-loss": ["log", "standardise"]},
    )  # fmt: skip
    assert data.labels == ("<=50K", ">50K") and len(data.train) == 24421 and len(data.validation or ()) == 8140
    assert parts.prepare[0].cardinalities == () and "workclass=(missing)" in parts.prepare[0].feature_names
    train, held = _prepared(data, data.train), _prepared(data, data.validation)
    model = LogisticRegression(max_iter=60, tol=1e-3).fit(train["x"].numpy()[::2], train["y"].numpy()[::2])
    assert roc_auc_score(held["y"].numpy(), model.predict_proba(held["x"].numpy())[:, 1]) > 0.89


def test_covertype_has_seven_classes_by_their_names(shared_data: Any, tmp_path: Path) -> None:
    import lzma

    with lzma.open(shared_data("covertype/covtype.csv.xz")) as file:
        (tmp_path / "some.csv").write_bytes(b"".join(file.readline() for _ in range(20_001)))
    data = parts = table(tmp_path / "some.csv", label="Cover_Type", holdout=0.1)
    assert data.labels == tuple("1234567") and data.classes == 7
    assert sorted(_all(data.train)["y"].unique().tolist()) == list(range(7))
    assert all("same" in note for note in parts.notes), "some soils don't occur in these rows"
    x = _prepared(data, data.train)["x"].double()
    assert x.mean(0).abs().max() < 1e-4 and (x.std(0, correction=0) - 1).abs().max() < 1e-4


def test_taxi_dates_become_parts(shared_data: Any) -> None:
    day = "nyc-taxi/yellow_tripdata_2022-01-{}.snappy.parquet"
    data = parts = table(
        shared_data(day.format(10)), label="fare_amount", validation=shared_data(day.format(11)),
        drop=["total_amount", "tip_amount"], categorical=["PULocationID", "DOLocationID", "store_and_fwd_flag"],
        steps={"trip_distance": ["log", "standardise"], "DOLocationID": ["target_encode"]},
    )  # fmt: skip
    assert data.classes is None and data.schema()["y"].dtype == torch.float32
    assert {"tpep_pickup_datetime.hour", "tpep_pickup_datetime.hour.sin", "DOLocationID.target"} <= set(
        parts.prepare[0].feature_names
    )
    raw = pq.read_table(shared_data(day.format(10)), columns=["tpep_pickup_datetime"]).column(0)[:500].to_pylist()
    hour = parts.host.codings.numeric.index("tpep_pickup_datetime.hour")
    expected = [time.hour + time.minute / 60 + time.second / 3600 for time in raw]
    np.testing.assert_allclose(_all(data.train)["numeric"][:500, hour], expected, rtol=1e-6)
    assert torch.isfinite(_prepared(data, data.validation)["x"]).all()
