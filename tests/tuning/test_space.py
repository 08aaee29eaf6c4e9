"""The space of a search: what its words mean, and that points survive every way of writing them."""

from __future__ import annotations

import json
import math
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import flatout as fo
from flatout.base.plain_yaml import read_yaml
from flatout.recipe.load import read_recipe
from flatout.tuning.space import Space, check_space, default_space, parse_words, read_space, space_of
from flatout.tuning.space.own_point import own_point

RECIPE = """
data: digits
model: {mlp: {hidden: [32]}}
batch: 64
lr: 3e-3
budget: 2 epochs
"""
WORDS = [
    "lr=1e-4..1e-1", "model.hidden=[64,64]|[128,128]", "weight_decay=0,1e-5..1e-1", "batch=32..256", "optimizer=adamw|sgd",
    "optimizer.momentum=0.8..0.99 if optimizer is sgd", "schedule=cosine|linear", "seed=3",
]  # fmt: skip


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    return path


def space_in(*words: str) -> Space:
    space, plain = parse_words(words)
    assert space is not None and plain == []
    return space


def drawn(space: Space, count: int = 50) -> list[dict[str, Any]]:
    draw = random.Random(0)
    return [space.point([draw.random() for _ in space.parameters]) for _ in range(count)]


def test_a_word_with_no_range_and_no_choice_is_a_plain_override() -> None:
    space, plain = parse_words([*WORDS, "data.table=../rows.csv", "data.where='a | b'"])
    assert space is not None and [one.key for one in space.parameters] == [word.partition("=")[0] for word in WORDS[:-1]]
    assert plain == ["seed=3", "data.table=../rows.csv", "data.where='a | b'"]
    assert parse_words(["lr=1e-3"]) == (None, ["lr=1e-3"])


@pytest.mark.parametrize(
    ("word", "middle"),
    [
        ("lr=1e-4..1e-2", 1e-3),  # two decades: a log scale
        ("lr=1e-4..9e-3", 0.00455),  # less: linear
        ("lr=log(1e-3,4e-3)", 2e-3),
        ("lr=linear(0.0,1.0)", 0.5),
        ("lr=linear(0,1)", 0.5),
        ("batch=32..64", 48),
        ("batch=1..256", 11),  # whole numbers have cells of their own: from 0.5 to 256.5
    ],
)
def test_the_middle_of_a_range(word: str, middle: float) -> None:
    (one,) = space_in(word).parameters
    assert one.at(0.5) == middle and type(one.at(0.5)) is type(middle)


def test_a_range_of_whole_numbers_has_all_of_them_equally_often() -> None:
    (one,) = space_in("batch=3..6").parameters
    values = [one.at(place / 4000) for place in range(4000)]
    assert one.count == 4 and {value: values.count(value) for value in values} == {3: 1000, 4: 1000, 5: 1000, 6: 1000}


@pytest.mark.parametrize("word", ["lr=1e-4..1e-1", "clip=0.3..0.7", "batch=32..4096", "x=0.123456..0.123789", "x=-5.0..500.0"])
def test_values_stay_in_their_range(word: str) -> None:
    (one,) = space_in(word).parameters
    low, high = one.domain.written()["low"], one.domain.written()["high"]
    values = [one.at(place / 999) for place in range(1000)]
    assert all(low <= value <= high for value in values) and values == sorted(values)
    assert values[0] == pytest.approx(low) and values[-1] == pytest.approx(high)
    assert len(set(values)) > 700


def test_a_mixture_has_its_single_value_and_its_range() -> None:
    (one,) = space_in("weight_decay=0,1e-5..1e-1").parameters
    values = [one.at(place / 400) for place in range(400)]
    assert values.count(0) == 100 and all(1e-5 <= value <= 0.1 for value in values if value)


def test_choices_are_values_of_yaml() -> None:
    values = [1, 2.5, True, None, "a b", [64, 64], {"cosine": {"final": 0.1}}]
    (one,) = space_in("x=1|2.5|true|null|'a b'|[64,64]|{cosine: {final: 0.1}}").parameters
    assert [one.at((place + 0.5) / 7) for place in range(7)] == values
    assert [one.unit_of(value) for value in values] == [(place + 0.5) / 7 for place in range(7)]


def test_points_numbers_and_overrides_are_the_same_point(recipe: Path) -> None:
    space, plain = parse_words(WORDS)
    assert space is not None
    for point in drawn(space):
        assert space.point(space.units_of(point)) == point
        made = read_recipe(recipe, [*plain, *space.overrides(point)])
        assert (made.lr, made.weight_decay, made.batch, made.schedule) == tuple(
            point[key] for key in ("lr", "weight_decay", "batch", "schedule")
        )
        assert made.model == {"mlp": {"hidden": point["model.hidden"]}} and made.seed == 3
        momentum = point.get("optimizer.momentum")
        assert made.optimizer == ({"sgd": {"momentum": momentum}} if point["optimizer"] == "sgd" else "adamw")


