"""Data from tables: files of named columns, sorted into kinds, prepared by what the training rows show, and split."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flatout.base.errors import DataError, UsageError, did_you_mean
from flatout.base.trust import private_cache
from flatout.data.data import PARTS, Data
from flatout.data.files.bad import Bad
from flatout.data.fitted.table_features import TableFeatures
from flatout.data.fitted.table_rows import VERSION, TableHost
from flatout.data.source import Source
from flatout.data.sources.tables import encoded
from flatout.data.sources.tables.encoding import TableEncoder, unseen_notes
from flatout.data.sources.tables.fit import FitOptions, Folds, fit
from flatout.data.sources.tables.kinds import ColumnPlan, check_column, plan_columns
from flatout.data.sources.tables.parts import encode_parts, part_rows
from flatout.data.sources.tables.query import is_query
from flatout.data.sources.tables.rows import UsableRows
from flatout.data.sources.tables.scan import Scan, scan
from flatout.data.sources.tables.sql import scan_sql
from flatout.data.sources.tables.steps import CategorySteps, ColumnSteps, parse_steps


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
    cache: Path | str | None = None,
    base_folder: Path | str | None = None,
    **scan_options: Any,
) -> Data:
    """Rows of CSV, Parquet, Arrow or JSON lines files, or of an SQL query, as training data; and what comes with it.

    numeric, categorical  "auto" (numbers; text, true and false), or a list of all columns of that kind. Dates become parts
    target                what the label is: "class", "number" or "auto" (a number: floats, over 100 distinct whole numbers)
    holdout               a share of the rows to validate on, by the hash of all their columns and the seed: no order matters
    validation, test      other files (or queries), prepared with what the training rows showed
    split                 a column that says of each row: train, validation or test
    steps                 {column: [log, standardise]} or {column: {fill: median}}; see steps.py
    onehot, min_count     for categories: how many are columns of 0 and 1 at most, how often one must come to be known
    hash_buckets          categories with more distinct values than this are hashed into as many buckets
    draw                  "shuffle", "balanced", or a column of weights
    cache                 a folder that keeps encoded rows too large for memory, for the next run; else they go with the process
    """
    _check(holdout, validation, test, split, onehot, min_count, hash_buckets)
    if sql is None and not isinstance(
        categorical, str
    ):  # read as they stand: "007" is no 7, and a word among numbers no mistake
        named = scan_options.get("text", ())
        scan_options["text"] = sorted({*([named] if isinstance(named, str) else named), *categorical})
    found = _found(paths, sql, label, on_bad, base_folder, scan_options)
    notes: list[str] = []
    weights = None if draw in ("shuffle", "balanced") else draw
    dropped = [drop] if isinstance(drop, str) else list(drop)
    aside = [label, *dropped, *([split] if split else []), *([weights] if weights else [])]
    for what, names in (("label", [label]), ("drop", dropped), ("split", [split]), ("draw", [weights])):
        for name in names:
            if name is not None:
                check_column(name, found.columns, what)
    usual = ColumnSteps(category=CategorySteps(min_count=min_count, onehot=onehot))
    columns = plan_columns(
        found.columns,
        numeric=numeric,
        categorical=categorical,
        aside=aside,
        steps=parse_steps(steps, usual),
        usual=usual,
        notes=notes,
    )
    bad = Bad(on_bad)
    rows = _rows(found, bad, columns, label, [name for name in (split, weights) if name], everything=bool(holdout))
    part_of = part_rows(rows, holdout, split, seed)
    fitted = fit(
        lambda: rows.blocks(lambda batch, start: part_of(batch, start) == 0),
        columns,
        label,
        found.columns[label],
        FitOptions(target, classes, hash_buckets, seed),
    )
    schema = {column.name: str(column.type) for column in columns} | {label: str(found.columns[label])}
    host = TableHost(fitted.codings, fitted.label, schema, (*notes, *fitted.notes))
    encoder, features = TableEncoder(host), fitted.features
    folders = _folders(cache, host, features, found, (holdout, split, seed, weights, on_bad))
    folds = Folds(columns, seed)
    sources, drawn, unseen = encode_parts(
        rows,
        encoder,
        part_of,
        folders,
        fitted.rows,
        weights,
        lambda batch: fitted.others.of(folds.of(batch)) if fitted.others.tables else None,
    )
    said = [*host.notes, *unseen_notes(unseen, "held out"), *_summaries(bad, found.bad)]
    left_out = [bad, found.bad]
    others: dict[str, Source | None] = {"validation": sources[1], "test": sources[2]}
    for part, given in (("validation", validation), ("test", test)):
        if given is not None:
            try:
                other = _other(encoder, given, sql is not None, on_bad, base_folder, scan_options)
                folder = _folders(cache, host, features, other, part).get(part)
                mine = Bad(on_bad)
                others[part], more = encoder.read_noted(other, folder=folder, bad=mine, part=part)
            except DataError as error:
                raise DataError(f"{part}: {error}") from error
            said += [*more, *_summaries(other.bad)]
            left_out += [mine, other.bad]
    return Data(
        train=_needed(sources[0]),
        validation=others["validation"],
        prepare=(features,),
        draw=draw if drawn is None else torch.from_numpy(drawn),
        classes=fitted.label.class_count,
        labels=fitted.label.classes,
        target_scale=fitted.label.scale,
        inputs=("x", "categories") if features.cardinalities else ("x",),
        cardinalities=tuple(features.cardinalities),
        test=others["test"],
        host=host,
        reading={**scan_options, "on_bad": on_bad},
        notes=tuple(said),
        bad=tuple(left_out),
    )


def _check(
    holdout: float, validation: Any, test: Any, split: str | None, onehot: int, min_count: int, hash_buckets: int | None
) -> None:
    if not isinstance(holdout, int | float) or not 0 <= holdout < 1:
        raise UsageError(f"holdout is the share of rows to validate on, from 0 to below 1, got {holdout!r}")
    if holdout and validation is not None:
        raise UsageError("holdout and validation are two ways to say the same: give one of them")
    if split is not None and (holdout or validation is not None or test is not None):
        raise UsageError("split says which rows are for validation and test: leave out holdout, validation and test")
    for name, value, least in (("onehot", onehot, 0), ("min_count", min_count, 1), ("hash_buckets", hash_buckets, 1)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UsageError(f"{name} is a whole number, {least} or more, got {value!r}")


def _found(paths: Any, sql: str | None, label: str, on_bad: str, base_folder: Any, options: Mapping[str, Any]) -> Scan:
    if (paths is None) == (sql is None):
        raise UsageError("a table needs files or an sql query: give one of them" + ("" if paths is None else ", not both"))
    known = [*inspect.signature(table).parameters, *inspect.signature(scan).parameters]
    for name in options:
        if name not in known:
            raise UsageError(f"table has no option {name!r}; {did_you_mean(name, {*known} - {'paths', 'scan_options'})}")
    if sql is None:
        return scan(paths, label=label, on_bad=on_bad, base_folder=base_folder, **options)
    if options:
        raise UsageError(f"an sql query says itself how to read its files; got {', '.join(map(repr, options))} besides")
    return scan_sql(sql, base_folder, label)


def _other(encoder: TableEncoder, given: Any, queries: bool, on_bad: str, base_folder: Any, options: Mapping[str, Any]) -> Scan:
    if queries and isinstance(given, str) and is_query(given):
        return scan_sql(given, base_folder)
    return encoder.scan(given, on_bad=on_bad, base_folder=base_folder, **options)


def _rows(
    found: Scan, bad: Bad, columns: Sequence[ColumnPlan], label: str, more: Sequence[str], everything: bool
) -> UsableRows:
    """With `everything`, unused columns are read too: the split goes by whole rows, whatever is used of them."""
    used = {*(column.name for column in columns), label, *more}
    return UsableRows(
        found,
        bad,
        encoded.MEMORY_BYTES,
        columns=[name for name in found.columns if everything or name in used],
        label=label,
        numbers=[column.name for column in columns if column.kind == "number"],
        dates={column.name: column.steps.date.format for column in columns if column.kind == "date"},
    )


def _folders(cache: Path | str | None, host: TableHost, features: TableFeatures, found: Scan, how: Any) -> dict[str, Path]:
    """Where each part is kept if memory is too small for it: under a hash of all that decides what is encoded."""
    if cache is None:
        return {}
    fitted = {**host.to_json(), "device": features.written()["table"]}
    content = json.dumps([VERSION, fitted, [found.fingerprint(), how]], sort_keys=True)
    key = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    return {part: private_cache(Path(cache)) / "tables" / key / part for part in PARTS}


def _needed(source: Source | None) -> Source:
    if source is None:
        raise DataError("no row is left to train on")
    return source


def _summaries(*bads: Any) -> list[str]:
    return [said for bad in bads if (said := bad.summary())]
