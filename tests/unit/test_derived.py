"""Derived columns: every function against pandas, random expressions against pandas, and texts that are no expressions."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import flatout as fo
from flatout.base.errors import DataError, RecipeError, UsageError
from flatout.data.data import Data
from flatout.data.fitted import Fitted
from flatout.data.fitted.derived.asked import asked_columns, checked_expression
from flatout.data.fitted.derived.derivation import Derivation
from flatout.data.fitted.derived.derived_values import DerivedDates, DerivedNumbers, DerivedTexts
from flatout.data.fitted.derived.functions import FUNCTIONS, OPERATORS
from flatout.data.fitted.derived.parser import parsed
from flatout.data.fitted.derived.tokens import ExpressionError
from flatout.data.fitted.table_rows import TableHost
from flatout.data.fitted.values import PlainValues

ROWS = 200


def frame(rows: int = ROWS) -> pd.DataFrame:
    drawn = np.random.default_rng(0)
    a, b = drawn.normal(0, 3, rows).round(1), drawn.integers(-2, 3, rows).astype(float)
    a[drawn.random(rows) < 0.1] = np.nan
    b[drawn.random(rows) < 0.1] = np.nan
    words = np.array(["Red fox", "blue", " Green tea cup ", "12.5", "", "red", None], dtype=object)
    days = pd.Series(pd.date_range("2023-12-28 22:13:07", periods=rows, freq="7h").astype("datetime64[us]"))
    later = days + pd.to_timedelta(drawn.integers(-5000, 5000, rows), "min")
    days[drawn.random(rows) < 0.1] = pd.NaT
    return pd.DataFrame(
        {"a": a, "b": b, "t": drawn.choice(words, rows), "u": drawn.choice(words, rows), "d": days, "e": later,
         "p": drawn.choice(np.array([True, False]), rows), "g": drawn.choice(["x", "y", "z"], rows)}
    )  # fmt: skip


KINDS = {"a": "number", "b": "number", "t": "text", "u": "text", "d": "date", "e": "date", "p": "truth", "g": "text"}


def computed(text: str, df: pd.DataFrame) -> pd.Series:
    """The expression for every row: numbers, 1 and 0 for true and false, texts or dates."""
    columns = {
        name: [None if pd.isna(v) else v for v in df[name]] if df[name].dtype == object else df[name].to_numpy() for name in df
    }
    values = Derivation({"it": text}, KINDS).values(PlainValues(columns))
    found = values.column("it")
    if isinstance(found, DerivedNumbers):
        return pd.Series(found.values)
    if isinstance(found, DerivedTexts):
        return pd.Series([found.texts[code] for code in found.codes], dtype=object)
    assert isinstance(found, DerivedDates)
    return pd.Series(np.where(found.missing, np.datetime64("NaT"), found.instants.astype("datetime64[us]")))


def nulled(condition: pd.Series, *columns: pd.Series) -> pd.Series:
    """A condition as numbers, missing where one of the columns is."""
    return condition.astype(float).where(~np.logical_or.reduce([one.isna() for one in columns]))


def finite(values: pd.Series) -> pd.Series:
    return values.replace([np.inf, -np.inf], np.nan)


def of_text(make: Callable[[str], Any]) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda df: df.t.astype(object).map(lambda text: make(text) if isinstance(text, str) else np.nan)


def _number(text: str) -> float:
    return float(pd.to_numeric(text, errors="coerce")) if text else np.nan


# every function and operator of a row, with the same in pandas
BY_ROW: dict[str, tuple[str, Callable[[pd.DataFrame], pd.Series]]] = {
    "log": ("log(a)", lambda f: finite(np.log(f.a))),
    "log10": ("log10(a)", lambda f: finite(np.log10(f.a))),
    "log2": ("log2(a)", lambda f: finite(np.log2(f.a))),
    "log1p": ("log1p(a)", lambda f: finite(np.log1p(f.a))),
    "exp": ("exp(a * 400)", lambda f: finite(np.exp(f.a * 400))),
    "sqrt": ("sqrt(a)", lambda f: np.sqrt(f.a)),
    "abs": ("abs(a)", lambda f: f.a.abs()),
    "sign": ("sign(a)", lambda f: np.sign(f.a)),
    "floor": ("floor(a)", lambda f: np.floor(f.a)),
    "ceil": ("ceil(a)", lambda f: np.ceil(f.a)),
    "round": ("round(a * 10.5, 1) + round(a)", lambda f: (f.a * 10.5).round(1) + f.a.round()),
    "clip": ("clip(a, -1, b)", lambda f: f[["a"]].assign(a=f.a.clip(-1)).a.clip(upper=f.b).where(f.b.notna())),
    "if": ("if(a > b, a, null)", lambda f: f.a.where(f.a > f.b)),
    "fill": ("fill(a, b, 7)", lambda f: f.a.fillna(f.b).fillna(7)),
    "bin": ("bin(a, [-2, 0, 1.5])", lambda f: pd.cut(f.a, [-np.inf, -2, 0, 1.5, np.inf], right=False, labels=False)),
    "year": ("year(d)", lambda f: f.d.dt.year),
    "month": ("month(d)", lambda f: f.d.dt.month),
    "day": ("day(d)", lambda f: f.d.dt.day),
    "day_of_year": ("day_of_year(d)", lambda f: f.d.dt.day_of_year),
    "weekday": ("weekday(d)", lambda f: f.d.dt.day_of_week),
    "is_weekend": ("is_weekend(d)", lambda f: nulled(f.d.dt.day_of_week >= 5, f.d)),
    "hour": ("hour(d)", lambda f: f.d.dt.hour),
    "minute": ("minute(d)", lambda f: f.d.dt.minute),
    "second": ("second(d)", lambda f: f.d.dt.second),
    "days_between": ("days_between(d, e)", lambda f: (f.e - f.d) / pd.Timedelta("1D")),
    "hours_between": ("hours_between(d, e)", lambda f: (f.e - f.d) / pd.Timedelta("1h")),
    "minutes_between": ("minutes_between(d, e)", lambda f: (f.e - f.d) / pd.Timedelta("1min")),
    "seconds_between": ("seconds_between(d, '2024-01-01')", lambda f: (pd.Timestamp("2024-01-01") - f.d).dt.total_seconds()),
    "date": ("date(t)", lambda f: pd.Series(pd.NaT, f.index)),
    "length": ("length(t)", lambda f: f.t.str.len()),
    "word_count": ("word_count(t)", lambda f: f.t.str.split().str.len()),
    "lower": ("lower(t)", of_text(str.lower)),
    "upper": ("upper(t)", of_text(str.upper)),
    "trim": ("trim(t)", of_text(str.strip)),
    "contains": ("contains(t, 'ed')", of_text(lambda t: float("ed" in t))),
    "startswith": ("startswith(t, 're')", of_text(lambda t: float(t.startswith("re")))),
    "endswith": ("endswith(t, 'x')", of_text(lambda t: float(t.endswith("x")))),
    "text": ("text(b)", lambda f: f.b.map(lambda one: None if one != one else str(int(one)))),
    "number": ("number(t)", lambda f: f.t.map(lambda one: _number(one) if isinstance(one, str) else np.nan)),
    "min": ("min(a, b, 1)", lambda f: f[["a", "b"]].assign(c=1.0).min(axis=1, skipna=False)),
    "max": ("max(a, b)", lambda f: f[["a", "b"]].max(axis=1, skipna=False)),
    "+": ("a + b", lambda f: f.a + f.b),
    "-": ("a - b", lambda f: f.a - f.b),
    "*": ("a * b", lambda f: f.a * f.b),
    "/": ("a / b", lambda f: finite(f.a / f.b)),
    "//": ("a // b", lambda f: finite(f.a // f.b)),
    "%": ("a % b", lambda f: f.a % f.b),
    "**": ("a ** b", lambda f: finite(f.a**f.b)),
    "negative": ("-a ** 2", lambda f: -(f.a**2)),
    "==": ("t == u", lambda f: nulled(f.t == f.u, f.t, f.u)),
    "!=": ("t != 'red'", lambda f: nulled(f.t != "red", f.t)),
    "<": ("d < '2024-01-20'", lambda f: nulled(f.d < "2024-01-20", f.d)),
    "<=": ("-1 <= a <= b", lambda f: nulled(f.a.ge(-1) & (f.a <= f.b), f.a, f.b).where(~((f.a < -1) & f.b.isna()), 0)),
    ">": ("a > b", lambda f: nulled(f.a > f.b, f.a, f.b)),
    ">=": ("d >= e", lambda f: nulled(f.d >= f.e, f.d)),
    "and": ("a > 0 and p", lambda f: ((f.a > 0).astype("boolean").mask(f.a.isna()) & f.p.astype("boolean")).astype("Float64")),
    "or": ("a > 0 or p", lambda f: ((f.a > 0).astype("boolean").mask(f.a.isna()) | f.p.astype("boolean")).astype("Float64")),
    "not": ("not a > 0", lambda f: nulled(~(f.a > 0), f.a)),
    "in": ("b not in [1, -2]", lambda f: nulled(~f.b.isin([1, -2]), f.b)),
    "is null": ("t is not null and a is null", lambda f: (f.t.notna() & f.a.isna()).astype(float)),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_ROW)
def test_a_function_gives_what_pandas_gives(name: str) -> None:
    text, reference = BY_ROW[name]
    df = frame()
    with np.errstate(all="ignore"):
        found, wanted = computed(text, df), reference(df)
    if found.dtype == object:
        assert [None if pd.isna(one) else one for one in found] == [None if pd.isna(one) else one for one in wanted]
    elif found.dtype.kind == "M":
        assert (found.isna() == wanted.isna()).all() and (found.dropna() == wanted.dropna()).all()
    else:
        there = wanted.astype("Float64").to_numpy(np.float64, na_value=np.nan)
        np.testing.assert_allclose(found.to_numpy(), there, rtol=1e-12)
    assert found.isna().sum() < ROWS or name == "date"


def test_every_function_is_compared_with_pandas() -> None:
    fitted = {"quantile_bin", "mean", "std", "count", "share", "lag", "rolling_mean"}
    assert {*FUNCTIONS, *OPERATORS} == {*BY_ROW} | fitted


def test_texts_are_joined_and_dates_are_read() -> None:
    df = frame()
    crossed = df.t.where(df.t.notna() & df.u.notna(), None).str.cat(df.u, sep="_")
    found = computed("t + '_' + u", df)
    assert [one for one in found if one is not None] == crossed.dropna().tolist() and found.isna().sum() == crossed.isna().sum()
    days = df.assign(t=df.d.dt.strftime("%d.%m.%Y").where(df.d.notna(), None))
    assert (computed("days_between(date(t, '%d.%m.%Y'), d)", days).dropna() < 1).all()
    assert computed("text(d)", df)[0] == df.d[0].isoformat() and computed("text(p)", df)[0] in ("true", "false")


def test_random_expressions_give_what_pandas_gives() -> None:
    drawn = random.Random(0)
    df = frame(60)

    def made(depth: int) -> tuple[str, pd.Series]:
        if depth == 0:
            name = drawn.choice(["a", "b"])
            return drawn.choice(
                [(name, df[name]), (name, df[name]), ("2.5", pd.Series(2.5, df.index)), ("0", pd.Series(0.0, df.index))]
            )
        (left, x), (right, y) = made(depth - 1), made(depth - 1)
        with np.errstate(all="ignore"):
            return drawn.choice(
                [
                    lambda: (f"({left} + {right})", x + y), lambda: (f"({left} - {right})", x - y),
                    lambda: (f"{left} * ({right})", x * y) if depth == 1 else (f"({left}) * ({right})", x * y),
                    lambda: (f"(({left}) / ({right}))", finite(x / y)), lambda: (f"abs({left})", x.abs()),
                    lambda: (f"min({left}, {right})", pd.concat([x, y], axis=1).min(axis=1, skipna=False)),
                    lambda: (f"fill({left}, {right})", x.fillna(y)), lambda: (f"log1p(abs({left}))", np.log1p(x.abs())),
                    lambda: (f"if(({left}) > ({right}), {left}, -({right}))", x.where(x > y, -y).where(x.notna() & y.notna())),
                    lambda: (f"if(({left}) is null, {right}, {left})", y.where(x.isna(), x)),
                ]
            )()  # fmt: skip

    for number in range(150):
        with np.errstate(all="ignore"):
            text, wanted = made(1 + number % 4)
        found = computed(text, df)
        np.testing.assert_allclose(found.to_numpy(), wanted.to_numpy(np.float64), rtol=1e-9, atol=1e-12, err_msg=text)


def test_whatever_is_no_expression_is_a_plain_error() -> None:
    drawn = random.Random(1)
    words = """a b ( ) [ ] , + - ** / == < and not in is null by 'x' " 1 2e5 `c` if( mean( lag(a,1) min( bin(a,[1]) é ∂ 1e999
    __import__ ."""
    pieces = words.split()
    pieces += [" ", " ", "\n", "\0"]
    texts = ["".join(drawn.choices(pieces, k=drawn.randint(0, 25))) for _ in range(3000)]
    texts += [
        "(" * 3000,
        "not " * 900 + "a",
        "-" * 3900 + "a",
        "a" + "+a" * 1900,
        "a" + "<a" * 1900,
        "a**" * 1200 + "a",
        "1" * 4001,
    ]
    texts += ["a < (" * 39 + "a" + ")" * 39 + " < b", "[" * 2000, "if(" * 1000, "'" + "\\" * 3001, "x by " * 700, "1e999"]
    good = 0
    for text in texts:
        tree, _, mistakes = checked_expression("derive: x", text, KINDS.__getitem__, list(KINDS))
        good += not mistakes
        assert (tree is not None or mistakes) and all(line.startswith("derive: x: ") for line in mistakes)
        if tree is not None and not mistakes and not any(word in text for word in ("mean", "lag", "min(")):
            assert len(computed(text, frame(3))) == 3
    assert 20 < good < len(texts) / 2


@pytest.mark.parametrize(
    ("text", "message", "marked"),
    [
        ("60 * distanc / 2", "no column 'distanc'; did you mean 'distance'?", "distanc"),
        ("lgo(distance)", "no function 'lgo'; did you mean 'log'?", "lgo"),
        ("coalesce(distance, 0)", "write fill(x, other)", "coalesce"),
        ("distance = 3", "write ==", "="),
        ("length(distance)", "length takes text, and this is a number: text(...)", "distance"),
        ("city + distance", "these are a number and text", "city + distance"),
        ("if(distance, 1, 2)", "write a comparison, such as x > 0", "distance"),
        ("bin(distance, [3, 1])", "the smallest first", "[3, 1]"),
        ("bin(distance)", "expected bin(x, [edges]), got 1 argument", "bin(distance)"),
        ("log(distance) by city", "by belongs to", "log(distance) by city"),
        ("city in ['a', 3]", "this is a number, and the value is text", "3"),
        ("day > 'tomorrow'", "no date in ISO 8601", "'tomorrow'"),
        ("distance +", "expected a column, a number, a text or a function, got the end", None),
        ("if(city == 'a', null, null)", "null in every row", "if(city == 'a', null, null)"),
        ("lag(distance, 0)", "a whole number, 1 to", "0"),
    ],
)
def test_a_mistake_is_shown_where_it_is(text: str, message: str, marked: str | None) -> None:
    kinds = {"distance": "number", "city": "text", "day": "date"}
    _, _, mistakes = checked_expression("derive: it", text, kinds.__getitem__, list(kinds))
    said, shown, mark = mistakes[0].split("\n")
    assert message in said
    place = mark.index("^")
    if marked is not None:
        assert shown[place : len(mark)] == marked


def test_all_mistakes_of_a_recipe_come_at_once(tmp_path: Path) -> None:
    df = frame().assign(y=1.5)
    df.to_parquet(tmp_path / "t.parquet")
    pd.DataFrame({"g": ["x", "x", "y"], "s": [1, 2, 3]}).to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(RecipeError) as found:
        fo.data.table(
            tmp_path / "t.parquet", label="y", base_folder=tmp_path, join={"file": "twice.csv", "on": "g"},
            derive={"k": "log(aa)", "l": "l2 + 1", "l2": "l", "m": "a +", "a": "b"}, where=["b", "q > 1"],
        )  # fmt: skip
    said = str(found.value)
    for part in ("several rows for one g: x", "no column 'aa'", "made of itself: l -> l2 -> l", "got the end", "already",
                 "expected a condition", "no column 'q'"):  # fmt: skip
        assert part in said, part
    with pytest.raises(RecipeError) as found:
        fo.data.table(df, label="y", derive={"m": "mean(y) by g", "n": "y * 2", "o": "lag(y, 1)"}, where="mean(a) > a")
    for part in ("target_encode", "n: it is made of the label", "time: date", "`mean(a)` is fitted"):
        assert part in str(found.value), part
    assert asked_columns(["a"], 3, {"on": "x"}, 4)[1] and not asked_columns({"a": 1})[1]


# Fitted on training rows


def parts_of(data: Data, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """A derived number of the rows of each part, as encoded."""
    host = data.host
    assert isinstance(host, TableHost)
    place = host.codings.numeric.index(name)
    shifts = {coding.name: getattr(coding, "shift", 0.0) for coding in host.codings.columns}
    return {
        part: source.read(torch.arange(len(source)))["numeric"][:, place].double().numpy() + shifts.get(name, 0.0)
        for part, source in data.parts().items()
    }


def test_groups_are_fitted_on_training_rows_as_pandas_does() -> None:
    df = frame(400).drop(columns=["d", "e"])
    df["y"], df["part"] = np.arange(400) % 7 + 0.5, np.where(np.arange(400) % 3, "train", "test")
    df.loc[df.part == "test", "g"] = df.g.where(df.index % 2 == 0, "new")
    calls = {"m": "mean(a) by g", "s": "std(a) by [g, b]", "c": "count() by g", "h": "share(b > 0) by g", "lo": "min(a) by b",
             "hi": "max(a)", "nested": "mean(a - m) by b"}  # fmt: skip
    data = fo.data.table(df, label="y", split="part", derive=calls, drop="t")
    train, test = df[df.part == "train"], df[df.part == "test"]
    by = {"m": ["g"], "s": ["g", "b"], "c": ["g"], "h": ["g"], "lo": ["b"], "nested": ["b"]}
    train = train.assign(h0=nulled(train.b > 0, train.b), k=train.a - train.groupby("g").a.transform("mean"))
    one = {
        "m": train.groupby("g").a.mean(), "s": train.groupby(["g", "b"], dropna=False).a.std(), "c": train.groupby("g").size(),
        "h": train.groupby("g").h0.mean(), "lo": train.groupby("b", dropna=False).a.min(),
        "nested": train.groupby("b", dropna=False).k.mean(),
    }  # fmt: skip
    other = {
        "m": train.a.mean(),
        "s": train.a.std(),
        "c": 0.0,
        "h": train.h0.mean(),
        "lo": train.a.min(),
        "nested": train.k.mean(),
    }
    for name, keys in by.items():
        table = one[name].rename("it").reset_index()
        for part, rows in (("train", train), ("test", test)):
            found = rows.merge(table, on=keys, how="left", indicator=True)
            wanted = found.it.where(found._merge == "both", other[name])
            np.testing.assert_allclose(parts_of(data, name)[part], wanted, rtol=1e-5, err_msg=name)
    assert any("`mean(a) by g` has a group unknown" in note for note in data.notes)
    changed = df.assign(a=df.a.where(df.part == "train", 1e6))  # held-out rows change nothing that was fitted
    again = fo.data.table(changed, label="y", split="part", derive=calls, drop="t")
    assert again.host.to_json() == data.host.to_json()  # type: ignore[union-attr]


def test_bins_hold_equally_many_training_rows() -> None:
    df = pd.DataFrame({"a": np.random.default_rng(0).normal(size=1000), "y": np.arange(1000) + 0.5})
    data = fo.data.table(df, label="y", derive={"q": "quantile_bin(a, 8)"})
    assert np.bincount(parts_of(data, "q")["train"].astype(int)).tolist() == [125] * 8
    wanted = pd.qcut(df.a, 8, labels=False).to_numpy()
    assert (parts_of(data, "q")["train"] == wanted).mean() > 0.99  # at an edge, pandas takes the bin below


def dated(rows: int = 300) -> pd.DataFrame:
    drawn = np.random.default_rng(0)
    days = pd.date_range("2024-01-01", periods=rows // 3, freq="D").repeat(3)
    return pd.DataFrame(
        {"day": days, "store": np.tile([1, 2, 3], rows // 3), "x": drawn.normal(size=rows), "sales": drawn.normal(5, 2, rows)}
    )


LAGS = {"back": "lag(sales, 2) by store", "mean7": "rolling_mean(sales, 7) by store"}


def test_lags_look_back_in_time_and_never_ahead() -> None:
    df = dated()
    shuffled = df.sample(frac=1, random_state=0).reset_index(drop=True)
    data = fo.data.table(shuffled, label="sales", holdout=0.2, holdout_latest="day", derive=LAGS)
    groups = df.groupby("store").sales
    df["back"], df["mean7"] = groups.shift(2), groups.transform(lambda s: s.shift(1).rolling(7, min_periods=1).mean())
    rows = shuffled.merge(df, on=["day", "store"], how="left")
    cut = rows.day > rows.day.sort_values().iloc[239]
    for name in LAGS:
        found = parts_of(data, name)
        np.testing.assert_allclose(found["validation"], rows[cut][name], rtol=1e-5)
        np.testing.assert_allclose(found["train"], rows[~cut][name], rtol=1e-5)
    later = shuffled.assign(sales=shuffled.sales.where(shuffled.day < shuffled.day.max(), 99))  # the last day changes
    again = fo.data.table(later, label="sales", holdout=0.2, holdout_latest="day", derive=LAGS)
    for name in LAGS:
        for part in ("train", "validation"):
            np.testing.assert_array_equal(parts_of(again, name)[part], parts_of(data, name)[part])
    with pytest.raises(DataError, match="would look back at them: hold out the latest rows"):
        fo.data.table(shuffled, label="sales", holdout=0.2, time="day", derive=LAGS)
    with pytest.raises(UsageError, match="put all rows into one table"):
        fo.data.table(shuffled, label="sales", validation=shuffled, time="day", derive=LAGS)


def test_a_second_file_adds_columns_by_its_key(tmp_path: Path) -> None:
    df = pd.DataFrame({"store": [1, 2, 3, 9, 1, 2], "y": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]})
    stores = pd.DataFrame({"id": [3, 2, 1], "size": [30.0, None, 10.0], "town": ["c", "b", None], "open": [True, False, True]})
    stores["since"] = pd.to_datetime(["2020-01-01", "2021-01-01", "2022-06-01"])
    stores.to_parquet(tmp_path / "stores.parquet")
    join = {
        "file": "stores.parquet",
        "on": {"store": "id"},
        "columns": {"m2": "size", "town": "town", "open": "open", "since": "since"},
    }
    derive = {"age": "2024 - year(since)", "big": "m2 > 20"}
    data = fo.data.table(df, label="y", join=join, derive=derive, base_folder=tmp_path, min_count=1)
    wanted = df.merge(stores, left_on="store", right_on="id", how="left")
    np.testing.assert_allclose(parts_of(data, "m2")["train"], wanted["size"])
    np.testing.assert_allclose(parts_of(data, "age")["train"], 2024 - wanted.since.dt.year)
    assert "'store' has no row in stores.parquet: its columns are missing there in 1 rows" in data.notes
    assert [one.name for one in data.fitted.signature.inputs] == ["store"]
    again = Fitted.from_json(json.loads(json.dumps(data.fitted.to_json())))
    for name, column in again.rows({"store": [1, 2, 9.0]}).items():
        assert torch.equal(column.nan_to_num(-1), data.fitted.rows({"store": [1.0, 2, 9]})[name].nan_to_num(-1))


def test_rows_one_by_one_are_those_of_a_batch_and_of_the_files(tmp_path: Path) -> None:
    """The host part alone, from JSON, gives what training encoded: to the bit, and in rows of any number."""
    df = dated().assign(city=lambda f: f.store.map({1: "Ulm", 2: "Bonn", 3: None}))
    df.loc[5, "x"] = np.nan
    df.to_parquet(tmp_path / "t.parquet", row_group_size=64)
    derive = {**LAGS, "l": "log(x)", "r": "x / mean(x) by city", "q": "quantile_bin(x, 4)", "w": "is_weekend(day)",
              "c": "city + text(weekday(day))", "n": "count() by [city, month(day)]"}  # fmt: skip
    data = fo.data.table(
        tmp_path / "t.parquet", label="sales", holdout=0.2, holdout_latest="day", derive=derive, where="x > -2 or x is null"
    )
    fitted = Fitted.from_json(json.loads(json.dumps(data.fitted.to_json())))
    kept = df[~(df.x <= -2)]
    cut = kept.day.sort_values().iloc[len(kept) - len(data.validation or ())]  # type: ignore[arg-type]
    held = kept[kept.day >= cut]
    raw = [{"day": row.day.isoformat(), "store": row.store, "x": row.x, "city": row.city} for row in held.itertuples()]
    raw = [{name: None if value != value else value for name, value in row.items()} for row in raw]
    assert data.validation is not None
    encoded = data.validation.read(torch.arange(len(data.validation)))
    together, alone = fitted.rows(raw), [fitted.rows([row]) for row in raw]
    for name, column in together.items():
        wanted = encoded[name].float().nan_to_num(-9e9)
        assert torch.equal(column.float().nan_to_num(-9e9), wanted)
        assert torch.equal(torch.cat([one[name] for one in alone]).float().nan_to_num(-9e9), wanted)


def test_a_label_may_be_derived_and_a_split_does_not_move() -> None:
    df = dated().assign(end=lambda f: f.day + pd.to_timedelta((f.x.abs() * 60).round(), "min"))
    derive = {"late": "minutes_between(day, end) > 30", "z": "x * 2"}
    data = fo.data.table(df, label="late", holdout=0.25, derive=derive, drop=["end", "sales"])
    assert data.labels == ("false", "true") and len(data.train) == 225
    plain = fo.data.table(df, label="sales", holdout=0.25, drop="end")
    with_more = fo.data.table(df, label="sales", holdout=0.25, drop="end", derive={"z": "x * 2"})
    for part in ("train", "validation"):
        np.testing.assert_array_equal(parts_of(plain, "x")[part], parts_of(with_more, "x")[part])
    assert plain.fingerprint() != with_more.fingerprint()
    other = fo.data.table(df, label="sales", holdout=0.25, drop="end", derive={"z": "x * 3 + 1"})
    assert other.fingerprint() != with_more.fingerprint() or other.fitted.to_json() != with_more.fitted.to_json()


def test_parse_errors_have_a_place() -> None:
    with pytest.raises(ExpressionError) as found:
        parsed("a + (b")
    assert (found.value.start, found.value.message[:8]) == (6, "expected")
