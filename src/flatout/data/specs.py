"""Data as a recipe file writes it: `digits`, `{arrays: train.npz}`, `{text: "*.txt", window: 256}`, paths relative to the file.

`check_data` lists every mistake at once and loads nothing; `parse_data` raises them, or loads the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError, RecipeError, did_you_mean
from flatout.data.arrays import arrays
from flatout.data.data import Data
from flatout.data.digits import digits
from flatout.data.files import FORMATS, file_format
from flatout.data.text import ENCODINGS, text
from flatout.data.tokens import TOKEN_TYPES, find_files
from flatout.data.transforms import parse_transforms

Check = Callable[[Any], str | None]
_COLUMNS_EXAMPLE = "a file, or a mapping of columns to files such as {x: images.npy, y: labels.npy}"


def parse_data(written: Mapping[str, Any] | str, base_folder: Path) -> Data:
    problems = check_data(written, base_folder)
    if problems:
        raise RecipeError(problems, where="data")
    kind, main, options = _parts(written)
    if kind == "digits":
        return digits(**options)
    if kind == "arrays":
        held = options.pop("validation", None)
        return arrays(_located(main, base_folder), validation=_located(held, base_folder), **options)
    held = options.pop("validation", None)
    return text(_located(main, base_folder), validation=_located(held, base_folder), **options)


def check_data(written: Any, base_folder: Path) -> list[str]:
    """One line for each mistake; none for data that can be loaded, as far as names and files tell."""
    if isinstance(written, str):
        return [] if written == "digits" else [f"unknown data {written!r}; {did_you_mean(written, _OPTIONS)}"]
    if not isinstance(written, Mapping):
        return [f"data is a name or a mapping, such as 'digits' or {{arrays: train.npz}}, got {written!r}"]
    kinds = [name for name in written if name in _OPTIONS]
    if len(kinds) != 1:
        what = f"both {kinds[0]!r} and {kinds[1]!r}" if kinds else f"{', '.join(map(repr, written)) or 'nothing'}"
        near = "" if kinds or not written else "; " + did_you_mean(str(next(iter(written))), _OPTIONS)
        return [f"data needs one of {', '.join(_OPTIONS)}, got {what}{near}"]
    kind, main, options = _parts(written)
    problems = _check_main(kind, main, base_folder)
    if kind != "digits" and options.get("validation") is not None:
        problems += [f"validation: {problem}" for problem in _check_main(kind, options["validation"], base_folder)]
        if kind == "arrays" and options.get("holdout"):
            problems.append("holdout and validation are two ways to say the same: give one of them")
    if kind == "text" and "window" not in options:
        problems.append("text needs a window, the number of tokens in a row: such as window: 256")
    for name, value in options.items():
        if name not in _OPTIONS[kind]:
            problems.append(f"{kind} has no option {name!r}; {did_you_mean(str(name), _OPTIONS[kind])}")
        elif wrong := _OPTIONS[kind][name](value):
            problems.append(f"{name}: {wrong}, got {value!r}")
    return problems


def _parts(written: Mapping[str, Any] | str) -> tuple[str, Any, dict[str, Any]]:
    if isinstance(written, str):
        return written, None, {}
    kind = next(name for name in written if name in _OPTIONS)
    return kind, written[kind], {name: value for name, value in written.items() if name != kind}


def _located(written: Any, base_folder: Path) -> Any:
    """Every path in it, from the folder of the recipe; an absolute one stays."""
    if isinstance(written, Mapping):
        return {name: _located(path, base_folder) for name, path in written.items()}
    if isinstance(written, list):
        return [_located(path, base_folder) for path in written]
    return written if written is None or written.startswith("module:") else str(base_folder / Path(written).expanduser())


def _check_main(kind: str, main: Any, base_folder: Path) -> list[str]:
    if kind == "digits":
        return [] if main is None else [f"digits takes no value, got {main!r}: write its options beside it"]
    if kind == "text":
        paths = [main] if isinstance(main, str) else main
        if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
            return [f"text is a path, a glob, 'module:NAME', or a list of them, got {main!r}"]
        return [problem for path in paths if (problem := _said(partial(find_files, _located(path, base_folder))))]
    columns = {"x": main} if isinstance(main, str) else main
    if not isinstance(columns, Mapping) or not all(isinstance(path, str) for path in columns.values()):
        return [f"arrays is {_COLUMNS_EXAMPLE}, got {main!r}"]
    listed = ", ".join(map(str, columns)) or "nothing"
    problems = [] if "x" in columns else [f"arrays needs a column x for the inputs, got {listed}"]
    for path in columns.values():
        place = Path(_located(path, base_folder))
        if not place.is_file():
            problems.append(f"no file at {place}")
        elif file_format(place) is None:
            problems.append(f"{place} has no known format; arrays are read from {FORMATS}")
    return problems


def _said(attempt: Callable[[], object]) -> str | None:
    try:
        attempt()
    except FlatoutError as error:
        return str(error)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _share(value: Any) -> str | None:
    return None if _is_number(value) and 0 <= value < 1 else "expected a share of the rows, from 0 to below 1"


def _count(value: Any) -> str | None:
    return None if value is None or (_is_number(value) and value == int(value) >= 1) else "expected a whole number, 1 or more"


def _seed(value: Any) -> str | None:
    return None if isinstance(value, int) and not isinstance(value, bool) else "expected a whole number"


def _one_of(*known: str) -> Check:
    return lambda value: None if value in known else f"expected one of {', '.join(known)}"


def _normalize(value: Any) -> str | None:
    if value is None or value == "auto":
        return None
    if not isinstance(value, Mapping):
        return "expected 'auto', or a mapping with scale, mean and std"
    return _said(lambda: parse_transforms([{"normalize": value}]))


def _augment(value: Any) -> str | None:
    return _said(lambda: parse_transforms(value)) if isinstance(value, list) else "expected a list, such as [flip, {crop: 4}]"


def _draw(value: Any) -> str | None:
    return None if isinstance(value, str) else "expected shuffle, balanced, or the name of a column of weights"


def _any(value: Any) -> str | None:
    return None


_SHARED: dict[str, Check] = {"holdout": _share, "normalize": _normalize, "augment": _augment, "draw": _draw, "seed": _seed}
_OPTIONS: dict[str, dict[str, Check]] = {
    "digits": _SHARED,
    "arrays": {**_SHARED, "validation": _any, "classes": _count, "layout": _one_of("hw", "hwc", "chw")},
    "text": {
        "holdout": _share, "validation": _any, "window": _count, "stride": _count, "vocabulary": _count,
        "encoding": _one_of(*ENCODINGS), "dtype": _one_of(*TOKEN_TYPES), "draw": _one_of("shuffle"),
    },
}  # fmt: skip
