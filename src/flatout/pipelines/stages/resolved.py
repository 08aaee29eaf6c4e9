"""The stages of a pipeline with what each reads, writes and waits for. All that is wrong between stages is said at once."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from flatout.base.errors import RecipeError, UsageError, did_you_mean
from flatout.pipelines.asked.reading import AskedPipeline, models_named
from flatout.pipelines.asked.stage_kinds import (
    AnyStage,
    DataStage,
    DeployStage,
    EvaluateStage,
    GateStage,
    RunStage,
    ShrinkStage,
    TrainStage,
    TuneStage,
    stage_kind,
)

STATE = ".pipeline"
CURRENT = "current"  # in the folder of a deploy stage: a link to the package that is in use
MEASURED = (TuneStage, ShrinkStage, GateStage)  # their results hold times of this machine
_NAMES_FILES = ("table", "arrays", "images", "tokens", "validation", "test")
_GLOB = re.compile(r"[*?\[]")
_IMPORT_PATH = re.compile(r"([A-Za-z_][\w.]*|[\w./-]+\.py):[A-Za-z_]\w*")
_LONGEST_PATH = 4096


@dataclass(frozen=True)
class ResolvedStage:
    """`uses`: other stages by the key that names them. `reads`: files, folders and patterns, from the root."""

    name: str
    kind: str
    asked: AnyStage
    outputs: tuple[Path, ...]
    reads: tuple[Path, ...]
    code: tuple[Path, ...]
    uses: Mapping[str, str] = field(default_factory=dict)
    recipe: Mapping[str, Any] | None = None
    recipe_file: Path | None = None
    waits_for: tuple[str, ...] = ()

    @property
    def is_measured(self) -> bool:
        return isinstance(self.asked, MEASURED)

    @property
    def product(self) -> Path:
        return self.outputs[0]


@dataclass(frozen=True)
class ResolvedPipeline:
    """`stages` are in an order in which they can run."""

    asked: AskedPipeline
    stages: Mapping[str, ResolvedStage]

    @property
    def home(self) -> Path:
        return self.asked.home

    @property
    def state(self) -> Path:
        return self.asked.folder / STATE

    def shown(self, path: Path) -> str:
        """As people write it: relative to the pipeline file, if it is below it."""
        return str(path.relative_to(self.home)) if path.is_relative_to(self.home) else str(path)

    def only(self, names: Sequence[str]) -> ResolvedPipeline:
        """Some stages, and those that they wait for."""
        wanted: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in self.stages:
                raise UsageError(f"{self.asked.path} has no stage {name!r}; {did_you_mean(name, self.stages)}")
            if name not in wanted:
                wanted.add(name)
                waiting += self.stages[name].waits_for
        return ResolvedPipeline(self.asked, {name: stage for name, stage in self.stages.items() if name in wanted})


def resolve(asked: AskedPipeline) -> ResolvedPipeline:
    problems: list[str] = []
    stages = {name: _alone(name, stage, asked, problems) for name, stage in asked.stages.items()}
    problems += _wrong_outputs(stages, asked)
    waits = {name: _waits_for(stage, stages) for name, stage in stages.items()}
    problems += _missing(stages, asked)
    order: list[str] = []
    try:
        sorter = TopologicalSorter(waits)
        sorter.prepare()
        while ready := sorter.get_ready():  # of several that could be next, the one that the file has first
            order += sorted(ready, key=list(stages).index)
            sorter.done(*ready)
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        problems.append(f"stages wait for each other in a circle: {circle}")
    if problems:
        raise RecipeError(problems, str(asked.path))
    made = {name: ResolvedStage(**{**vars(stages[name]), "waits_for": tuple(sorted(waits[name]))}) for name in order}
    return ResolvedPipeline(asked, made)


def _alone(name: str, stage: AnyStage, asked: AskedPipeline, problems: list[str]) -> ResolvedStage:
    home = asked.home
    named = models_named(stage)
    named = {key: _deploying(value, asked) if key == "against" else value for key, value in named.items()}
    uses = {key: other for key, other in named.items() if other in asked.stages and other != name}
    problems += _unfit(name, stage, uses, asked)
    problems += [f"stages.{name}.{key}: a stage can't use itself" for key, other in named.items() if other == name]
    reads = [home / one for one in stage.inputs]
    outputs = [home / stage.to if isinstance(stage, DeployStage) else asked.folder / name]
    code: list[Path] = []
    recipe, recipe_file = None, None
    if isinstance(stage, RunStage):
        outputs = [home / one for one in stage.outputs]
        words = command_words(stage.run)
        code = _entries(words, home)
        reads += [home / word for word in words if _may_be_path(word) and (home / word) not in (*outputs, *code)]
        reads = [one for place, one in enumerate(reads) if place < len(stage.inputs) or _is_there(one) or _is_made(one, asked)]
    elif isinstance(stage, TrainStage | TuneStage):
        given = stage.train if isinstance(stage, TrainStage) else stage.tune
        key = "train" if isinstance(stage, TrainStage) else "tune"
        if not (isinstance(stage, TrainStage) and isinstance(given, str) and given in asked.stages):
            recipe, recipe_file = _recipe(f"stages.{name}.{key}", given, home, problems, asked)
            folder = home if recipe_file is None else recipe_file.parent
            if recipe_file is not None and recipe_file.suffix == ".py":
                code.append(recipe_file)
            found = _with_changes(recipe or {}, stage.set)
            reads += [path for path in _paths_in(found, folder) if _is_there(path) or _is_made(path, asked)]
            code += _code_named(found, folder)
            problems += _missing_data(f"stages.{name}", found, folder, asked)
    elif isinstance(stage, DataStage):
        reads.append(home / (stage.data if isinstance(stage.data, str) else stage.data.table))
    elif isinstance(stage, EvaluateStage | ShrinkStage | GateStage) and stage.data is not None:
        reads.append(home / stage.data)
    reads += [home / value for key, value in named.items() if key not in uses and key != "train"]
    return ResolvedStage(
        name, stage_kind(stage), stage, tuple(map(_normal, outputs)), tuple(dict.fromkeys(map(_normal, reads))),
        tuple(dict.fromkeys(map(_normal, code))), uses, recipe, recipe_file,
    )  # fmt: skip


_FIT = {
    "train": ("tune",),
    "evaluate": ("train",),
    "export": ("train",),
    "shrink": ("train", "export", "shrink"),
    "gate": ("train", "export", "shrink"),
    "against": ("train", "export", "shrink", "deploy"),
    "deploy": ("export", "shrink"),
}


def _unfit(name: str, stage: AnyStage, uses: Mapping[str, str], asked: AskedPipeline) -> Iterator[str]:
    for key, other in uses.items():
        kind = stage_kind(asked.stages[other])
        if kind not in _FIT[key]:
            yield f"stages.{name}.{key}: {other} is a stage of kind {kind}; here it takes one of kind {' or '.join(_FIT[key])}"


def _deploying(value: str, asked: AskedPipeline) -> str:
    """The stage that deploys to this folder, if there is one."""
    place = _normal(asked.home / value)
    for name, stage in asked.stages.items():
        if isinstance(stage, DeployStage) and place in ((to := _normal(asked.home / stage.to)), to / CURRENT):
            return name
    return value


def command_words(run: str | Sequence[str]) -> list[str]:
    if not isinstance(run, str):
        return list(run)
    try:
        return shlex.split(run)
    except ValueError:  # an open quote: the start of the command reports it
        return run.split()


def _normal(path: Path) -> Path:
    """Without `..`, and without following links: `a/../b` is `b`."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part != "..":
            parts.append(part)
    return Path(*parts)


