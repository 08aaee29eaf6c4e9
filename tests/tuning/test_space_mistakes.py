"""Every mistake in a space is told at once, with the key and what was found."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flatout.base.errors import RecipeError, UsageError
from flatout.recipe.load import read_recipe
from flatout.tuning.space import Space, check_space, parse_words, read_space, space_of

GOOD = "good=1|2"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("lr=1e-3..1e-3", "empty"), ("lr=1e-1..1e-4", "0.0001..0.1"), ("lr=log(0,1)", "above 0"),
        ("lr=log(-1,1)", "above 0"), ("lr=1e-3..x", "'x'"), ("lr=log(1)", "log"), ("lr=log(1,x)", "'x'"), ("x=1|1", "1"),
        ("x=1|1.0", "twice"), ("x=[1]|[1]", "[1]"), ("x=1||2", "missing"), ("x=1|2..3", "comma"), ("x=0..1", "0|1"),
        ("x=0,0.0..1.0", "overlap"), ("x=1.0..3.0,2.0..4.0", "overlap"), ("x=1.0...inf", "finite"),
        ("x=1|2 if good is", "KEY"), ("x=1|2 if good equals 1", "KEY"), ("x=1|2 if good is 1|2", " in "),
        ("x=1|2 if goood is 1", "did you mean 'good'"), ("x=1|2 if good is 3", "3"), ("x=1|2 if x is 1", "circular"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_word(word: str, told: str) -> None:
    with pytest.raises(RecipeError) as raised:
        parse_words([GOOD, word])
    (problem,) = raised.value.problems
    assert told in problem
    assert word.partition("=")[0] in problem


def test_all_mistakes_at_once() -> None:
    with pytest.raises(RecipeError) as raised:
        parse_words(["lr=1e-1..1e-4", "a=1|1", "b=3..3", "c=1|2 if nothing is 3", "d=1|2 if e is 1", "e=1|2 if d is 1"])
    assert len(raised.value.problems) == 5


@pytest.mark.parametrize("word", ["lr", "=1|2", "a..b=1|2"])
def test_a_word_without_a_key(word: str) -> None:
    with pytest.raises(UsageError):
        parse_words([word])


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (1e-3, "one value"), ("adamw", "one value"), ([], "empty"), ([5], "one value"), ((1, 2, 3), "(1, 2, 3)"),
        (("a", 2), "'a'"), ({"low": 1}, "high is missing"), ({"low": 1, "high": 2, "choices": [1]}, "low"),
        ({"low": 1, "high": 5, "logg": True}, "did you mean 'log'"), ({"low": True, "high": 5}, "True"),
        ({"low": 1, "high": 5, "log": "yes"}, "'yes'"), ({"low": 1, "high": 5, "log": True, "linear": True}, "log"),
        ({"low": 1.5, "high": 5, "whole": True}, "whole"), ({"choices": 5}, "5"), ({"choices": [1, 2], "log": True}, "log"),
        ({"min": 1}, "min"), ({"distribution": "normal", "min": 1, "max": 2}, "'normal'"), ({"if": "a is 1"}, "low"),
        ({"choices": [1, 2], "if": "a is 1"}, "'a'"), ({"choices": [1, 2], "if": 3}, "3"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_mapping(written: Any, told: str) -> None:
    with pytest.raises(RecipeError) as raised:
        space_of({"key": written, "other": [1, 2]})
    (problem,) = raised.value.problems
    assert problem.startswith("key: ") and told in problem


def test_a_space_of_one_point() -> None:
    with pytest.raises(RecipeError, match="one point"):
        Space(())
    with pytest.raises(RecipeError, match="empty"):
        space_of({})
    with pytest.raises(UsageError):
        space_of([1])  # type: ignore[arg-type]


def test_mistakes_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("lr: 1e-1..1e-4\nlr: 3\nbatch: [1, 1]\n")
    with pytest.raises(RecipeError) as raised:
        read_space(path)
    assert len(raised.value.problems) == 3 and str(path) in str(raised.value)


def test_values_that_the_recipe_does_not_take(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: digits\nmodel: mlp\nbatch: 64\nlr: 1e-3\nbudget: 2 epochs\n")
    space, _ = parse_words([
        "lr=0.0..1.0", "batch=16.0..64.0", "modle.hidden=1..64", "optimizer=adamw|sgdd", "clip=-1,1.0..2.0",
        "optimizer.momentun=0.1..0.9 if optimizer is not adamw",
    ])  # fmt: skip
    assert space is not None
    with pytest.raises(RecipeError) as raised:
        check_space(space, partial(read_recipe, path))
    problems = raised.value.problems
    assert {problem.partition(":")[0] for problem in problems} == {"lr", "batch", "modle", "optimizer", "clip"}
    assert any("'model'" in problem for problem in problems) and any("'sgd'" in problem for problem in problems)
    assert sum(problem.startswith("lr:") for problem in problems) == 1


def test_a_conditional_key_is_checked_where_it_exists(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: digits\nmodel: mlp\nbatch: 64\nlr: 1e-3\nbudget: 2 epochs\n")
    good, _ = parse_words(["optimizer=adamw|sgd", "optimizer.momentum=0.1..0.9 if optimizer is sgd"])
    bad, _ = parse_words(["optimizer=adamw|sgd", "optimizer.momentum=0.1..0.9 if optimizer is adamw"])
    assert good is not None and bad is not None
    check_space(good, partial(read_recipe, path))
    with pytest.raises(RecipeError, match="momentum"):
        check_space(bad, partial(read_recipe, path))
