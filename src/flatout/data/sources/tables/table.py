"""Data from tables: files with named columns are read, split, fitted on the training rows, and encoded."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatout.base.errors import DataError, RecipeError, UsageError, did_you_mean
from flatout.base.trust import private_cache
from flatout.data.data import PARTS, Data
from flatout.data.files.bad import Bad, OnBad
from flatout.data.fitted.derived.asked import AskedColumns, asked_columns
from flatout.data.fitted.derived.derivation import Derivation
from flatout.data.fitted.derived.functions import FUNCTIONS, LAGGED
from flatout.data.fitted.table_rows import VERSION, TableHost
from flatout.data.source import Source
from flatout.data.sources.tables import encoding
from flatout.data.sources.tables.arrow import ArrowValues
from flatout.data.sources.tables.derive import arrow_types, derivation_of
from flatout.data.sources.tables.derived_fits import fit_derivation
from flatout.data.sources.tables.encoding import EncodedParts, TableEncoder, UsableRows, encode_parts, unseen_notes
from flatout.data.sources.tables.fit import FitOptions, TableFit, fit, plan_columns
from flatout.data.sources.tables.frames import is_table
from flatout.data.sources.tables.given import scan_given, scan_table
from flatout.data.sources.tables.kept_rows import KeptRows
from flatout.data.sources.tables.parts import (
    PartOf,
    parts_by_column,
    parts_by_group,
    parts_by_share,
    parts_by_time,
    row_weights,
)
from flatout.data.sources.tables.query import is_query
from flatout.data.sources.tables.scan import ReadOptions, Scan, check_column, scan
from flatout.data.sources.tables.sql import scan_sql
from flatout.data.sources.tables.steps import CategorySteps, ColumnPlan, ColumnSteps, parse_steps
from flatout.data.sources.tables.targets import Folds


def table(
    paths: Any = None,
    *,
    label: str,
    sql: str | None = None,
    numeric: str | Sequence[str] = "auto",
    categorical: str | Sequence[str] = "auto",
    drop: str | Sequence[str] = (),
    target: str = "auto",
    holdout: float = 0.0,
    holdout_latest: str | None = None,
    holdout_group: str | Sequence[str] | None = None,
    validation: Any = None,
    test: Any = None,
    split: str | None = None,
    steps: Mapping[str, Any] | None = None,
    onehot: int = 32,
    min_count: int = 2,
    hash_buckets: int | None = None,
    draw: str = "shuffle",
    classes: int | None = None,
    on_bad: str = "error",
    seed: int = 0,
    derive: Mapping[str, str] | None = None,
    where: str | Sequence[str] | None = None,
    join: Any = None,
    time: str | None = None,
    guard: Any = True,
    cache: Path | str | None = None,
    base_folder: Path | str | None = None,
    **scan_options: Any,
) -> Data:
    """Rows of CSV, Parquet, Arrow or JSON lines files, of an SQL query, or of a table in memory, as training data.

    paths                 files; or a DataFrame of pandas or Polars, a pyarrow.Table, {"age": [39, 50], ...}
    numeric, categorical  "auto" (numbers; text, true and false), or a list of all columns of that kind. Dates become parts
    target                the kind of label: "class", "number" or "auto" (a number: floats, over 100 distinct whole numbers)
    holdout               the share of rows to validate on, chosen by a hash of their columns and the seed, in any order
    holdout_latest        a column of dates or numbers: the latest rows are held out, instead of rows by their hash
    holdout_group         a column, or several: rows that agree in them (one user, one photo) are on the same side
    validation, test      other files (or queries), prepared with what was fitted on the training rows
    split                 a column that says for each row: train, validation or test
    steps                 {column: [log, standardise]} or {column: {fill: median}}; see steps.py
    onehot, min_count     for categories: the most that are one-hot, and how often one must occur to be known
    hash_buckets          columns with more distinct values are hashed into this many buckets
    draw                  "shuffle", "balanced", or a column of weights
    derive                {name: expression}: columns made of others, such as {speed: 60 * km / minutes}; see docs/derive.md
    where                 a condition, or several: other rows are left out of training and evaluation
    join                  {file: stores.csv, on: store_id, columns: [size]}: columns of a second file
    time                  the column that orders the rows for lag and rolling_mean; by default that of holdout_latest
    guard                 which checks `flatout new`, `data` and `explain` make: off, or {leak: off}. Training ignores it
    cache                 a folder for encoded rows that do not fit into memory; without it they are temporary
    scan_options          how files are read: delimiter, header, na, ...; see ReadOptions
    """
    asked = TableOptions(
        label=label, numeric=numeric, categorical=categorical, drop=drop, target=target, holdout=holdout, split=split,
        steps=steps, onehot=onehot, min_count=min_count, hash_buckets=hash_buckets, draw=draw, classes=classes, on_bad=on_bad,
        seed=seed, holdout_latest=holdout_latest, holdout_group=holdout_group,
        columns=columns_asked_for(derive, where, join, time, holdout_latest),
    )  # fmt: skip
    asked.check_parts(validation, test)
    if sql is None and not isinstance(categorical, str):
        # read as text: "007" is not 7, and a word among numbers is not a mistake
        named = scan_options.get("text", ())
        scan_options["text"] = sorted({*([named] if isinstance(named, str) else named), *categorical})
    held = {name: given for name, given in (("validation", validation), ("test", test)) if given is not None}
    whole = _whole_table(asked, _found(paths, sql, asked, base_folder, scan_options), base_folder, apart=bool(held))
    learnt = _learnt(asked, whole)
    encoder = TableEncoder(learnt.host)
    folders = _folders(cache, learnt, whole.found, asked.parting)
    parts = _encoded(asked, whole, encoder, folders, learnt)
    if parts.sources[0] is None:
        raise DataError("no row is left to train on")
    unseen = unseen_notes(parts.unseen, "held out")
    said = [*learnt.host.notes, *_said_of(whole.kept, learnt.unjoined), *unseen, *_summaries(whole.bad, whole.found.bad)]
    left_out, unlearnt = [whole.bad, whole.found.bad], whole.found
    others: dict[str, Source | None] = {"validation": parts.sources[1], "test": parts.sources[2]}
    for part, given in held.items():
        try:
            other = _other(encoder, given, sql is not None, on_bad, base_folder, scan_options)
            folder = _folders(cache, learnt, other, part).get(part)
            mine = Bad(whole.bad.policy)
            others[part], more = encoder.read_noted(other, folder=folder, bad=mine, part=part)
        except DataError as error:
            raise DataError(f"{part}: {error}") from error
        said += [*more, *_summaries(other.bad)]
        left_out, unlearnt = [*left_out, mine, other.bad], encoder.kept(other)[0]
    label_fit, features = learnt.fit.label, learnt.fit.features
    return Data(
        train=parts.sources[0],
        validation=others["validation"],
        prepare=(features,),
        draw=draw if parts.weights is None else torch.from_numpy(parts.weights),
        classes=label_fit.class_count,
        labels=label_fit.classes,
        target_scale=label_fit.scale,
        inputs=("x", "categories") if features.cardinalities else ("x",),
        cardinalities=tuple(features.cardinalities),
        test=others["test"],
        host=learnt.host,
        reading={**scan_options, "on_bad": on_bad},
        raw=partial(_first_rows, unlearnt, learnt.host),
        notes=tuple(said),
        bad=tuple(left_out),
    )


@dataclass(frozen=True)
class TableOptions:
    """The options of `table`, except those about files."""

    label: str
    numeric: str | Sequence[str]
    categorical: str | Sequence[str]
    drop: str | Sequence[str]
    target: str
    holdout: float
    split: str | None
    steps: Mapping[str, Any] | None
    onehot: int
    min_count: int
    hash_buckets: int | None
    draw: str
    classes: int | None
    on_bad: str
    seed: int
    holdout_latest: str | None
    holdout_group: str | Sequence[str] | None
    columns: AskedColumns | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.holdout, int | float) or not 0 <= self.holdout < 1:
            raise UsageError(f"holdout is the share of rows to validate on, from 0 to below 1, got {self.holdout!r}")
        for name, least in (("onehot", 0), ("min_count", 1), ("hash_buckets", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise UsageError(f"{name} is a whole number, {least} or more, got {value!r}")

    def check_parts(self, validation: Any, test: Any) -> None:
        if self.holdout and validation is not None:
            raise UsageError("holdout and validation are two ways to get validation rows: give one of them")
        by = [name for name, given in (("holdout_latest", self.holdout_latest), ("holdout_group", self.group)) if given]
        if len(by) > 1:
            raise UsageError("holdout_latest and holdout_group are two ways to choose the rows to hold out: give one of them")
        if by and not self.holdout:
            raise UsageError(
                f"{by[0]} says which rows to hold out: give holdout too, the share of the rows, such as holdout: 0.2"
            )
        if self.split is not None and (self.holdout or validation is not None or test is not None):
            raise UsageError("split says which rows are for validation and test: leave out holdout, validation and test")

    @property
    def parting(self) -> tuple[Any, ...]:
        """What decides which rows are in which part."""
        by = (self.holdout_latest, self.group) if self.holdout_latest or self.group else ()
        return self.holdout, self.split, self.seed, self.weights, self.on_bad, *by

    @property
    def dropped(self) -> list[str]:
        return [self.drop] if isinstance(self.drop, str) else list(self.drop)

    @property
    def group(self) -> list[str]:
        """The columns in which rows of one group agree."""
        if self.holdout_group is None:
            return []
        return [self.holdout_group] if isinstance(self.holdout_group, str) else list(self.holdout_group)

    @property
    def weights(self) -> str | None:
        """The column of weights."""
        return None if self.draw in ("shuffle", "balanced") else self.draw


def columns_asked_for(derive: Any, where: Any, join: Any, time: str | None, latest: str | None) -> AskedColumns | None:
    if derive is None and where is None and join is None and time is None:
        return None
    asked, mistakes = asked_columns(derive, where, join, time or latest, read=False)
    if mistakes:
        raise RecipeError(mistakes, where="data")
    return asked


@dataclass(frozen=True)
class _WholeTable:
    """Rows to learn from and to hold out: those of `found` that are usable, with the part that each is in."""

    stored: Scan
    found: Scan  # `stored`, without the rows that are filtered out
    kept: KeptRows | None
    derived: Derivation | None
    columns: list[ColumnPlan]
    rows: UsableRows
    part_of: PartOf
    bad: Bad
    notes: list[str]


@dataclass(frozen=True)
class _Learnt:
    """What was fitted on the training rows. `unjoined` counts keys that a second file does not have."""

    fit: TableFit
    host: TableHost
    raw_inputs: Sequence[str] | None
    unjoined: Counter[str]


def _whole_table(asked: TableOptions, stored: Scan, base_folder: Any, *, apart: bool) -> _WholeTable:
    """`apart`: other rows are in other tables."""
    notes: list[str] = []
    derived = derivation_of(asked.columns, stored.columns, asked.label, base_folder) if asked.columns else None
    kept = None if derived is None else KeptRows(derived, asked.label)
    found = stored if kept is None else stored.changed_by(kept)
    columns = _planned(asked, found, derived, notes)
    bad = Bad(OnBad(asked.on_bad))
    rows = _usable(asked, found, columns, derived, bad)
    part_of = _part_of(asked, rows, columns, stored)
    if derived is not None:
        _check_lags(derived, apart)
        derived = fit_derivation(derived, rows, part_of, asked.seed)
    return _WholeTable(stored, found, kept, derived, columns, rows, part_of, bad, notes)


def _learnt(asked: TableOptions, whole: _WholeTable) -> _Learnt:
    columns, derived, unjoined = whole.columns, whole.derived, Counter[str]()
    raw_inputs = None if derived is None else derived.raw_columns(column.name for column in columns)
    fitted = fit(
        lambda: whole.rows.blocks(lambda batch, start: whole.part_of(batch, start) == 0),
        columns,
        asked.label,
        whole.found.columns[asked.label],
        FitOptions(asked.target, asked.classes, asked.hash_buckets, asked.seed, raw_inputs),
        ArrowValues if derived is None else lambda batch: derived.values(ArrowValues(batch), unjoined),
    )
    schema = {column.name: str(column.type) for column in columns} | {asked.label: str(whole.found.columns[asked.label])}
    if derived is not None:
        schema |= {name: str(whole.stored.columns[name]) for name in derived.kinds}
    host = TableHost(fitted.codings, fitted.label, schema, (*whole.notes, *fitted.notes), derived)
    return _Learnt(fitted, host, raw_inputs, unjoined)


def _found(paths: Any, sql: str | None, asked: TableOptions, base_folder: Any, options: Mapping[str, Any]) -> Scan:
    if (paths is None) == (sql is None):
        raise UsageError("a table needs files or an sql query: give one of them" + ("" if paths is None else ", not both"))
    known = [field.name for field in fields(ReadOptions)]
    for name in options:
        if name not in known:
            own = [*table.__annotations__]
            near = did_you_mean(name, {*known, *own} - {"paths", "scan_options", "return"})
            raise UsageError(f"table has no option {name!r}; {near}")
    label = None if asked.columns and asked.label in asked.columns.derive else asked.label
    if _is_held(paths):
        if strays := [name for name in options if name not in ("columns", "text")]:
            raise UsageError(f"a table in memory is not read from a file: leave out {', '.join(map(repr, strays))}")
        return scan_table(paths, label, **options)
    if sql is None:
        return scan(paths, label=label, on_bad=asked.on_bad, base_folder=base_folder, **options)
    if options:
        raise UsageError(f"an sql query reads its files itself: leave out {', '.join(map(repr, options))}")
    return scan_sql(sql, base_folder, label)


def _is_held(given: Any) -> bool:
    """Whether the rows are in memory; otherwise they are in files."""
    return not isinstance(given, str | Path | list) and (isinstance(given, Mapping) or is_table(given))


def _other(encoder: TableEncoder, given: Any, queries: bool, on_bad: str, base_folder: Any, options: Mapping[str, Any]) -> Scan:
    if queries and isinstance(given, str) and is_query(given):
        return scan_sql(given, base_folder)
    if _is_held(given):
        return scan_given(given, encoder.host.needed(targets=True))
    return encoder.scan(given, on_bad=on_bad, base_folder=base_folder, **options)


def _check_lags(derived: Derivation, apart: bool) -> None:
    """A lag looks back at rows of its own table: those of another file have none."""
    lags = [key for key, call in derived.fitted_calls().items() if FUNCTIONS[call.name].fitted == LAGGED]
    if lags and apart:
        raise UsageError(
            f"derive: `{lags[0]}` looks back at earlier rows of the same table, and validation or test is another one: put all "
            "rows into one table, with holdout_latest or split"
        )


def _said_of(kept: KeptRows | None, unjoined: Counter[str]) -> list[str]:
    """What `where` left out, and the keys that a second file does not have."""
    note = None if kept is None else kept.note()
    return [*([note] if note else []), *unseen_notes(unjoined, "")]


def _planned(asked: TableOptions, found: Scan, derived: Derivation | None, notes: list[str]) -> list[ColumnPlan]:
    types = dict(found.columns) if derived is None else {**found.columns, **arrow_types(derived.derived_kinds)}
    special: dict[str, list[str | None]] = {
        "label": [asked.label],
        "drop": [*asked.dropped],
        "split": [asked.split],
        "draw": [asked.weights],
    }
    for what, name in (("holdout_latest", asked.holdout_latest), *(("holdout_group", name) for name in asked.group)):
        if name is not None:
            check_column(name, found.columns, what)
    for what, names in special.items():
        for name in names:
            if name is not None:
                check_column(name, types if what == "drop" else found.columns, what)
    usual = ColumnSteps(category=CategorySteps(min_count=asked.min_count, onehot=asked.onehot))
    return plan_columns(
        types,
        numeric=asked.numeric,
        categorical=asked.categorical,
        aside=[name for names in special.values() for name in names if name is not None],
        steps=parse_steps(asked.steps, usual) if asked.steps is not None else {},
        usual=usual,
        notes=notes,
    )


def _usable(
    asked: TableOptions, found: Scan, columns: Sequence[ColumnPlan], derived: Derivation | None, bad: Bad
) -> UsableRows:
    """For a holdout unused columns are read too: the split goes by whole rows, whatever columns are used."""
    used = {*(column.name for column in columns), asked.label, asked.split, asked.weights}
    if derived is not None:
        used |= set(derived.raw_columns([name for name in used if name not in (None, asked.label)], fitted_inputs=True))
        columns = [column for column in columns if not derived.is_derived(column.name)]
    return UsableRows(
        found,
        bad,
        encoding.MEMORY_BYTES,
        columns=[name for name in found.columns if asked.holdout or name in used],
        label=asked.label,
        numbers=[column.name for column in columns if column.kind == "number"],
        dates={column.name: column.steps.date.format for column in columns if column.kind == "date"},
    )


def _part_of(asked: TableOptions, rows: UsableRows, columns: Sequence[ColumnPlan], stored: Scan) -> PartOf:
    if asked.holdout_latest is not None:
        formats = {column.name: column.steps.date.format for column in columns}
        return parts_by_time(rows, asked.holdout, asked.holdout_latest, formats.get(asked.holdout_latest))
    if asked.group:
        return parts_by_group(rows, asked.holdout, asked.seed, asked.group)
    if asked.holdout:
        return parts_by_share(rows, asked.holdout, asked.seed, list(stored.columns))
    if asked.split is not None:
        return parts_by_column(rows, asked.split)
    return lambda batch, start: np.zeros(batch.num_rows, dtype=np.uint8)


def _encoded(
    asked: TableOptions, whole: _WholeTable, encoder: TableEncoder, folders: Mapping[str, Path], learnt: _Learnt
) -> EncodedParts:
    weights, means = asked.weights, learnt.fit.others
    folds = Folds(whole.columns, asked.seed, learnt.raw_inputs) if means.tables else None
    return encode_parts(
        whole.rows,
        encoder,
        whole.part_of,
        folders,
        learnt.fit.rows,
        None if weights is None else lambda batch, where: row_weights(batch, weights, where),
        lambda batch: None if folds is None else means.of(folds.of(batch)),
    )


def _folders(cache: Path | str | None, learnt: _Learnt, found: Scan, how: Any) -> dict[str, Path]:
    """Where each part is kept if it does not fit into memory: under a hash of everything that changes the encoded rows."""
    if cache is None:
        return {}
    fitted = {**learnt.host.to_json(), "device": learnt.fit.features.written()["table"]}
    content = json.dumps([VERSION, fitted, [found.fingerprint(), how]], sort_keys=True)
    key = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    return {part: private_cache(Path(cache)) / "tables" / key / part for part in PARTS}


def _first_rows(found: Scan, host: TableHost, rows: int) -> dict[str, list[Any]]:
    """Raw columns; dates as ISO text, so that JSON can hold them."""
    names = host.needed(targets=False)
    batch = next((batch for batch, _ in found.batches(names, rows)), None)
    columns = {} if batch is None else {name: batch.column(name).to_pylist() for name in names}
    return {
        name: [value.isoformat() if isinstance(value, date | time) else value for value in columns[name]] for name in columns
    }


def _summaries(*bads: Bad) -> list[str]:
    return [said for bad in bads if bad.count and (said := bad.summary())]
