"""Reads a pipeline file, and reports all its mistakes at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import RecipeError, UsageError, did_you_mean
from flatout.pipelines.asked.documents import MOST_BYTES, ReadYaml, plain
from flatout.pipelines.asked.keys_of import Mistakes, read_keys, shown
from flatout.pipelines.asked.stage_kinds import (
    STAGE_KINDS,
    AnyStage,
    DeployStage,
    EvaluateStage,
    GateStage,
    PipelineKeys,
    kind_of,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class AskedPipeline:
    """A pipeline file as it was read. `home`: the folder of the file, where relative paths start. `read`: how recipes are."""

    path: Path
    keys: PipelineKeys
    stages: Mapping[str, AnyStage]
    read: ReadYaml = plain

    @property
    def home(self) -> Path:
        return self.path.parent

    @property
    def folder(self) -> Path:
        return self.home / self.keys.folder


def read_pipeline(path: Path, read: ReadYaml = plain) -> AskedPipeline:
    written, problems = _written_in(path, read)
    return pipeline_from(written, path, problems, read)


def pipeline_from(
    written: Mapping[str, Any], path: Path, problems: list[str] | None = None, read: ReadYaml = plain
) -> AskedPipeline:
    problems = list(problems or [])
    keys = None
    try:
        keys = read_keys(PipelineKeys, written)
    except Mistakes as found:
        problems += [f"{place}: {words}" for place, words in found.found]
    stages: dict[str, AnyStage] = {}
    listed = written.get("stages")
    for name, asked in listed.items() if isinstance(listed, Mapping) else ():
        found_stage = _stage(str(name), asked, problems)
        if found_stage is not None:
            stages[str(name)] = found_stage
    if isinstance(listed, Mapping):
        problems += [] if listed else ["stages: expected one or more"]
        problems += [problem for name, stage in stages.items() for problem in _beyond_keys(name, stage, stages, list(listed))]
    if problems or keys is None:
        raise RecipeError(problems, str(path))
    return AskedPipeline(path.absolute(), keys, stages, read)


def _written_in(path: Path, read: ReadYaml) -> tuple[dict[str, Any], list[str]]:
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder: give the pipeline file in it, such as {path / 'pipeline.yaml'}")
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} has {path.stat().st_size:,} bytes: too long for a pipeline file")
        content = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"pipeline file not found: {path}; docs/pipeline.md shows how one is written") from None
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not YAML in UTF-8: {error}") from error
    try:
        written, problems = read(path, content)
    except UsageError as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    if not isinstance(written, dict):
        if problems:
            raise RecipeError(problems, str(path))
        raise UsageError(f"{path} must have keys and values (stages: ...), got {shown(written)}")
    if "model" in written and "stages" not in written:
        raise UsageError(f"{path} is a recipe: flatout run {path} trains it; a pipeline file has stages")
    return written, problems


def _stage(name: str, asked: Any, problems: list[str]) -> AnyStage | None:
    where = f"stages.{name[:60]}"
    if not _NAME.fullmatch(name):
        problems.append(f"{where}: a name has letters, digits, - _ and . and begins with a letter or a digit")
        return None
    if not isinstance(asked, Mapping):
        problems.append(f"{where}: expected keys and values, such as {{train: mine.yaml}}, got {shown(asked)}")
        return None
    kind = kind_of(asked)
    if kind is None:
        named = [one for one in STAGE_KINDS if one in asked and one != "data"]
        if len(named) > 1:
            problems.append(f"{where}: a stage has one kind of work, got {' and '.join(named)}: write two stages")
        else:
            near = f"; {did_you_mean(next(iter(asked)), STAGE_KINDS)}" if asked else ""
            problems.append(f"{where}: needs one of {', '.join(STAGE_KINDS)}{near}")
        return None
    try:
        return read_keys(STAGE_KINDS[kind], asked)
    except Mistakes as found:
        problems += [f"{where}.{place}: {words}" for place, words in found.found]
        return None


def _beyond_keys(name: str, stage: AnyStage, stages: Mapping[str, AnyStage], listed: list[str]) -> Iterator[str]:
    """What the keys of one stage do not show: stages that do not exist, and keys that exclude each other."""
    for other in stage.after:
        if other not in listed:
            yield f"stages.{name}.after: there is no stage {other!r}; {did_you_mean(other, listed)}"
    if isinstance(stage, GateStage):
        old = None if stage.against is None else stages.get(stage.against)
        if not stage.floor and (stage.against is None or isinstance(old, DeployStage)):
            yield (
                f"stages.{name}.floor: missing; the first model has no old one to be compared with: write what it has to "
                "reach by itself, such as floor: {accuracy: 0.9}"
            )
    if isinstance(stage, EvaluateStage) and stage.data is not None and stage.part is not None:
        yield f"stages.{name}: data and part are two ways to name rows: give one of them"


def models_named(stage: AnyStage) -> dict[str, str]:
    """Keys of a stage whose value is another stage or the path of a model."""
    keys = ("train", "evaluate", "export", "shrink", "gate", "against", "deploy")
    return {key: value for key in keys if isinstance(value := vars(stage).get(key), str)}
