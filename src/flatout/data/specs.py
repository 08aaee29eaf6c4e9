"""Data as a recipe file writes it: `digits`, `{arrays: train.npz}`, `{table: clicks.csv, label: income}`, `{images: photos/,
size: 224}`, `{text: "*.txt", window: 256}`; paths relative to the file.

`check_data` lists every mistake at once and loads nothing; `parse_data` raises them, or loads the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError, RecipeError, did_you_mean
from flatout.data.data import Data
from flatout.data.files.array_files import FORMATS, file_format
from flatout.data.files.places import find as find_places
from flatout.data.files.places import is_remote, located
from flatout.data.fitted.derived.asked import asked_columns
from flatout.data.option_checks import (
    Check,
    amount,
    any_value,
    augment,
    choice,
    classes,
    count,
    end_of_text,
    guards,
    names,
    normalize,
    seed,
    share,
    strip,
    text_value,
    truth,
)  # fmt: skip
from flatout.data.sources.arrays import arrays
from flatout.data.sources.digits import digits
from flatout.data.sources.tables.frames import is_table
from flatout.data.sources.texts.packing import BOUNDARIES
from flatout.data.sources.texts.text import ENCODINGS, text
from flatout.data.sources.texts.tokens import TOKEN_TYPES, find_files

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".pq", ".arrow", ".feather", ".jsonl", ".ndjson")
_COLUMNS_EXAMPLE = "a file, or a mapping of columns to files such as {x: images.npy, y: labels.npy}"


@dataclass(frozen=True)
class Kind:
    """One kind of data: the function that makes it, its options, the required ones, and those that hold paths."""

    load: Callable[..., Data]
    options: Mapping[str, Check]
    check_main: Callable[[Any, Path], list[str]]
    required: Mapping[str, str]
    paths: tuple[str, ...] = ()


def parse_data(written: Mapping[str, Any] | str, base_folder: Path, cache: Path | None = None) -> Data:
    """`cache` is a folder for results that take long to make: encoded text, rows of tables larger than memory."""
    problems = check_data(written, base_folder)
    if problems:
        raise RecipeError(problems, where="data")
    kind, main, options = _parts(written)
    for name in KINDS[kind].paths:
        if name in options:
            options[name] = located(options[name], base_folder)
    return KINDS[kind].load(main, base_folder, cache, **options)


def check_data(written: Any, base_folder: Path) -> list[str]:
    """One line for each mistake that names and files show; empty for data that can be loaded."""
    if isinstance(written, str):
        return [] if written == "digits" else [_what_it_needs(written, base_folder)]
    if not isinstance(written, Mapping):
        return [f"data is a name or a mapping, such as 'digits' or {{arrays: train.npz}}, got {written!r}"]
    kinds = _kinds(written)
    if len(kinds) != 1:
        what = f"both {kinds[0]!r} and {kinds[1]!r}" if kinds else f"{', '.join(map(repr, written)) or 'nothing'}"
        near = "" if kinds or not written else "; " + did_you_mean(str(next(iter(written))), KINDS)
        return [f"data needs one of {', '.join(KINDS)}, got {what}{near}"]
    kind, main, options = _parts(written)
    spec = KINDS[kind]
    problems = spec.check_main(main, base_folder)
    for part in ("validation", "test"):
        if part in spec.options and options.get(part) is not None:
            problems += [f"{part}: {problem}" for problem in spec.check_main(options[part], base_folder)]
    if options.get("validation") is not None and options.get("holdout") and kind != "text":
        problems.append("holdout and validation are two ways to get validation rows: give one of them")
    if kind in ("table", "sql"):
        problems += asked_columns(options.get("derive"), options.get("where"), options.get("join"))[1]
    problems += [f"{kind} needs {why}" for name, why in spec.required.items() if name not in options]
    for name, value in options.items():
        if name not in spec.options:
            problems.append(f"{kind} has no option {name!r}; {did_you_mean(str(name), spec.options)}")
        elif wrong := spec.options[name](value):
            problems.append(f"{name}: {wrong}, got {value!r}")
    return problems


def _what_it_needs(name: str, base_folder: Path) -> str:
    """For a path, where a kind of data was expected."""
    place = Path(located(name, base_folder))
    if place.suffix.lower() in TABLE_SUFFIXES:
        return f"{name} is a table: write {{table: {name}, label: COLUMN}}, or let `flatout new {name}` write the recipe"
    if place.is_dir():
        return f"{name} is a folder: write {{images: {name}, size: 224}}, or let `flatout new {name}` write the recipe"
    return f"unknown data {name!r}; {did_you_mean(name, KINDS)}"


def _kinds(written: Mapping[str, Any]) -> list[str]:
    """The kinds that are named. Next to `table`, `text` is not a kind: it names columns."""
    return [name for name in written if name in KINDS and not (name == "text" and "table" in written)]


def _parts(written: Mapping[str, Any] | str) -> tuple[str, Any, dict[str, Any]]:
    if isinstance(written, str):
        return written, None, {}
    (kind,) = _kinds(written)
    return kind, written[kind], {name: value for name, value in written.items() if name != kind}


# ---- functions that make each kind ----


def _digits(main: Any, base_folder: Path, cache: Path | None, **options: Any) -> Data:
    return digits(**options)


def _arrays(main: Any, base_folder: Path, cache: Path | None, **options: Any) -> Data:
    return arrays(located(main, base_folder), **options)


def _text(main: Any, base_folder: Path, cache: Path | None, **options: Any) -> Data:
    return text(located(main, base_folder), cache=cache, **options)


def _sequences(main: Any, base_folder: Path, cache: Path | None, **options: Any) -> Data:
    from flatout.data.sources.texts.sequences import sequences

    return sequences(located(main, base_folder), **options)


def _images(main: Any, base_folder: Path, cache: Path | None, **options: Any) -> Data:
    from flatout.data.sources.photos.images import images

    return images(located(main, base_folder), **options)


def _table(main: Any, base_folder: Path, cache: Path | None, **options: Any) -> Data:
    from flatout.data.sources.tables.table import table

    return table(main, base_folder=base_folder, cache=cache, **options)


def _sql(main: Any, base_folder: Path, cache: Path | None, **options: Any) -> Data:
    from flatout.data.sources.tables.table import table

    return table(None, sql=main, base_folder=base_folder, cache=cache, **options)


# ---- checks of the first value of each kind ----


def _check_digits(main: Any, base_folder: Path) -> list[str]:
    return [] if main is None else [f"digits takes no value, got {main!r}: write its options as other keys"]


def _check_text(main: Any, base_folder: Path) -> list[str]:
    paths = [main] if isinstance(main, str) else main
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        return [f"text is a path, a glob, 'module:NAME', or a list of them, got {main!r}"]
    return [problem for path in paths if (problem := _said(partial(find_files, located(path, base_folder))))]


def _check_sequences(main: Any, base_folder: Path) -> list[str]:
    paths = [main] if isinstance(main, str) else main
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        return [f"sequences is a file of JSON lines, a glob, or a list of them, got {main!r}"]
    return [problem for path in paths if (problem := _said(partial(find_files, located(path, base_folder))))]


def _check_arrays(main: Any, base_folder: Path) -> list[str]:
    columns = {"x": main} if isinstance(main, str) else main
    if not isinstance(columns, Mapping) or not all(isinstance(path, str) for path in columns.values()):
        return [f"arrays is {_COLUMNS_EXAMPLE}, got {main!r}"]
    listed = ", ".join(map(str, columns)) or "nothing"
    problems = [] if "x" in columns else [f"arrays needs a column x for the inputs, got {listed}"]
    for path in columns.values():
        place = Path(located(path, base_folder))
        if not place.is_file():
            problems.append(f"no file at {place}")
        elif file_format(place) is None:
            problems.append(f"{place} has no known format; arrays are read from {FORMATS}")
    return problems


def _check_images(main: Any, base_folder: Path) -> list[str]:
    if not isinstance(main, str):
        return [f"images is a folder of class folders, or a list of files such as photos.csv, got {main!r}"]
    if is_remote(main):
        return []
    place = Path(located(main, base_folder))
    return [] if place.exists() else [f"{place} does not exist: expected a folder of class folders, or a list of files"]


def _check_table(main: Any, base_folder: Path) -> list[str]:
    if is_table(main):
        return []
    paths = [main] if isinstance(main, str) else main
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        return [f"table is a file, a glob, a folder, a URL, or a list of them, got {main!r}"]
    local = [path for path in paths if not is_remote(path)]
    return [problem for path in local if (problem := _said(partial(find_places, path, base_folder)))]


def _check_sql(main: Any, base_folder: Path) -> list[str]:
    return (
        [] if isinstance(main, str) and main.strip() else [f"sql is a query, such as select * from 'x.parquet', got {main!r}"]
    )


def _said(attempt: Callable[[], object]) -> str | None:
    try:
        attempt()
    except FlatoutError as error:
        return str(error)
    return None


_ON_BAD = choice("error", "skip")
_SHARED: dict[str, Check] = {"holdout": share, "normalize": normalize, "augment": augment, "draw": text_value, "seed": seed}
_FITTED: dict[str, Check] = {
    "label": text_value, "numeric": names, "categorical": names, "drop": names, "target": choice("auto", "class", "number"),
    "holdout": share, "holdout_latest": text_value, "holdout_group": names, "validation": any_value, "test": any_value,
    "split": text_value, "steps": any_value, "onehot": amount, "guard": guards,
    "derive": any_value, "where": any_value, "join": any_value, "time": text_value,
    "min_count": count, "hash_buckets": count, "draw": text_value, "classes": count, "on_bad": _ON_BAD, "seed": seed,
}  # fmt: skip
READING: dict[str, Check] = {
    "format": choice("csv", "tsv", "parquet", "arrow", "feather", "jsonl"), "delimiter": text_value, "header": truth,
    "names": names, "skip_lines": amount, "comment": text_value, "strip": strip, "na": names, "encoding": text_value,
    "decimal": text_value, "text": names, "columns": names,
}  # fmt: skip
_LABEL = {"label": "a label, the column to learn: such as label: income"}

KINDS: dict[str, Kind] = {
    "digits": Kind(_digits, _SHARED, _check_digits, {}),
    "arrays": Kind(
        _arrays,
        {**_SHARED, "validation": any_value, "classes": count, "layout": choice("hw", "hwc", "chw")},
        _check_arrays,
        {},
        ("validation",),
    ),
    "table": Kind(_table, {**_FITTED, **READING}, _check_table, _LABEL),
    "sql": Kind(_sql, _FITTED, _check_sql, _LABEL),
    "images": Kind(
        _images,
        {
            **_SHARED, "size": count, "validation": any_value, "test": any_value, "on_bad": _ON_BAD,
            "decoder": choice("auto", "turbo", "nvjpeg"), "classes": classes, "cover": count,
            "resize": count, "interpolation": choice("bilinear", "bicubic"),
        },
        _check_images,
        {"size": "a size, the pixels of a side that the model sees: such as size: 224"},
        ("validation", "test"),
    ),
    "sequences": Kind(
        _sequences,
        {
            "tokens": count, "tokenizer": text_value, "special_tokens": truth,
            "field": text_value, "label": text_value, "vocabulary": count,
            "classes": count, "pad": amount, "holdout": share, "validation": any_value, "draw": text_value, "seed": seed,
            "on_bad": _ON_BAD,
        },
        _check_sequences,
        {},
        ("validation", "tokenizer"),
    ),
    "text": Kind(
        _text,
        {
            "window": count, "encoding": choice(*ENCODINGS), "tokenizer": text_value, "field": text_value, "eot": end_of_text,
            "boundaries": choice(*BOUNDARIES), "holdout": share, "validation": any_value, "dtype": choice(*TOKEN_TYPES),
            "vocabulary": count, "stride": count, "draw": choice("shuffle"), "on_bad": _ON_BAD,
        },
        _check_text,
        {"window": "a window, the number of tokens in a row: such as window: 256"},
        ("validation", "tokenizer"),
    ),
}  # fmt: skip
