"""The command that makes a stage's result: that of `run`, or the flatout command of the same name."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.base.files import write_bytes
from flatout.pipelines.asked.keys_of import written_keys
from flatout.pipelines.asked.stage_kinds import (
    DataStage,
    EvaluateStage,
    ExportStage,
    GateStage,
    RunStage,
    ShrinkStage,
    TrainStage,
    TuneStage,
)
from flatout.pipelines.stages.resolved import ResolvedPipeline, ResolvedStage, command_words

FLATOUT = (sys.executable, "-m", "flatout")
_PYTHON = ("python", "python3")


@dataclass(frozen=True)
class StageCommand:
    """`words` as they are started, `shown` as people read them. `makes`: where the result then is; None: scripts write their
    outputs themselves, and runs are looked for. `printed`: the file that what it prints is kept in, as the result."""

    words: tuple[str, ...]
    shown: str
    makes: Path | None = None
    printed: Path | None = None
    codes: tuple[int, ...] = (0,)
    saves_when_asked: bool = False


@dataclass(frozen=True)
class GivenToStage:
    """What a stage gets: the paths of the models that it uses, the n-th look at its rows, the last version of its table."""

    models: Mapping[str, Path]
    look: int = 1
    reference: Mapping[str, Any] = field(default_factory=dict)


def command_of(stage: ResolvedStage, pipeline: ResolvedPipeline, work: Path, given: GivenToStage) -> StageCommand:
    asked = stage.asked
    shown = pipeline.shown

    def model(key: str) -> str:
        return shown(given.models[key]) if key in given.models else str(getattr(asked, key))

    if isinstance(asked, RunStage):
        words = command_words(asked.run)
        started = [sys.executable, *words[1:]] if words[0] in _PYTHON else words
        return StageCommand(tuple(started), " ".join(words))
    if isinstance(asked, TrainStage | TuneStage):
        recipe = _recipe_file(stage, pipeline, work, given)
        changed = [f"{key}={as_yaml(value)}" for key, value in asked.set.items()]
        if isinstance(asked, TrainStage):
            words = ["run", shown(recipe), *changed, "--planning", asked.planning, "--runs", shown(work / "runs")]
        else:
            words = ["tune", shown(recipe), *changed]
            if asked.search:
                write_bytes(work / "space.yaml", as_yaml(asked.search).encode())
                words += ["--space", shown(work / "space.yaml")]
            words += _options(budget=asked.budget, trials=asked.trials, metric=asked.metric)
            words += ["--runs", shown(work / "runs")]
        return _flatout([*words, "--quiet", "--json"], saves_when_asked=True)
    if isinstance(asked, EvaluateStage):
        words = ["evaluate", model("evaluate"), *_options(data=asked.data, part=asked.part)]
        words += ["--metrics", f"[{', '.join(asked.metrics)}]"] if asked.metrics else []
        return _flatout([*words, "--json"], makes=work / "made", printed=work / "made" / "metrics.json")
    if isinstance(asked, ExportStage):
        return _flatout(["export", model("export"), "--out", shown(work / "made")], makes=work / "made")
    if isinstance(asked, ShrinkStage):
        words = ["shrink", model("shrink"), "--out", shown(work / "made"), "--within", asked.within]
        words += _options(goal=asked.goal, margin=asked.margin, batch=asked.batch, data=asked.data, training=asked.training)
        return _flatout([*words, "--quiet"], makes=work / "made")
    if isinstance(asked, GateStage):
        made = work / "made"
        words = ["gate", model("gate"), "--data", asked.data]
        words += _options(against=model("against") if "against" in given.models or _is_path(stage) else None)
        words += _options(margin=asked.margin, slice=",".join(asked.slice) or None, slower=asked.slower, larger=asked.larger)
        words += [word for name, value in asked.floor.items() for word in ("--floor", f"{name}={value:g}")]
        words += _options(batch=asked.batch, look=given.look, markdown=shown(made / "gate.md"), html=shown(made / "gate.html"))
        return _flatout([*words, "--json", "--quiet"], makes=made, printed=made / "gate.json", codes=(0, 1, 3))
    assert isinstance(asked, DataStage), stage.kind
    table = asked.data if isinstance(asked.data, str) else asked.data.table
    made = work / "made"
    spec = {
        "table": table, "delimiter": None if isinstance(asked.data, str) else asked.data.delimiter, "rows": asked.rows,
        "expect": {name: written_keys(rule) for name, rule in asked.expect.items()}, "drift": asked.drift,
        "reference": dict(given.reference), "out": str(made / "columns.json"),
    }  # fmt: skip
    write_bytes(work / "expect.json", json.dumps(spec).encode())
    words = [sys.executable, "-m", "flatout.cli.expectations_worker", shown(work / "expect.json")]
    return StageCommand(tuple(words), f"expectations on {table}", makes=made)


def made_run(work: Path) -> Path | None:
    """The finished run or study in the work folder of a stage; None: there is none yet."""
    for folder in sorted((work / "runs").glob("*/")):
        try:
            result = json.loads((folder / "result.json").read_bytes())
        except (OSError, ValueError):
            continue
        is_study = (folder / "study.json").exists()
        if isinstance(result, dict) and (not result.get("stopped") if is_study else result.get("status") == "finished"):
            return folder
    return None


def begin_work(work: Path, key: str, keeps: bool) -> None:
    """A folder for what a stage makes. What a killed try at the same key left is kept, if its command can go on with it."""
    mark = work / "key"
    try:
        same = keeps and mark.read_text() == key
    except OSError:
        same = False
    if not same:
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(work / "made", ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    write_bytes(mark, key.encode())


def _is_path(stage: ResolvedStage) -> bool:
    return isinstance(stage.asked, GateStage) and stage.asked.against is not None and "against" not in stage.uses


def _flatout(
    words: Sequence[str], *, makes: Path | None = None, printed: Path | None = None, codes: tuple[int, ...] = (0,),
    saves_when_asked: bool = False,
) -> StageCommand:  # fmt: skip
    return StageCommand((*FLATOUT, *words), f"flatout {shlex.join(words)}", makes, printed, codes, saves_when_asked)


def _options(**given: Any) -> list[str]:
    return [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]


def _recipe_file(stage: ResolvedStage, pipeline: ResolvedPipeline, work: Path, given: GivenToStage) -> Path:
    if "train" in given.models:
        return given.models["train"] / "best.yaml"
    if stage.recipe_file is not None:
        return stage.recipe_file
    import yaml

    assert stage.recipe is not None
    path = work / f"{stage.name}.yaml"
    written = {
        key: _from_home(value, pipeline.home) if key in ("data", "init_from") else value for key, value in stage.recipe.items()
    }
    write_bytes(path, yaml.safe_dump(written, sort_keys=False, allow_unicode=True).encode())
    return path


def _from_home(value: Any, home: Path) -> Any:
    """Paths of files that exist, from the root: the recipe is written to another folder than that of the pipeline file."""
    if isinstance(value, Mapping):
        return {key: _from_home(inner, home) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_from_home(inner, home) for inner in value]
    if isinstance(value, str) and value and "\n" not in value and len(value) < 4096 and (home / value).exists():
        return str(home / value)
    return value


def as_yaml(value: Any) -> str:
    import yaml

    return yaml.safe_dump(value, default_flow_style=True, width=100_000).strip().removesuffix("\n...").strip()