def _may_be_path(word: str) -> bool:
    return bool(word) and not word.startswith("-") and "\n" not in word and "\0" not in word and len(word) < _LONGEST_PATH


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no name that a file can have
        return False


def _is_file(path: Path) -> bool:
    return _is_there(path) and path.is_file()


def _is_made(path: Path, asked: AskedPipeline) -> bool:
    """Whether a stage writes it."""
    return any(_overlap(_normal(path), _normal(output)) for output in _all_outputs(asked))


def _all_outputs(asked: AskedPipeline) -> Iterator[Path]:
    for name, stage in asked.stages.items():
        if isinstance(stage, RunStage):
            yield from (asked.home / one for one in stage.outputs)
        else:
            yield asked.home / stage.to if isinstance(stage, DeployStage) else asked.folder / name


def _entries(words: Sequence[str], home: Path) -> list[Path]:
    """The Python files that a command starts."""
    found = [home / word for word in words if word.endswith(".py") and _is_file(home / word)]
    if "-m" in words[:-1]:
        module = home.joinpath(*words[words.index("-m") + 1].split("."))
        found += [path for path in (module.with_suffix(".py"), module / "__main__.py") if _is_file(path)]
    return found


def _recipe(
    where: str, given: str | Mapping[str, Any], home: Path, problems: list[str], asked: AskedPipeline
) -> tuple[Mapping[str, Any] | None, Path | None]:
    """Its keys, unless Python defines them, and its file, unless it is in the pipeline file."""
    if not isinstance(given, str):
        return given, None
    path = home / given
    if not _is_file(path):
        near = did_you_mean(given, [*asked.stages, *(one.name for one in home.glob("*.yaml"))])
        problems.append(f"{where}: {given} is neither a stage nor a recipe file in {home}; {near}")
        return None, None
    if path.suffix == ".py":
        return None, path
    try:
        written, wrong = asked.read(path, path.read_text(encoding="utf-8-sig"))
    except (UsageError, OSError, UnicodeDecodeError) as error:
        problems.append(f"{where}: {given} is not YAML: {error}")
        return None, None
    problems += [f"{where}: {given}: {one}" for one in wrong]
    if not isinstance(written, dict):
        problems.append(f"{where}: {given} must have keys and values (data:, model:, ...)")
        return None, None
    return written, path


