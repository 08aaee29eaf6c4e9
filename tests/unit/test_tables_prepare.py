"""Preparation of tables: what is fitted, against scikit-learn and brute force, and that JSON brings both parts back."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler

import flatout as fo
from flatout.base.errors import DataError, UsageError
from flatout.data.data import Data
from flatout.data.fitted import Fitted
from flatout.data.fitted.codings import Category, Codings, Date, Number, TargetEncoding, bucket_of
from flatout.data.fitted.dates import PARTS, date_part, to_instant
from flatout.data.fitted.table_features import CategoryFeatures, NumberFeatures, TableFeatures
from flatout.data.fitted.table_rows import TableHost
from flatout.data.fitted.values import PlainValues
from flatout.data.order.keyed import Keys
from flatout.data.source import Column
from flatout.data.sources.tables import column_fits, encoding
from flatout.data.sources.tables.arrow import ArrowValues
from flatout.data.sources.tables.column_fits import CategoryCounts, Moments
from flatout.data.sources.tables.quantiles import HashSample
from flatout.data.sources.tables.steps import CategorySteps, ColumnPlan, ColumnSteps, TargetSteps, parse_steps
from flatout.data.sources.tables.table import table
from flatout.data.sources.tables.targets import Folds


@pytest.fixture
def prepared(tmp_path: Path) -> Any:
    """`prepared({"a": [1, 2]}, label="y", ...)` -> the data and its parts, from a Parquet file."""

    def make(columns: dict[str, Any], row_group: int | None = None, **options: Any) -> Data:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet"
        pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, row_group_size=row_group)
        return table(path, **{"label": "y", **options})

    return make


def _x(data: Data) -> np.ndarray[Any, Any]:
    batch = data.train.read(torch.arange(len(data.train)))
    return data.prepare[0](batch, _keys(len(data.train)))["x"].numpy()


def _keys(rows: int) -> Keys:
    none = torch.zeros(rows, dtype=torch.int64)
    return Keys(0, none, none)


def _column(data: Data, parts: Data, name: str) -> np.ndarray[Any, Any]:
    return _x(data)[:, parts.prepare[0].feature_names.index(name)]


def _y(rows: int) -> list[str]:
    return ["no", "yes"] * (rows // 2) + ["no"] * (rows % 2)


# Numbers


def test_missing_numbers_are_filled_flagged_and_standardised_like_scikit_learn(prepared: Any) -> None:
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.normal(5, 2, 3000), rng.lognormal(0, 1, 3000), rng.integers(0, 9, 3000)]).astype(np.float64)
    holes = rng.random(values.shape) < 0.1
    holes[:, 2] = False
    with_holes = np.where(holes, np.nan, values)
    data = parts = prepared(
        {
            "a": pa.array(with_holes[:, 0], mask=holes[:, 0]),  # Arrow's nulls
            "b": pa.array(with_holes[:, 1]),  # NaN
            "c": pa.array(values[:, 2].astype(np.int32)),
            "y": _y(3000),
        }
    )
    assert parts.prepare[0].feature_names == ("a", "b", "c", "a=missing", "b=missing")
    x = _x(data)
    expected = StandardScaler().fit(with_holes).transform(SimpleImputer(strategy="mean").fit_transform(with_holes))
    assert x.dtype == np.float32
    np.testing.assert_allclose(x[:, :3], expected, atol=2e-6)
    np.testing.assert_array_equal(x[:, 3:], holes[:, :2])


@pytest.mark.parametrize(("fill", "expected"), [("mean", 4.0), ("median", 2.0), ("zero", 0.0), (-7, -7.0)])
def test_what_missing_numbers_are_filled_with(prepared: Any, fill: Any, expected: float) -> None:
    data = parts = prepared({"a": [1.0, None, 2.0, 9.0], "y": _y(4)}, steps={"a": [{"fill": fill}]})
    assert _column(data, parts, "a").tolist() == [1.0, expected, 2.0, 9.0]
    assert _column(data, parts, "a=missing").tolist() == [0, 1, 0, 0]


def test_logs_are_signed_and_standardised_after(prepared: Any) -> None:
    values = np.array([-1000.0, -1.0, 0.0, 3.0, 1e6, 2.0])
    logged = np.sign(values) * np.log1p(np.abs(values))
    data = parts = prepared({"a": values, "b": values, "y": _y(6)}, steps={"a": ["log"], "b": ["log", "standardise"]})
    np.testing.assert_allclose(_column(data, parts, "a"), logged, rtol=1e-6)
    np.testing.assert_allclose(_column(data, parts, "b"), (logged - logged.mean()) / logged.std(), atol=1e-6)


def test_clips_by_numbers_and_by_quantiles(prepared: Any) -> None:
    values = np.random.default_rng(1).standard_cauchy(5001)
    steps = {
        "numbers": [{"clip": [-1, 2.5]}],
        "above": [{"clip": [None, 1.0]}],
        "share": [{"clip": 0.01}],
        "quantiles": [{"clip": {"quantiles": [0.1, 0.7]}}, "standardise"],
        "usual": {"clip": 0.05},
    }
    data = parts = prepared({**dict.fromkeys(steps, values), "y": _y(5001)}, steps=steps)
    cut = np.clip(values, *np.quantile(values, [0.1, 0.7]))
    usual = np.clip(values, *np.quantile(values, [0.05, 0.95]))
    for name, expected in {
        "numbers": np.clip(values, -1, 2.5),
        "above": np.minimum(values, 1.0),
        "share": np.clip(values, *np.quantile(values, [0.01, 0.99])),
        "quantiles": (cut - cut.mean()) / cut.std(),
        "usual": (usual - usual.mean()) / usual.std(),  # a mapping changes single steps: it is still standardised
    }.items():
        np.testing.assert_allclose(_column(data, parts, name), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("count", [2, 5, 16])
def test_quantile_buckets_are_those_of_scikit_learn(prepared: Any, count: int) -> None:
    values = np.random.default_rng(2).normal(size=2000).astype(np.float32).astype(np.float64)
    steps = {"a": [{"quantile_buckets": count}], "b": [{"quantile_buckets": {"count": count, "as": "rank"}}]}
    data = parts = prepared({"a": values, "b": values, "y": _y(2000)}, steps=steps)
    peer = KBinsDiscretizer(count, encode="onehot-dense", strategy="quantile", quantile_method="linear", subsample=None)
    expected = peer.fit_transform(values[:, None])
    names = parts.prepare[0].feature_names
    assert names == ("b.rank", *(f"a[{bucket}]" for bucket in range(count)))
    np.testing.assert_array_equal(_x(data)[:, 1:], expected)
    np.testing.assert_allclose(_column(data, parts, "b.rank"), expected.argmax(1) / (count - 1), rtol=1e-6)


def test_buckets_of_a_value_that_most_rows_share_are_merged(prepared: Any) -> None:
    values = [0.0] * 90 + [float(v) for v in range(1, 11)]
    data = prepared({"a": values, "y": _y(100)}, steps={"a": [{"quantile_buckets": 20}]})
    x = _x(data)
    assert (x.sum(1) == 1).all() and (x[:90] == x[0]).all() and (x[99] != x[0]).any()
    assert (x.sum(0) > 0).all(), "no bucket is empty"


def test_numbers_far_from_zero_keep_their_differences(prepared: Any) -> None:
    seconds = 1_700_000_000 + np.arange(1000)
    data = parts = prepared({"a": seconds, "b": seconds.astype(np.float64), "y": _y(1000)}, steps={"b": {"clip": 0.01}})
    expected = (seconds - seconds.mean()) / seconds.std()
    np.testing.assert_allclose(_column(data, parts, "a"), expected, atol=1e-5)  # float32 alone would be off by 0.2
    cut = np.clip(seconds, *np.quantile(seconds, [0.01, 0.99]))
    np.testing.assert_allclose(_column(data, parts, "b"), (cut - cut.mean()) / cut.std(), atol=1e-5)


def test_moments_stand_a_large_mean_and_merge() -> None:
    values = np.random.default_rng(3).normal(1e9, 1e-1, 200_000)
    whole, pieces = Moments(), Moments()
    whole.add(values)
    for piece in np.array_split(values, 7):
        pieces.add(piece)
    assert pieces.count == 200_000 and pieces.low == values.min() and pieces.high == values.max()
    assert abs(pieces.std / values.std() - 1) < 1e-6 and abs(pieces.mean - whole.mean) < 1e-6
    weighted, repeated = Moments(), Moments()
    weighted.add(np.array([1.0, 5.0, np.nan]), np.array([3, 2, 9]))
    repeated.add(np.array([1.0, 1, 1, 5, 5]))
    assert (weighted.mean, weighted.count) == (repeated.mean, 5) and abs(weighted.std - repeated.std) < 1e-15


def test_quantiles_of_more_rows_than_are_kept_come_from_a_sample_without_an_order() -> None:
    rng = np.random.default_rng(4)
    values, hashes = rng.exponential(size=40_000), rng.integers(0, 2**63, 40_000).astype(np.uint64)

    def sampled(order: Any, pieces: int) -> list[float]:
        sample = HashSample(["a"], size=4000)
        for part in np.array_split(order, pieces):
            sample.add(hashes[part], [values[part]])
        return sample.quantiles("a", [0.1, 0.5, 0.9])

    first = sampled(np.arange(40_000), 3)
    assert first == sampled(rng.permutation(40_000), 17) == sampled(np.arange(40_000)[::-1], 1)
    ranks = [(values < quantile).mean() for quantile in first]
    np.testing.assert_allclose(ranks, [0.1, 0.5, 0.9], atol=0.03)


# Categories


def test_categories_are_those_of_scikit_learn(prepared: Any) -> None:
    rng = np.random.default_rng(5)
    words = rng.choice(["red", "green", "blue", "ä", "odd"], 500, p=[0.4, 0.3, 0.2, 0.096, 0.004])
    data = parts = prepared({"a": words, "b": rng.random(500) < 0.5, "y": _y(500)}, min_count=5, steps={"b": {"min_count": 1}})
    peer = OneHotEncoder(handle_unknown="ignore", categories=[["blue", "green", "red", "ä"]], sparse_output=False)
    np.testing.assert_array_equal(_x(data)[:, :4], peer.fit_transform(words[:, None]))
    assert parts.prepare[0].feature_names == ("a=blue", "a=green", "a=red", "a=ä", "b=false", "b=true")
    assert (_x(data)[words == "odd", :4] == 0).all()
    assert "'a': values that occur fewer than 5 times (1) count as unknown" in parts.notes


def test_many_categories_become_ids_and_few_become_columns(prepared: Any) -> None:
    rng = np.random.default_rng(6)
    codes = rng.integers(0, 40, 2000)
    columns = {"many": [f"c{c:02}" for c in codes], "few": [f"f{c % 3}" for c in codes], "y": _y(2000)}
    data = parts = prepared(columns)
    device = parts.prepare[0]
    assert device.cardinalities == (41,) and device.embedded_names == ("many",) and device.feature_names[0] == "few=f0"
    batch = device(data.train.read(torch.arange(2000)), _keys(2000))
    assert batch["categories"].dtype == torch.int64 and batch["categories"][:, 0].tolist() == (codes + 1).tolist()
    assert set(data.schema()) == set(batch) == {"x", "categories", "y"}
    assert prepared(columns, onehot=40).prepare[0].cardinalities == ()
    assert prepared(columns, steps={"few": {"onehot": 2}}).prepare[0].cardinalities == (41, 4)


def test_a_missing_category_is_one_of_its_own(prepared: Any) -> None:
    data = parts = prepared(
        {"a": ["u", None, "v", None, "u", "v"], "b": [1, 2, 1, None, 1, 2], "y": _y(6)}, categorical=["a", "b"]
    )
    assert parts.prepare[0].feature_names == ("a=u", "a=v", "a=(missing)", "b=1", "b=2")
    assert _column(data, parts, "a=(missing)").tolist() == [0, 1, 0, 1, 0, 0]
    assert _x(data)[3].tolist() == [0, 0, 1, 0, 0], "missing once is too rare to be known"


def test_hash_buckets_are_the_ones_that_saved_models_know() -> None:
    texts: list[str | None] = ["red", "", "ä", None, "red"]
    buckets = bucket_of(texts, 1000)
    assert buckets.dtype == np.int32 and buckets[3] == 0 and buckets[0] == buckets[4]
    assert buckets.tolist() == [952, 468, 919, 0, 952]
    spread = np.bincount(bucket_of([f"user-{n}" for n in range(64_000)], 64), minlength=65)[1:]
    assert abs(spread - 1000).max() < 160


def test_columns_with_too_many_categories_are_hashed(prepared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_fits, "MOST_CATEGORIES", 50)
    ids = [f"id{n % 300}" for n in range(900)]
    columns = {"a": ids, "n": range(900), "y": _y(900)}
    data = parts = prepared(columns)
    coding = parts.host.codings.columns[0]
    assert coding == Category("a", (), column_fits.HASH_BUCKETS) and parts.prepare[0].cardinalities == ((1 << 15) + 1,)
    assert any("'a' has too many distinct values" in note for note in parts.notes)
    assert data.train.read(torch.arange(900))["ids"][:, 0].tolist() == bucket_of(list(ids), 1 << 15).tolist()
    asked = prepared(columns, hash_buckets=40)
    assert asked.host.codings.columns[0] == Category("a", (), 40)
    by_steps = prepared(columns, steps={"a": [{"hash": 7}]})
    assert by_steps.prepare[0].cardinalities == (8,)


def test_counts_are_the_same_whenever_they_overflow() -> None:
    texts: list[str | None] = [f"t{n % 97}" for n in range(1000)]
    targets = np.arange(1000.0)[:, None]
    fold = np.arange(1000) % 3
    grids = []
    for pieces in (1, 4, 50):
        counts = CategoryCounts(None, 16, 60, folds=3, outputs=1)
        for part in np.array_split(np.arange(1000), pieces):
            counts.add(np.arange(len(part)), [texts[n] for n in part], fold[part], targets[part])
        assert counts.overflowed
        grids.append((counts.rows, counts.sums))
    expected = np.zeros((17, 3))
    np.add.at(expected, (bucket_of(texts, 16), fold), targets[:, 0])
    for rows, sums in grids:
        assert rows.sum() == 1000 and (rows == grids[0][0]).all()
        np.testing.assert_array_equal(sums[:, :, 0], expected)


# Target encoding


def _target_table(rows: int = 400) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    city = rng.choice(["a", "b", "c", "d"], rows, p=[0.5, 0.3, 0.19, 0.01])
    return {"city": city, "n": np.arange(rows), "y": (rng.random(rows) < np.where(city == "a", 0.8, 0.2)).astype(np.int64)}


def _brute_force(columns: dict[str, Any], row: int, folds: Any, smoothing: float) -> float:
    others = folds != folds[row]
    y, same = columns["y"][others], columns["city"][others] == columns["city"][row]
    return float((y[same].sum() + smoothing * y.mean()) / (same.sum() + smoothing))


def test_training_rows_are_encoded_by_the_targets_of_other_folds(prepared: Any) -> None:
    columns = _target_table()
    data = parts = prepared(columns, steps={"city": [{"target_encode": {"smoothing": 3, "folds": 4}}]})
    category = CategorySteps(target=TargetSteps(3, 4))
    planned = [
        ColumnPlan("city", "category", ColumnSteps(category=category), pa.string()),
        ColumnPlan("n", "number", ColumnSteps(), pa.int64()),
    ]
    folds = Folds(planned, 0).of(pa.record_batch({"city": columns["city"], "n": columns["n"]}))["city"]
    assert set(folds.tolist()) == {0, 1, 2, 3}
    encoded = data.train.read(torch.arange(400))["numeric"][:, 0].numpy()
    expected = [_brute_force(columns, row, folds, 3) for row in range(400)]
    np.testing.assert_allclose(encoded, expected, rtol=1e-6)
    shown = _column(data, parts, "city.target")
    np.testing.assert_allclose([shown.mean(), shown.std()], [0, 1], atol=1e-5)


def test_no_row_sees_its_own_target(prepared: Any) -> None:
    columns = _target_table(200)
    steps = {"city": ["target_encode"]}
    before = prepared(columns, steps=steps).train.read(torch.arange(200))["numeric"][:, 0]
    changed_others = 0
    for row in range(0, 200, 20):
        flipped = {**columns, "y": columns["y"].copy()}
        flipped["y"][row] = 1 - flipped["y"][row]
        after = prepared(flipped, steps=steps).train.read(torch.arange(200))["numeric"][:, 0]
        assert after[row] == before[row]
        changed_others += int((after != before).sum())
    assert changed_others > 100, "targets do matter to the rows of other folds"


def test_rows_that_were_not_trained_on_get_the_mean_of_all(prepared: Any) -> None:
    columns = _target_table()
    parts = prepared(columns, steps={"city": [{"target_encode": 10}]}, min_count=1)
    found = parts.host.encode({"city": ["a", "b", "new", None], "n": [0, 0, 0, 0]})["numeric"][:, 0]
    y, overall = columns["y"], columns["y"].mean()
    for value, city in zip(found[:2], "ab", strict=True):
        rows = y[columns["city"] == city]
        np.testing.assert_allclose(value, (rows.sum() + 10 * overall) / (len(rows) + 10), rtol=1e-6)
    np.testing.assert_allclose(found[2:], overall, rtol=1e-6)


def test_targets_of_several_classes_and_of_numbers(prepared: Any) -> None:
    rng = np.random.default_rng(8)
    city = rng.choice(["a", "b"], 300)
    y = np.where(city == "a", rng.integers(0, 3, 300), 2)
    parts = prepared({"city": city, "n": np.arange(300), "y": y}, steps={"city": ["target_encode"]})
    names = ["city.target=0", "city.target=1", "city.target=2"]
    assert list(parts.host.codings.numeric[:3]) == names
    means = parts.host.encode({"city": ["a"], "n": [0]})["numeric"][0, :3]
    np.testing.assert_allclose(means.sum(), 1, rtol=1e-6)
    number = parts = prepared({"city": city, "n": np.arange(300), "y": y * 0.5}, steps={"city": ["target_encode"]})
    assert parts.host.codings.numeric == ("city.target", "n") and number.classes is None
    assert parts.host.encode({"city": ["b"], "n": [0]})["numeric"][0, 0] > 0.9


# Dates


def test_date_parts_are_those_of_the_calendar() -> None:
    rng = np.random.default_rng(9)
    times = [dt.datetime(1900, 1, 1) + dt.timedelta(seconds=int(s)) for s in rng.integers(0, 200 * 365 * 86400, 2000)]
    instants = np.array([to_instant(time) for time in times], dtype=np.int64)
    for part in PARTS:
        expected = {
            "year": [time.year for time in times],
            "month": [time.month for time in times],
            "day": [time.day for time in times],
            "weekday": [time.weekday() for time in times],
            "hour": [time.hour + time.minute / 60 + time.second / 3600 for time in times],
        }[part]
        np.testing.assert_allclose(date_part(part, instants), expected, rtol=1e-12)
    assert to_instant("2024-02-29T12:00:00+02:00") == to_instant(dt.datetime(2024, 2, 29, 10))
    assert to_instant("29.02.2024", "%d.%m.%Y") == to_instant(dt.date(2024, 2, 29)) == to_instant(np.datetime64("2024-02-29"))
    assert to_instant(None) is None and to_instant(float("nan")) is None and to_instant(np.datetime64("NaT")) is None


def test_dates_become_parts_with_cycles_and_one_flag(prepared: Any) -> None:
    times = [dt.datetime(2023, 1 + n % 12, 1 + n % 28, n % 24, 30) for n in range(200)]
    holed = [None if n % 10 == 0 else time for n, time in enumerate(times)]
    data = parts = prepared({"t": pa.array(holed, pa.timestamp("ms")), "y": _y(200)})
    assert parts.prepare[0].feature_names == (
        "t.month", "t.day", "t.weekday", "t.hour",
        "t.month.sin", "t.weekday.sin", "t.hour.sin", "t.month.cos", "t.weekday.cos", "t.hour.cos", "t=missing",
    )  # fmt: skip
    assert "left out: the same value in every training row: 't.year'" in parts.notes
    angle = 2 * np.pi * np.array([time.hour + 0.5 for time in times]) / 24
    present = np.arange(200) % 10 != 0
    np.testing.assert_allclose(_column(data, parts, "t.hour.sin")[present], np.sin(angle)[present], atol=1e-6)
    np.testing.assert_array_equal(_column(data, parts, "t=missing"), ~present)
    assert np.isfinite(_x(data)).all()


def test_dates_without_times_times_without_dates_and_dates_in_words(prepared: Any) -> None:
    days = [dt.date(2020 + n % 3, 1 + n % 12, 1 + n % 27) for n in range(60)]
    columns = {
        "day": pa.array(days),
        "time": pa.array([dt.time(n % 24, n % 60) for n in range(60)]),
        "words": [day.strftime("%d/%m/%Y") for day in days],
        "y": _y(60),
    }
    parts = prepared(columns, steps={"words": {"date": {"format": "%d/%m/%Y", "parts": ["year", "month"], "cycles": False}}})
    day, time, words = parts.host.codings.columns
    assert day == Date("day", ("year", "month", "day", "weekday")) and time == Date("time", ("hour",))
    assert words == Date("words", ("year", "month"), "%d/%m/%Y")
    encoded = parts.host.encode({"day": ["2021-05-09"], "time": [dt.time(6, 30)], "words": ["09/05/2021"]})
    assert encoded["numeric"].tolist() == [[2021, 5, 9, 6, 6.5, 2021, 5]]
    with pytest.raises(DataError, match=r"row 0: column 'words' has '2021-05-09', which is no date in the format '%d/%m/%Y'"):
        parts.host.encode({"day": [None], "time": [None], "words": ["2021-05-09"]})


# Both parts in JSON


def _mixed(rows: int = 500) -> pa.Table:
    rng = np.random.default_rng(10)
    hole = rng.random(rows) < 0.1
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    zoned = [start + dt.timedelta(minutes=int(m)) for m in rng.integers(0, 500_000, rows)]
    return pa.table(
        {
            "f": pa.array(rng.normal(size=rows), mask=hole),
            "f32": pa.array(rng.normal(size=rows).astype(np.float32)),
            "i": pa.array(rng.integers(-5, 2**40, rows), mask=hole),
            "u8": pa.array(rng.integers(0, 255, rows).astype(np.uint8)),
            "big": pa.array(1_600_000_000 + np.arange(rows)),
            "flag": pa.array(rng.random(rows) < 0.3, mask=hole),
            "word": pa.array(rng.choice(["x", "y", "", "'", "ß"], rows), mask=hole),
            "code": pa.array(rng.integers(0, 5, rows), mask=hole),
            "rate": pa.array(rng.choice([0.5, 1.0, 99.0], rows)),
            "user": pa.array([f"u{n}" for n in rng.integers(0, 90, rows)]),
            "when": pa.array([t.replace(tzinfo=None) for t in zoned], mask=hole),
            "zoned": pa.array(zoned, pa.timestamp("us", tz="Europe/Berlin")),
            "ns": pa.array([t.replace(tzinfo=None) for t in zoned], pa.timestamp("ns")),
            "day": pa.array([t.date() for t in zoned], mask=hole),
            "hour": pa.array([t.time() for t in zoned], pa.time32("s")),
            "y": rng.integers(3, 6, rows),
        }
    )


def _mixed_parts(prepared: Any) -> tuple[Data, Fitted]:
    steps = {
        "f": ["log", "standardise"], "f32": [{"quantile_buckets": 4}], "i": {"clip": 0.02, "fill": "median"},
        "u8": [{"quantile_buckets": {"count": 8, "as": "rank"}}], "user": [{"hash": 50}], "word": ["target_encode"],
    }  # fmt: skip
    data = prepared(_mixed(), categorical=["flag", "word", "code", "rate", "user"], steps=steps)
    return data, data.fitted


def _encoded(fitted: Any, table: pa.Table) -> dict[str, Any]:
    encoded: dict[str, Any] = fitted.host.codings.encode(ArrowValues(table.combine_chunks().to_batches()[0]))
    return encoded


def test_plain_values_and_arrow_batches_give_equal_bits(prepared: Any) -> None:
    _, fitted = _mixed_parts(prepared)
    table = _mixed()
    fast = _encoded(fitted, table)
    slow = fitted.rows(
        {name: table[name].to_pylist() for name in table.column_names if name != "ns"}
        | {"ns": table["ns"].cast(pa.timestamp("us")).to_pylist()}
    )
    arrays = {name: table[name].to_numpy() for name in table.column_names if name not in ("flag", "word")}
    numpy = fitted.rows({**arrays, "flag": table["flag"].to_pylist(), "word": table["word"].to_pylist()})
    assert set(fast) == set(slow) == {"numeric", "ids"}
    for name, column in fast.items():
        assert column.dtype == slow[name].numpy().dtype == {"numeric": np.float32, "ids": np.int32}[name]
        assert column.tobytes() == slow[name].numpy().tobytes() == numpy[name].numpy().tobytes()
    worded = table.set_column(table.column_names.index("word"), "word", table["word"].dictionary_encode())
    assert _encoded(fitted, worded)["numeric"].tobytes() == fast["numeric"].tobytes()


def test_what_was_fitted_comes_back_from_json_as_it_was(prepared: Any) -> None:
    _, fitted = _mixed_parts(prepared)
    back = Fitted.from_json(json.loads(json.dumps(fitted.to_json(), allow_nan=False)))
    assert back.host == fitted.host and back.device.steps == fitted.device.steps and back.signature == fitted.signature
    assert isinstance(back.host, TableHost)
    assert {type(coding) for coding in back.host.codings.columns} == {Number, Date, Category, TargetEncoding}
    one, other = _encoded(fitted, _mixed()), _encoded(back, _mixed())
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    tensors = {name: torch.from_numpy(column) for name, column in one.items()}
    mine, theirs = fitted.device(tensors), back.device(tensors)
    assert list(mine) == ["x", "categories"] and all(torch.equal(mine[name], theirs[name]) for name in mine)
    with pytest.raises(DataError, match="version 99"):
        Fitted.from_json({**fitted.to_json(), "version": 99})
    with pytest.raises(DataError, match="version 98"):
        TableHost.from_json({**fitted.host.to_json(), "version": 98})


def test_unseen_values_are_unknown_and_counted(prepared: Any) -> None:
    parts = prepared({"a": ["u", "v"] * 5, "b": [1.0, 2.0] * 5, "y": _y(10)}, categorical=["a", "b"])
    unseen: Counter[str] = Counter()
    ids = parts.host.encode({"a": ["u", "w", None, "z"], "b": [1, "2", 3.5, 2.0]}, unseen)["ids"]
    assert ids.tolist() == [[1, 1], [0, 2], [0, 0], [0, 2]]
    assert unseen == {"a": 2, "b": 1}
    assert parts.prepare[0](torch.zeros(4, 0), torch.from_numpy(ids))[1].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"b": [1]}, "no column 'a', which the model was trained with; known: b"),
        ({"a": ["x"], "b": ["k"]}, "column 'a' holds numbers; row 0 has 'x'"),
        ({"a": [1.0, 2.0], "b": ["k"]}, "columns differ in length: a has 2, b has 1"),
        ({"a": np.zeros((1, 2)), "b": ["k"]}, r"column 'a' is one value a row, got an array of shape \[1, 2\]"),
        ({"a": [1.0], "b": [["k"]]}, r"column 'b': \['k'\] can't be a category"),
    ],
)
def test_raw_values_that_do_not_fit_are_said(prepared: Any, columns: dict[str, Any], said: str) -> None:
    parts = prepared({"a": [1.0, 2.0, 3.0, 4.0], "b": ["k", "l"] * 2, "y": _y(4)})
    with pytest.raises(DataError, match=said):
        parts.host.encode(columns)


def test_infinite_numbers_are_missing_when_predicting(prepared: Any) -> None:
    parts = prepared({"a": [1.0, 2.0, None, 3.0], "y": _y(4)})
    encoded = parts.host.encode({"a": [float("inf"), 1e300, float("nan"), None, 2.0]})["numeric"]
    assert np.isnan(encoded[:4]).all()
    assert parts.prepare[0](torch.from_numpy(encoded), torch.zeros(5, 0))[:, 1].tolist() == [1, 1, 1, 1, 0]


# The device part


def _device() -> TableFeatures:
    return TableFeatures(
        [
            NumberFeatures("a", fill=1.5, flag="a=missing", mean=0.1, std=3.0),
            NumberFeatures("b", low=-1.0, log=True),
            NumberFeatures("t.hour", period=24.0),
            NumberFeatures("c", edges=(0.0, 1.0), value=False),
            NumberFeatures("d", edges=(0.5,), value=False, rank=True),
        ],
        [CategoryFeatures("k", 3, ("x", "y")), CategoryFeatures("many", 100)],
    )


def _inputs(rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    numeric = torch.randn(rows, 5, generator=made)
    numeric[::7, 0] = float("nan")
    return numeric, torch.randint(0, 3, (rows, 2), generator=made).to(torch.int32)


def test_the_device_part_parses_from_its_written_form() -> None:
    part = _device()
    written = json.loads(json.dumps(part.written(), allow_nan=False))
    (options,) = written.values()
    back = TableFeatures(**options)
    assert list(written) == ["table"] and back == part and back.written() == part.written()
    assert back != TableFeatures(options["numeric"][:4], options["ids"])
    for mine, theirs in zip(part(*_inputs()), back(*_inputs()), strict=True):
        assert torch.equal(mine, theirs)


def test_the_device_part_describes_what_it_makes() -> None:
    part = _device()
    numeric, ids = _inputs()
    batch = {"numeric": numeric, "ids": ids, "y": torch.arange(64), "weight": torch.ones(64)}
    schema = {name: Column(column.dtype, tuple(column.shape[1:])) for name, column in batch.items()}
    made = part(batch, _keys(64))
    assert {name: Column(column.dtype, tuple(column.shape[1:])) for name, column in made.items()} == part.describe(schema)
    assert len(part.feature_names) == made["x"].shape[1] == 12 and part.cardinalities == (100,)
    with pytest.raises(DataError, match=r"prepared with 5 columns of 'numeric', and the data has rows of \[4\]"):
        part.describe({**schema, "numeric": Column(torch.float32, (4,))})
    with pytest.raises(DataError, match="2 columns of 'ids', and the data has no such column"):
        part.describe({"numeric": schema["numeric"]})


def test_the_device_part_is_exported_with_any_number_of_rows() -> None:
    part = _device().eval()
    exported = torch.export.export(part, _inputs(), dynamic_shapes=({0: torch.export.Dim("rows")},) * 2).module()
    for rows in (2, 64, 333):
        for mine, theirs in zip(part(*_inputs(rows)), exported(*_inputs(rows)), strict=True):
            assert torch.equal(mine, theirs)


def test_that_of_arrays_is_exported_with_any_number_of_rows() -> None:
    fitted = fo.data.arrays(np.random.default_rng(0).normal(size=(9, 3)).astype("float32"), normalize="auto").fitted
    few, more = (fitted.rows(np.ones((rows, 3), "float32")) for rows in (2, 7))
    exported = torch.export.export(fitted.device, (few,), dynamic_shapes=({"x": {0: torch.export.Dim("rows")}},))
    assert torch.equal(exported.module()(more)["x"], fitted.device(more)["x"])


def test_the_device_part_never_waits_for_the_device() -> None:
    part, batch = _device(), dict(zip(("numeric", "ids"), _inputs(), strict=True))
    with torch.profiler.profile() as profile:
        part(batch, _keys(64))
    called = {event.key for event in profile.key_averages()}
    assert "aten::where" in called and not called & {"aten::_local_scalar_dense", "aten::item", "aten::nonzero"}


def test_the_device_part_makes_one_copy_a_device() -> None:
    part = _device()
    numeric, ids = _inputs()
    batch = {"numeric": numeric.to("meta"), "ids": ids.to("meta")}
    made = part(batch, _keys(64))
    assert made["x"].device.type == "meta" and made["x"].shape == (64, 12)
    assert part(batch, _keys(64))["categories"].device.type == "meta"
    assert part.fill.device.type == "cpu" and part({"numeric": numeric, "ids": ids}, _keys(64))["x"].device.type == "cpu"


def test_rows_of_a_batch_do_not_touch_each_other() -> None:
    part = _device()
    numeric, ids = _inputs()
    whole = part(numeric, ids)[0]
    for row in (0, 7, 63):
        assert torch.equal(part(numeric[row : row + 1], ids[row : row + 1])[0], whole[row : row + 1])


# Streaming


def test_how_files_are_cut_changes_no_bit(prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "BLOCK_ROWS", 128)  # more than one block of these few rows
    mixed = _mixed(700)
    steps = {"f": {"clip": 0.1, "fill": "median"}, "word": ["target_encode"], "u8": [{"quantile_buckets": 5}]}
    options: dict[str, Any] = {"steps": steps, "categorical": ["word", "code", "user"], "holdout": 0.2}
    whole = parts = prepared(mixed, **options)
    many = tmp_path / "many"
    many.mkdir()
    for place, start in enumerate((0, 1, 130, 131, 400)):
        stop = (1, 130, 131, 400, 700)[place]
        pq.write_table(mixed.slice(start, stop - start), many / f"{place}.parquet", row_group_size=37)
    pieces = others = table(many, label="y", **options)
    assert (others.host, others.prepare) == (parts.host, parts.prepare)
    assert pieces.train.fingerprint() == whole.train.fingerprint()
    assert pieces.validation is not None and whole.validation is not None
    assert pieces.validation.fingerprint() == whole.validation.fingerprint()


def test_the_order_of_rows_changes_last_bits_alone(prepared: Any) -> None:
    table = _mixed(600)
    steps = {"f": {"clip": 0.1}, "word": ["target_encode"], "u8": [{"quantile_buckets": 5}]}
    order = np.random.default_rng(0).permutation(600)
    options: dict[str, Any] = {"steps": steps, "categorical": ["word", "code", "user"]}
    data = one = prepared(table, **options)
    shuffled = other = prepared(table.take(order), **options)
    assert _without_floats(one.fitted.to_json()) == _without_floats(other.fitted.to_json())
    np.testing.assert_allclose(_floats(one.fitted.to_json()), _floats(other.fitted.to_json()), rtol=1e-12)
    assert data.train.read(torch.from_numpy(order))["ids"].equal(shuffled.train.read(torch.arange(600))["ids"])


def _without_floats(written: Any) -> Any:
    if isinstance(written, dict):
        return {name: _without_floats(value) for name, value in written.items()}
    if isinstance(written, list | tuple):
        return [_without_floats(value) for value in written]
    return None if isinstance(written, float) else written


def _floats(written: Any) -> list[float]:
    if isinstance(written, dict | list | tuple):
        return [f for value in (written.values() if isinstance(written, dict) else written) for f in _floats(value)]
    return [written] if isinstance(written, float) else []


# What is written wrongly


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ({"a": ["logs"]}, "steps of 'a': unknown step 'logs'; did you mean 'log'"),
        (
            {"a": ["standardise", "log"]},
            "steps of 'a': got the order standardise, log; these steps always run as log, standardise",
        ),
        ({"a": ["log", "log"]}, "'log' is given twice"),
        ({"a": ["log", {"hash": 3}]}, "'log' and 'hash' are for different kinds of columns"),
        ({"a": ["standardise", {"quantile_buckets": 3}]}, "'standardise' and 'quantile_buckets'"),
        ({"a": [{"fill": "mode"}]}, "fill is mean, median, zero or a number, got 'mode'"),
        ({"a": [{"clip": 0.7}]}, "clip: one number is the share .*0 to 0.5, got 0.7"),
        ({"a": [{"clip": [3, 1]}]}, "the lower limit comes first"),
        ({"a": [{"clip": {"quantiles": [1, 99]}}]}, "quantiles are shares from 0 to 1"),
        ({"a": [{"quantile_buckets": 1}]}, "quantile_buckets is a whole number, 2 to 256, got 1"),
        ({"a": [{"quantile_buckets": {"as": "words"}}]}, "'as' is onehot or rank"),
        ({"a": [{"target_encode": {"fold": 3}}]}, "target_encode has no option 'fold'; did you mean 'folds'"),
        ({"a": [{"date": {"parts": ["minute"]}}]}, "date: unknown part 'minute'"),
        ({"a": [{"hash": 0}]}, "hash is a whole number, 1 to"),
        ({"a": {"log": "yes"}}, "log is true or false, got 'yes'"),
        (["log"], "steps is a mapping of columns to steps"),
    ],
)
def test_steps_that_can_not_be_are_refused(steps: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_steps(steps, ColumnSteps())


def test_steps_of_another_kind_of_column_are_refused(prepared: Any) -> None:
    columns = {"a": [1.0, 2.0], "b": ["u", "v"], "y": _y(2)}
    with pytest.raises(
        UsageError, match="steps of 'b': 'log' does not apply to a column that is a category; those that do: min_count"
    ):
        prepared(columns, steps={"b": ["log"]})
    with pytest.raises(DataError, match="steps: the table has no column 'c'"):
        prepared(columns, steps={"c": ["log"]})
    parts = prepared({**columns, "a": [1.0, 1.0]}, steps={"a": [{"hash": 4}], "b": {"min_count": 1}})
    assert parts.host.codings.ids == ("b",), "a step for categories makes a number one; this one is constant"


def test_host_parts_know_their_columns() -> None:
    host = Codings((Number("a", 2.0), Category("k", ("x",)), Date("t", ("year", "hour"))))
    assert host.numeric == ("a", "t.year", "t.hour") and host.ids == ("k",)
    assert Codings.from_dict(host.to_dict()) == host
    values = PlainValues({"a": [3], "k": ["x"], "t": ["2020-01-01T12:00"]})
    assert host.encode(values)["numeric"].tolist() == [[1.0, 2020.0, 12.0]]
