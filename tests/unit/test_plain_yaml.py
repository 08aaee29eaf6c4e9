"""YAML as recipes use it: what a person means by it, or a sentence with the line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from flatout.base.errors import RecipeError, UsageError
from flatout.base.plain_yaml import read_yaml
from flatout.recipe.load import read_recipe

RECIPE = "data: digits\nmodel: mlp\nbatch: 8\nlr: 1e-3\nbudget: 1 epoch\n"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1e6 samples", "1e6 samples"), ("3e8f1c", "3e8f1c"), ("1e6", 1e6), ("3e-4", 3e-4), ("1_000", 1000), ("1__0", "1__0"),
        ("010", 10), ("0x1f", 31), ("0b11", 3), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("2024-13-45", "2024-13-45"),
        ("on", True), ("No", False), ("~", None), ("", None), ("'1'", "1"), ("!!str 3", "3"), ("=", "="), (".5", 0.5),
        ("-.inf", -math.inf), ("1e400", math.inf), ("{1: a, on: b, null: c}", {"1": "a", "on": "b", "null": "c"}),
        ("{a: &p {x: 1, y: 2}, b: {<<: *p, y: 3}}", {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}),
    ],
)  # fmt: skip
def test_what_is_meant(written: str, meant: Any) -> None:
    assert read_yaml(written) == (meant, [])


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("a: 1\nb: 2\na: 3", "the key 'a' is already used in line 1 (line 3, column 1)"),
        ("a: " + "9" * 5000, "a number with 5,000 digits is too long (line 1, column 4)"),
        ("a: !!int abc", "'abc' has the tag !!int"),
        ("a: !!timestamp 2024-13-45", "the tag !!timestamp"),
        ("a: !!python/object/apply:os.system [ls]", "the tag !!python/object/apply:os.system"),
        ("? [1, 2]\n: 3", "a key must be text (line 1, column 3)"),
        ('a: "\\ud800"', "text can't contain the character"),
        ("<<: 3", "<< takes a mapping"),
    ],
)
def test_what_is_wrong_with_a_part(written: str, words: str) -> None:
    (problem,) = read_yaml(written)[1]
    assert words in problem


LAUGHS = "a: &a [l, l, l, l, l, l, l, l, l]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{inner}'] * 9)}]\n" for name, inner in zip("bcdefghi", "abcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("[" * 3000, "nested more than 64 levels deep (line 1, column 65)"),
        ("&a [*a]", "a value contains itself (line 1, column 1)"),
        (LAUGHS, "its aliases expand to"),
        ("a: *b", "found undefined alias 'b' (line 1, column 4)"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("x" * (1 << 20) + "x", "1,048,577 characters"),
        ("a: \x07", "special characters are not allowed"),
    ],
)
def test_what_can_not_be_read_at_all(written: str, words: str) -> None:
    with pytest.raises(UsageError) as said:
        read_yaml(written)
    assert words in str(said.value) and "\n" not in str(said.value)


def test_all_mistakes_of_a_file_come_together(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE + "lr: 3\nsettings: {1: 2}\nknobs: 3\nobjective: {classify: x}\nsede: 1\n")
    with pytest.raises(RecipeError) as said:
        read_recipe(path, ["clip=" + "9" * 5000, "budget=1e6 samples"], {"precision": "fp31"})
    for words in ("'lr' is already used in line 4", "settings.1: no such setting", "knobs: expected a list, got 3",
                  "label_smoothing: expected a number, got 'x'", "sede: no such key; did you mean 'seed'?",
                  "clip: a number with 5,000 digits", "settings.precision: expected one of"):  # fmt: skip
        assert words in str(said.value)
    assert "- budget" not in str(said.value)


def test_a_long_value_makes_no_long_message(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE + f"seed: {'x' * 50_000}\n")
    with pytest.raises(RecipeError) as said:
        read_recipe(path)
    assert "seed: expected a whole number, got 'xxx" in str(said.value) and len(str(said.value)) < 2000