def _with_changes(recipe: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`data.table: x` in the place of what the recipe has there: a file that is not read any more does not count."""
    found = dict(recipe)
    for name, value in changes.items():
        place = found
        *parents, last = str(name).split(".")
        for parent in parents:
            inner = place.get(parent)
            place[parent] = dict(inner) if isinstance(inner, Mapping) else {} if inner is None else {str(inner): None}
            place = place[parent]
        place[last] = value
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _paths_in(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Every text of a recipe that could be a path."""
    return [folder / text for text in _texts(found) if _may_be_path(text) and "://" not in text]


def _code_named(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Files of `module:Name` that are beside the recipe."""
    modules = [match[1] for text in _texts(found) if (match := _IMPORT_PATH.fullmatch(text)) is not None]
    places: list[Path] = []
    for module in modules:
        at = folder / module if module.endswith(".py") else folder.joinpath(*module.split("."))
        places += [one for one in (at, at.with_suffix(".py"), at / "__init__.py") if one.suffix == ".py" and _is_file(one)]
    return places


def _missing_data(where: str, recipe: Mapping[str, Any], folder: Path, asked: AskedPipeline) -> Iterator[str]:
    data = recipe.get("data")
    for key, value in data.items() if isinstance(data, Mapping) else ():
        for text in _texts(value) if key in _NAMES_FILES and isinstance(value, str | list) else ():
            if "://" not in text and _may_be_path(text) and not _exists(folder / text) and not _is_made(folder / text, asked):
                yield f"{where}: data.{key}: there is no {text} in {folder}, and no stage writes it"


def _exists(path: Path) -> bool:
    if _GLOB.search(str(path)):
        return any(True for _ in expanded(path))
    return _is_there(path)


def expanded(path: Path) -> Iterator[Path]:
    """The files and folders that a path or a pattern means."""
    if not _GLOB.search(str(path)) or _is_there(path):
        yield path
        return
    fixed = [part for part in path.parts]
    first = next(place for place, part in enumerate(fixed) if _GLOB.search(part))
    yield from sorted(Path(*fixed[:first]).glob(str(Path(*fixed[first:]))))


def _overlap(one: Path, other: Path) -> bool:
    """Whether one is the other, inside of it, or a pattern that could match it."""
    if one.is_relative_to(other) or other.is_relative_to(one):
        return True
    return bool(_GLOB.search(str(one))) and fnmatch.fnmatchcase(str(other), str(one))


def _waits_for(stage: ResolvedStage, stages: Mapping[str, ResolvedStage]) -> set[str]:
    others = {name: one for name, one in stages.items() if name != stage.name}
    waits = {name for name in stage.asked.after if name in others}
    for key, other in stage.uses.items():
        if key != "against" or not isinstance(others[other].asked, DeployStage):  # that is what was deployed before
            waits.add(other)
    for name, one in others.items():
        if any(_overlap(read, output) for read in (*stage.reads, *stage.code) for output in one.outputs):
            waits.add(name)
        if isinstance(one.asked, DataStage) and not isinstance(stage.asked, DataStage) and set(one.reads) & set(stage.reads):
            waits.add(name)  # whoever reads a table waits until it is as expected
        if isinstance(one.asked, GateStage) and isinstance(stage.asked, DeployStage) and one.asked.gate == stage.asked.deploy:
            waits.add(name)
    if isinstance(stage.asked, TrainStage | TuneStage):
        given = stage.asked.train if isinstance(stage.asked, TrainStage) else stage.asked.tune
        waits |= {given} & set(others) if isinstance(given, str) else set()
    return waits


def _wrong_outputs(stages: Mapping[str, ResolvedStage], asked: AskedPipeline) -> Iterator[str]:
    taken: list[tuple[Path, str]] = []
    state = _normal(asked.folder / STATE)
    for name, stage in stages.items():
        for output in stage.outputs:
            other = next((who for path, who in taken if _overlap(path, output)), None)
            shown = output.relative_to(asked.home) if output.is_relative_to(asked.home) else output
            if other == name:
                yield f"stages.{name}.outputs: {shown} is listed twice, or lies inside another output"
            elif other is not None:
                yield f"stages.{name}: writes {shown}, as {other} does: a file belongs to one stage"
            taken.append((output, name))
            if asked.path.is_relative_to(output):
                yield f"stages.{name}.outputs: {shown} holds the pipeline file; name the files that the stage writes"
            elif _overlap(output, state) and isinstance(stage.asked, RunStage):
                yield f"stages.{name}.outputs: {shown} would hold the state of the pipeline; choose another place"
            elif any(_overlap(read, output) for read in (*stage.reads, *stage.code)):
                yield f"stages.{name}.outputs: {shown} is also read by {name}: a stage can't change what it reads"
            elif any(code.is_relative_to(output) for one in stages.values() for code in one.code):
                yield f"stages.{name}.outputs: {shown} holds code of the pipeline; choose another place"


def _missing(stages: Mapping[str, ResolvedStage], asked: AskedPipeline) -> Iterator[str]:
    for name, stage in stages.items():
        for read in stage.reads:
            if not _exists(read) and not _is_made(read, asked):
                shown = read.relative_to(asked.home) if read.is_relative_to(asked.home) else read
                near = did_you_mean(str(shown), [*_near(read, asked.home), *asked.stages])
                yield f"stages.{name}: reads {shown}, which does not exist and which no stage writes; {near}"


def _near(path: Path, home: Path) -> list[str]:
    try:
        return [str(one.relative_to(home)) for one in list(path.parent.iterdir())[:200] if one.is_relative_to(home)]
    except OSError:
        return []