@pytest.mark.parametrize(
    "value", ["1e3", "null", "yes", "a: b", "#x", " padded ", "[1", "3", "plain", 1e-5, 0.1, 1e22, True, None, [1, "a"]]
)
def test_an_override_is_read_as_exactly_its_value(value: Any) -> None:
    space = space_of({"name": [value, "other"]})
    (word,) = space.overrides({"name": value})
    assert read_yaml(word.removeprefix("name=")) == (value, [])


def test_a_space_survives_json() -> None:
    space, _ = parse_words([*WORDS, "x=1|2 if weight_decay is not 0", "y=3..9 if schedule in cosine|linear"])
    assert space is not None
    again = Space.parse(json.loads(json.dumps(space.written())))
    assert again == space and drawn(again) == drawn(space)


@pytest.mark.parametrize(
    ("condition", "where"),
    [("is sgd", {"sgd"}), ("is not sgd", {"adam", "adamw"}), ("in sgd|adam", {"sgd", "adam"})],
)
def test_a_condition_decides_whether_a_key_exists(condition: str, where: set[str]) -> None:
    space = space_in(f"momentum=0.1..0.9 if optimizer {condition}", "optimizer=sgd|adam|adamw")
    points = drawn(space)
    assert {point["optimizer"] for point in points if "momentum" in point} == where
    assert {point["optimizer"] for point in points if "momentum" not in point} == {"sgd", "adam", "adamw"} - where


def test_a_key_without_its_parent_is_absent_too() -> None:
    space = space_in("a=1|2", "b=1|2 if a is 1", "c=1|2 if b is not 1")
    assert {tuple(point) for point in drawn(space)} == {("a",), ("a", "b"), ("a", "b", "c")}
    assert space.size == 1 + 1 + 2


def test_the_number_of_points() -> None:
    assert space_in("a=1|2|3", "b=1..4").size == 12
    assert space_in("a=1|2|3", "b=1.0..4.0").size is None
    assert space_in("a=1|2", "b=1..10 if a is 1").size == 11


def test_python_yaml_and_words_make_the_same_space(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("""
lr: 1e-4..1e-1
model: {hidden: 64|128}
weight_decay: {mixture: [0, {low: 1e-5, high: 1e-1, log: true}]}
batch: {low: 32, high: 256}
optimizer: [adamw, sgd]
optimizer.momentum: {low: 0.8, high: 0.99, if: optimizer is sgd}
""")
    words = space_in("lr=1e-4..1e-1", "model.hidden=64|128", "weight_decay=0,1e-5..1e-1", "batch=32..256",
                     "optimizer=adamw|sgd", "optimizer.momentum=0.8..0.99 if optimizer is sgd")  # fmt: skip
    python = space_of({
        "lr": (1e-4, 1e-1), "model.hidden": [64, 128], "weight_decay": "0,1e-5..1e-1", "batch": (32, 256),
        "optimizer": {"choices": ["adamw", "sgd"]}, "optimizer.momentum": {"low": 0.8, "high": 0.99, "if": "optimizer is sgd"},
    })  # fmt: skip
    assert read_space(path) == words == python


def test_the_words_of_a_sweep() -> None:
    sweep = space_of({
        "lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1}, "batch": {"values": [32, 64]},
        "clip": {"min": 0.5, "max": 2.0}, "depth": {"distribution": "int_uniform", "min": 2, "max": 8},
    })  # fmt: skip
    assert sweep == space_in("lr=log(1e-4,1e-1)", "batch=32|64", "clip=0.5..2.0", "depth=2..8")


def test_a_recipe_takes_every_value_of_its_default_space(recipe: Path) -> None:
    read = read_recipe(recipe)
    space = default_space(read)
    assert [one.key for one in space.parameters] == ["lr", "weight_decay", "schedule", "schedule.warmup"]
    check_space(space, partial(read_recipe, recipe))
    assert (point := own_point(read, space)) is not None
    assert space.point(space.units_of(point)) == {**point, "weight_decay": pytest.approx(0.01), "lr": pytest.approx(3e-3)}
    low, high = space.by_key["lr"].at(0.0), space.by_key["lr"].at(1.0)
    assert math.log10(high / low) == pytest.approx(1.5, abs=0.01) and low < 3e-3 < high


def test_a_default_space_keeps_what_the_user_wrote_in_detail(recipe: Path) -> None:
    detailed = read_recipe(recipe, ["schedule={cosine: {final: 0.1, warmup: 20}}"])
    assert [one.key for one in default_space(detailed).parameters] == ["lr", "weight_decay"]
    auto = fo.Recipe(data="digits", model="mlp", batch=64, lr="auto", budget="1 epoch")
    assert own_point(auto, default_space(auto)) is None
