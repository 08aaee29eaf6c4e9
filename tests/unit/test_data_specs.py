"""Data as recipes write it: every form loads, and all mistakes come at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.base.errors import RecipeError
from flatout.data import digits
from flatout.data.specs import check_data, parse_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    x, y = np.random.default_rng(0).random((30, 2, 4, 4), np.float32), np.arange(30) % 3
    np.savez(tmp_path / "train.npz", x=x, y=y)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    (tmp_path / "a.txt").write_text("hello there " * 20)
    return tmp_path


@pytest.mark.parametrize(
    ("written", "rows"),
    [
        ("digits", 1438),
        ({"digits": None, "holdout": 0.5, "draw": "balanced"}, 899),
        ({"arrays": "train.npz"}, 30),
        ({"arrays": {"x": "x.npy", "y": "y.npy"}, "validation": {"x": "x.npy", "y": "y.npy"}, "classes": 3}, 30),
        ({"arrays": "train.npz", "holdout": 0.1, "layout": "chw", "normalize": "auto", "augment": ["flip", {"crop": 1}]}, 27),
        ({"arrays": "train.npz", "normalize": {"mean": [0.5, 0.5], "std": [1, 1]}, "seed": 4}, 30),
        ({"text": "a.txt", "window": 8}, 26),
        ({"text": ["*.txt", "module:json"], "window": 8, "encoding": "bytes", "stride": 4, "validation": "a.txt"}, None),
    ],
)
def test_every_form_loads_from_the_folder_of_the_recipe(folder: Path, written: Any, rows: int | None) -> None:
    assert check_data(written, folder) == []
    data = parse_data(written, folder)
    assert rows is None or len(data.train) == rows
    assert data.row_bytes > 0 and data.fingerprint()


def test_a_written_name_is_the_same_data_as_in_python(tmp_path: Path) -> None:
    assert parse_data({"digits": None, "holdout": 0.3}, tmp_path).fingerprint() == digits(0.3).fingerprint()


@pytest.mark.parametrize(
    ("written", "messages"),
    [
        ("digit", ["did you mean 'digits'"]),
        (3, ["a name or a mapping"]),
        ({}, ["data needs one of digits, arrays, table, sql, images, sequences, text, got nothing"]),
        ({"array": "train.npz"}, ["did you mean 'arrays'"]),
        ({"digits": None, "arrays": "train.npz"}, ["both 'digits' and 'arrays'"]),
        ({"digits": 3}, ["digits takes no value"]),
        ({"digits": None, "validation": "x.npy"}, ["digits has no option 'validation'"]),
        ({"arrays": "absent.npz", "holdot": 0.1, "layout": "cwh"},
         ["no file at", "did you mean 'holdout'", "layout: expected one of hw"]),
        ({"arrays": {"y": "y.npy"}}, ["arrays needs a column x"]),
        ({"arrays": 3}, ["arrays is a file, or a mapping"]),
        ({"arrays": "a.txt", "validation": {"x": "no.npy"}}, ["no known format", "validation: no file at"]),
        ({"arrays": "train.npz", "holdout": 0.1, "validation": "train.npz"}, ["give one of them"]),
        ({"arrays": "train.npz", "holdout": "10%", "classes": 2.5, "seed": "x", "draw": 3},
         ["holdout: expected a share.*'10%'", "classes: expected a whole", "seed: expected", "draw: expected"]),
        ({"arrays": "train.npz", "augment": ["flop"], "normalize": {"means": 1}},
         ["augment: unknown transform 'flop'", "no option 'means'"]),
        ({"arrays": "train.npz", "augment": "flip", "normalize": 3},
         ["augment: expected a list", "normalize: expected 'auto'"]),
        ({"text": "a.txt"}, ["text needs a window"]),
        ({"text": ["*.md", "module:nowhere"], "window": 0, "encoding": "utf8"},
         [r"\*.md matches no file", "no module 'nowhere'", "window: expected", "encoding: expected one of chars"]),
        ({"text": {"a": 1}, "window": 8, "draw": "balanced"}, ["text is a path", "draw: expected one of shuffle"]),
    ],
)  # fmt: skip
def test_all_mistakes_come_at_once(folder: Path, written: Any, messages: list[str]) -> None:
    problems = check_data(written, folder)
    assert len(problems) == len(messages)
    with pytest.raises(RecipeError) as caught:
        parse_data(written, folder)
    assert caught.value.problems == tuple(problems)
    for message in messages:
        with pytest.raises(RecipeError, match=message):
            raise RecipeError(problems)
