"""Rows held out by their content: the same ones whatever the order, the file format and the size of the pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from flatout.base.errors import DataError
from flatout.data.order.split import hash_batch, hash_records, hash_rows, hash_strings, held_out
from flatout.data.sources.arrays import arrays
from flatout.data.sources.tables.scan import scan


def rows_of(count: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    names = np.array(["red", "green", "blue", "", "a longer name than eight bytes", "é"], object)
    return {
        "age": rng.integers(0, 90, count),
        "price": rng.normal(size=count).round(3),
        "name": names[rng.integers(0, len(names), count)],
        "row": np.arange(count),
    }


def test_the_share_is_exact_and_never_all_or_nothing() -> None:
    hashes = hash_strings([f"photo-{i}.jpg" for i in range(1000)], seed=0)
    assert held_out(hashes, 0.1).sum() == 100
    assert held_out(hashes, 0.0001).sum() == 1
    assert held_out(hashes, 0.9999).sum() == 999
    smallest = np.sort(hashes)[:100]
    assert set(hashes[held_out(hashes, 0.1)]) == set(smallest)


def test_the_same_rows_are_held_out_in_any_order() -> None:
    columns = rows_of(5000)
    order = np.random.default_rng(1).permutation(5000)
    first = held_out(hash_rows(columns, seed=7), 0.2)
    again = held_out(hash_rows({name: values[order] for name, values in columns.items()}, seed=7), 0.2)
    assert set(columns["row"][first]) == set(columns["row"][order][again])


def test_a_row_keeps_its_side_when_others_are_there() -> None:
    """Rows that are added change sides only at the border: of the rows held out before, nearly all stay held out."""
    columns = rows_of(2000)
    hashes = hash_rows(columns, seed=0)
    few, all_of_them = held_out(hashes[:1000], 0.2), held_out(hashes, 0.2)
    assert (few & all_of_them[:1000]).sum() > 180


def test_order_of_columns_does_not_matter_and_their_names_do() -> None:
    columns = rows_of(100)
    turned = dict(reversed(columns.items()))
    renamed = {("years" if name == "age" else name): values for name, values in columns.items()}
    assert (hash_rows(columns, 0) == hash_rows(turned, 0)).all()
    assert (hash_rows(columns, 0) != hash_rows(renamed, 0)).all()
    assert (hash_rows(columns, 0) != hash_rows(columns, 1)).all()


def test_swapped_values_are_another_row() -> None:
    one = hash_rows({"a": np.array([1, 2]), "b": np.array([2, 1])}, 0)
    assert one[0] != one[1]
    text = hash_rows({"a": np.array(["x", "y"]), "b": np.array(["y", "x"])}, 0)
    assert text[0] != text[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([3, 0, -5]), np.array([3.0, -0.0, -5.0])),
        (np.array([3, 1, 0], np.uint8), np.array([3, 1, 0], np.int64)),
        (np.array([True, False]), np.array([1, 0])),
        (np.array([0.5, np.nan], np.float32), np.array([0.5, np.nan])),
        (np.array([1, 2]), np.ma.MaskedArray([1, 2], [False, False])),
        (np.array([1.0, np.nan]), np.ma.MaskedArray([1, 2], [False, True])),
        (np.array(["a", "b"]), np.array([b"a", b"b"], object)),
        (np.array(["a", None], object), np.ma.MaskedArray(["a", "b"], [False, True])),
        (np.array(["2020-01-02", "NaT"], "M8[D]"), np.array(["2020-01-02T00:00:00", "NaT"], "M8[ns]")),
        (np.array([None, ""], object), np.array([np.nan, np.nan])),
    ],
)
def test_equal_values_hash_alike_whatever_their_type(one: Any, other: Any) -> None:
    assert (hash_rows({"c": one}, 3) == hash_rows({"c": other}, 3)).all()


def test_different_values_hash_differently() -> None:
    large = np.array([2**53, 2**53 + 1, 2**62, 2**62 + 1, -(2**53) - 1, 0, 1, -1])
    assert len(np.unique(hash_rows({"c": large}, 0))) == len(large)
    texts = ["", "a", "a\0", "aa", "12345678", "123456789", "87654321" * 2, "12345678" * 2, "x" * 1000, "x" * 1001]
    assert len(np.unique(hash_strings(texts, 0))) == len(texts)
    moments = np.array(["2020-01-01T00:00:00.000000001", "2020-01-01T00:00:00.000000002", "2020-01-01"], "M8[ns]")
    assert len(np.unique(hash_rows({"c": moments}, 0))) == 3
    words = [f"{a}{b}" for a in range(300) for b in range(300, 600)]
    assert len(np.unique(hash_strings(words, 0))) == len(set(words))


def test_pieces_give_what_the_whole_gives() -> None:
    columns = rows_of(999)
    whole = hash_rows(columns, 5)
    pieces = [hash_rows({name: values[i : i + 100] for name, values in columns.items()}, 5) for i in range(0, 999, 100)]
    assert (whole == np.concatenate(pieces)).all()


def test_arrow_gives_what_numpy_gives() -> None:
    columns = rows_of(500)
    batch = pa.RecordBatch.from_pydict({name: pa.array(list(values)) for name, values in columns.items()})
    assert (hash_batch(batch, 2) == hash_rows(columns, 2)).all()
    assert (hash_batch(batch.slice(100, 50), 2) == hash_rows(columns, 2)[100:150]).all()
    assert (hash_batch(batch, 2, ["age", "name"]) == hash_rows({"age": columns["age"], "name": columns["name"]}, 2)).all()


def test_missing_values_of_arrow() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "i": pa.array([1, None, 2**60], pa.int64()),
            "s": pa.array(["a", None, ""]),
            "b": pa.array([True, None, False]),
            "d": pa.array([0, None, 10], pa.date32()),
            "c": pa.array(["x", None, "y"]).dictionary_encode(),
            "n": pa.array([None, None, None]),
        }
    )
    same = {
        "i": np.ma.MaskedArray([1, 0, 2**60], [False, True, False]),
        "s": np.array(["a", None, ""], object),
        "b": np.array([1.0, np.nan, 0.0]),
        "d": np.array(["1970-01-01", "NaT", "1970-01-11"], "M8[s]"),
        "c": np.array(["x", None, "y"], object),
        "n": np.full(3, np.nan),
    }
    assert (hash_batch(batch, 0) == hash_rows(same, 0)).all()


def test_copies_of_a_row_are_told_apart_by_nothing() -> None:
    hashes = hash_rows({"a": np.zeros(10)}, 0)
    assert len(np.unique(hashes)) == 1
    assert held_out(hashes, 0.3).sum() == 3


def test_csv_and_parquet_hold_out_the_same_rows(tmp_path: Path) -> None:
    columns = rows_of(3000)
    columns["when"] = np.array("2020-01-01", "M8[s]") + (columns["row"] * 1000).astype("m8[s]")
    table = pa.table({name: pa.array(list(values)) for name, values in columns.items()})
    pq.write_table(table.cast(table.schema.set(0, pa.field("age", pa.int16()))), tmp_path / "a.parquet")
    from pyarrow import csv

    shuffled = table.take(pa.array(np.random.default_rng(3).permutation(3000)))
    shuffled = shuffled.set_column(4, "when", shuffled["when"].cast(pa.timestamp("s")))
    csv.write_csv(shuffled, tmp_path / "a.csv")
    held = []
    for name in ("a.parquet", "a.csv"):
        found = scan(tmp_path / name)
        whole = pa.Table.from_batches([batch for batch, _ in found.batches()])
        hashes = np.concatenate([hash_batch(batch, 11) for batch, _ in found.batches(rows_at_once=700)])
        held.append(set(whole["row"].to_numpy()[held_out(hashes, 0.15)]))
    assert held[0] == held[1]
    assert len(held[0]) == 450


def test_hashes_look_random() -> None:
    hashes = hash_rows({"row": np.arange(100_000)}, 0)
    for bit in range(64):
        ones = ((hashes >> np.uint64(bit)) & np.uint64(1)).mean()
        assert abs(ones - 0.5) < 0.01


@pytest.mark.parametrize("share", [0, 1, -0.1, 2])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(DataError, match="between 0 and 1"):
        held_out(hash_strings(["a", "b"], 0), share)


def test_one_row_can_not_be_split() -> None:
    with pytest.raises(DataError, match="2 rows or more, got 1"):
        held_out(hash_strings(["a"], 0), 0.5)


def test_values_without_a_hash_are_refused() -> None:
    with pytest.raises(DataError, match="row 1: a value of type dict"):
        hash_rows({"a": np.array(["x", {}], object)}, 0)
    with pytest.raises(DataError, match=r"shape \[2, 2\]"):
        hash_rows({"a": np.zeros((2, 2))}, 0)
    with pytest.raises(DataError, match="nothing to split by"):
        hash_rows({}, 0)


def test_arrays_are_split_by_content_and_not_by_order() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(500, 3, 5, generator=generator), torch.randint(0, 4, (500,), generator=generator)
    order = torch.randperm(500, generator=generator)
    data, moved = arrays(x, y, holdout=0.2), arrays(x[order], y[order], holdout=0.2)
    assert data.validation is not None and moved.validation is not None
    here, there = (part.stored()["x"].flatten(1) for part in (data.validation, moved.validation))
    assert len(here) == 100
    assert sorted(here.tolist()) == sorted(there.tolist())
    other = arrays(x, y, holdout=0.2, seed=1).validation
    assert other is not None and sorted(other.stored()["x"].flatten(1).tolist()) != sorted(here.tolist())


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
def test_bytes_that_differ_hash_apart(dtype: Any) -> None:
    rows = np.arange(20_000, dtype=np.int64)
    values = np.stack([rows % 251, rows // 251, rows * 0], axis=1).astype(dtype)
    hashes = hash_records({"x": values}, 7)
    assert len(np.unique(hashes)) == len(rows)
    halves = (hashes >> np.uint64(63)).mean()
    assert 0.48 < halves < 0.52
