"""How faults are planted in a real table, and how a case of a fault is described."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from _guard_cases import MOST_ROWS, Array, Columns, RealTable, _path, _rows, _with

Make = Callable[[], RealTable]


@dataclass(frozen=True)
class Photos:
    """Folders of photos by class: `copies` of the training photos lie among the test photos, written anew by `how`."""

    copies: int
    how: Callable[[Path, Path], Any]
    label: str = "label"

    def write(self, folder: Path) -> list[str]:
        real = _path("photos/hymenoptera")
        for part, name in (("train", "train"), ("val", "test")):
            for kind in ("ants", "bees"):
                shutil.copytree(real / part / kind, folder / name / kind)
        for kind in ("ants", "bees"):
            for path in sorted((folder / "train" / kind).iterdir())[: self.copies // 2]:
                self.how(path, folder / "test" / kind / f"x{path.name}")
        return [str(folder)]


@dataclass(frozen=True)
class Unseen:
    """Found if one of `guards` names one of `columns`. `at_prediction`: what is said when the second file is predicted."""

    name: str
    guards: tuple[str, ...]
    columns: tuple[str, ...]
    make: Callable[[np.random.Generator], RealTable | Photos] = field(repr=False)
    at_prediction: bool = False


def _words(values: Any) -> Array:
    return np.array(list(values), dtype=object)


def _yes(table: RealTable, word: Any) -> Array:
    return np.asarray(table.columns[table.label] == word)


def _moments(rows: int, first: str, minutes: int, draw: np.random.Generator) -> Array:
    return np.datetime64(first, "s") + (np.cumsum(draw.integers(1, 2 * minutes, rows)) * 60).astype("timedelta64[s]")


def _dated(make: Make, name: str, first: str, minutes: int, written: Callable[[Any], Any]) -> Any:
    def planted(draw: np.random.Generator) -> RealTable:
        moments = _moments(_rows(make()), first, minutes, draw).astype(object)
        texts = [written(moment) for moment in moments]
        return _with(make(), **{name: np.array(texts) if isinstance(texts[0], int) else _words(texts)})

    return planted


def _again(
    make: Make, name: str, sizes: tuple[int, int], words: Callable[[int], Any], jitter: tuple[str, ...], missing: float
) -> Any:
    """The same people again and again, in any order: their columns change a little, their label stays."""

    def planted(draw: np.random.Generator) -> RealTable:
        table = make()
        times = draw.integers(sizes[0], sizes[1] + 1, _rows(table) // 5)
        places = np.repeat(draw.choice(_rows(table), len(times), replace=False), times)
        who = np.repeat(draw.permutation(len(times)), times)
        order = draw.permutation(len(places))
        columns = {key: values[places[order]] for key, values in table.columns.items()}
        for key in jitter:
            spread = 0.02 * np.nanstd(columns[key].astype(np.float64))
            columns[key] = np.round(columns[key] + draw.normal(0, spread, len(order)), 4)
        named = [words(number) for number in who[order]]
        column = np.array(named) if isinstance(named[0], (int, float)) else _words(named)
        if missing:
            column = column.astype(np.float64)
            column[draw.random(len(column)) < missing] = np.nan
        return RealTable({**columns, name: column}, table.label)

    return planted


def _rarely(make: Make, name: str, usual: Any, other: Any, count: int) -> Any:
    def planted(draw: np.random.Generator) -> RealTable:
        made = np.full(_rows(make()), usual)
        made[draw.choice(len(made), count, replace=False)] = other
        return _with(make(), **{name: made})

    return planted


@cache
def _yellow(day: int) -> Columns:
    import pyarrow.parquet as parquet

    found = parquet.read_table(_path(f"nyc-taxi/yellow_tripdata_2022-01-{day}.snappy.parquet"))
    kept = np.arange(MOST_ROWS) * found.num_rows // MOST_ROWS
    return {name: found.column(name).to_numpy(zero_copy_only=False)[kept] for name in found.column_names}


def _yellow_table(day: int, label: str, *names: str) -> RealTable:
    found = _yellow(day)
    known = ~np.array([value != value or value is None for value in found[label]])
    return RealTable({name: found[name][known] for name in (*names, label)}, label)


def _changed(make: Make, name: str, value: Callable[[Array], Any], count: int) -> Any:
    def planted(draw: np.random.Generator) -> RealTable:
        values = make().columns[name].astype(np.float64)
        chosen = draw.choice(len(values), count, replace=False)
        values[chosen] = value(values[chosen])
        return _with(make(), **{name: values})

    return planted


def _relabelled(make: Make, of: Any, word: str, count: int) -> Any:
    """`count` rows with the label `of` (any, if None) get another word."""

    def planted(draw: np.random.Generator) -> RealTable:
        table = make()
        labels = table.columns[table.label].astype(object)
        among = np.arange(len(labels)) if of is None else np.flatnonzero(labels == of)
        labels[draw.choice(among, count, replace=False)] = word
        return _with(table, **{table.label: labels})

    return planted


def _new_category(make: Make, held: Make, name: str, word: str, count: int) -> Any:
    def planted(draw: np.random.Generator) -> RealTable:
        test = dict(held().columns)
        test[name] = test[name].astype(object)
        test[name][draw.choice(len(test[name]), count, replace=False)] = word
        return RealTable(make().columns, make().label, test)

    return planted
