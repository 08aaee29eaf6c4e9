"""The kinds of stages, each with the keys that it has in a pipeline file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flatout.pipelines.asked.keys_of import (
    as_text,
    between,
    either,
    key,
    keys_of,
    list_of,
    mapping,
    number,
    one_of,
    text,
    truth,
    whole,
    written_keys,
)
from flatout.pipelines.asked.options import duration, size, when

_recipe = either(lambda value: isinstance(value, Mapping), mapping(), text)


@dataclass(frozen=True)
class StageNeeds:
    """What a stage takes while it runs; measured when it ran before."""

    cores: float | None = key(number(above=0), None)
    memory: str | None = key(size, None)
    gpu_memory: str | None = key(size, None)


_needs = keys_of(StageNeeds)


@dataclass(frozen=True)
class AnyStage:
    """Keys that every stage may have."""

    inputs: tuple[str, ...] = key(list_of(text), ())
    after: tuple[str, ...] = key(list_of(text), ())
    environment: tuple[str, ...] = key(list_of(text), ())
    needs: StageNeeds | None = key(_needs, None)  # noqa: RUF009  it makes a field
    limit: str = key(duration, "1 day")
    when: str | None = key(when, None)

    def result_keys(self) -> dict[str, Any]:
        """What the file says that decides the stage's result."""
        return {name: value for name, value in written_keys(self).items() if name not in ("needs", "limit", "when", "after")}


@dataclass(frozen=True)
class RunStage(AnyStage):
    """Any command, with the files that it reads and writes."""

    run: str | tuple[str, ...] = key(either(lambda value: isinstance(value, list), list_of(as_text, 1), text))
    outputs: tuple[str, ...] = key(list_of(text, 1), example="outputs: [train.csv]")


@dataclass(frozen=True)
class ColumnRule:
    """What the values of a column have to be."""

    type: str | None = key(one_of("number", "whole", "text", "date", "truth"), None)
    range: tuple[float | None, float | None] | None = key(between(number()), None)
    values: tuple[str, ...] | None = key(list_of(as_text, 1), None)
    missing: float | None = key(number(0, 1), None)
    unique: bool = key(truth, False)


@dataclass(frozen=True)
class ExpectedTable:
    table: str = key(text, example="table: calls.csv")
    delimiter: str | None = key(text, None)


_table = either(lambda value: isinstance(value, Mapping), keys_of(ExpectedTable), text)


@dataclass(frozen=True)
class DataStage(AnyStage):
    """Expectations on the columns of a table."""

    data: str | ExpectedTable = key(_table)  # noqa: RUF009  it makes a field
    expect: Mapping[str, ColumnRule] = key(mapping(keys_of(ColumnRule)), {})
    rows: tuple[int | None, int | None] | None = key(between(whole(0)), None)
    drift: float | None = key(number(above=0, most=1), None)


@dataclass(frozen=True)
class TuneStage(AnyStage):
    tune: str | Mapping[str, Any] = key(_recipe)
    set: Mapping[str, Any] = key(mapping(), {})
    search: Mapping[str, Any] = key(mapping(), {})
    budget: str | None = key(as_text, None)
    trials: int | None = key(whole(), None)
    metric: str | None = key(text, None)


@dataclass(frozen=True)
class TrainStage(AnyStage):
    train: str | Mapping[str, Any] = key(_recipe)
    set: Mapping[str, Any] = key(mapping(), {})
    planning: str = key(as_text, "5 min")


@dataclass(frozen=True)
class EvaluateStage(AnyStage):
    evaluate: str = key(text)
    data: str | None = key(text, None)
    part: str | None = key(one_of("validation", "test", "train"), None)
    metrics: tuple[str, ...] = key(list_of(text), ())


@dataclass(frozen=True)
class ExportStage(AnyStage):
    export: str = key(text)


@dataclass(frozen=True)
class ShrinkStage(AnyStage):
    shrink: str = key(text)
    goal: str | None = key(as_text, None)
    margin: float | None = key(number(above=0), None)
    batch: str | None = key(as_text, None)
    data: str | None = key(text, None)
    within: str = key(duration, "10 min")
    training: str | None = key(as_text, None)


@dataclass(frozen=True)
class GateStage(AnyStage):
    gate: str = key(text)
    data: str = key(text, example="data: test.csv")
    against: str | None = key(text, None)
    margin: float | None = key(number(above=0), None)
    slice: tuple[str, ...] = key(list_of(text), ())
    floor: Mapping[str, float] = key(mapping(number()), {})
    slower: str = key(as_text, "25%")
    larger: str = key(as_text, "25%")
    batch: int = key(whole(), 1)


@dataclass(frozen=True)
class DeployStage(AnyStage):
    deploy: str = key(text)
    to: str = key(text, example="to: production")


STAGE_KINDS: dict[str, type[AnyStage]] = {
    "run": RunStage,
    "data": DataStage,
    "tune": TuneStage,
    "train": TrainStage,
    "evaluate": EvaluateStage,
    "export": ExportStage,
    "shrink": ShrinkStage,
    "gate": GateStage,
    "deploy": DeployStage,
}
COMMON_KEYS = tuple(one.name for one in dataclasses.fields(AnyStage))


@dataclass(frozen=True)
class PipelineKeys:
    """The keys of a pipeline file."""

    stages: Mapping[str, Any] = key(mapping(), example="stages: {model: {train: mine.yaml}}")
    folder: str = key(text, "built")
    store: str | None = key(text, None)
    keep: str = key(size, "20 GB")
    price_per_hour: float | None = key(number(above=0), None)


def kind_of(written: Mapping[str, Any]) -> str | None:
    """The kind that a stage's keys name. `data` is a kind only where no other one is named: to others it is an option."""
    named = [kind for kind in STAGE_KINDS if kind in written]
    others = [kind for kind in named if kind != "data"]
    if len(others) > 1 or not named:
        return None
    return others[0] if others else "data"


def stage_kind(stage: AnyStage) -> str:
    return next(kind for kind, made in STAGE_KINDS.items() if type(stage) is made)
