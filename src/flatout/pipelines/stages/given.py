"""What the command of a stage gets from earlier stages and earlier calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flatout.base.files import read_json, write_json
from flatout.pipelines.asked.stage_kinds import DataStage, GateStage
from flatout.pipelines.stages.assessing import Assessed, Assessor
from flatout.pipelines.stages.commands import GivenToStage
from flatout.pipelines.stages.resolved import ResolvedStage


def given_to(stage: ResolvedStage, assessed: Assessed, found: Assessor, say: Callable[[str], None]) -> GivenToStage:
    pipeline = found.pipeline
    models = {key: pipeline.stages[other].product for key, other in stage.uses.items() if key != "against"}
    if (old := assessed.old) is None:
        if "against" in stage.uses:
            models["against"] = pipeline.stages[stage.uses["against"]].product
    elif old.path is not None:
        models["against"] = old.path
    elif old.identity:
        say(f"{stage.name}: the package {old.identity} that it was compared with is gone: judged by its floor alone")
    else:
        say(f"{stage.name}: there is no old model yet: judged by its floor alone")
    return GivenToStage(models, _look(stage, assessed, found), _last_version(stage, found))


def _look(stage: ResolvedStage, assessed: Assessed, found: Assessor) -> int:
    """How often these rows were used by now: each model that was judged by them is a look."""
    if not isinstance(stage.asked, GateStage):
        return 1
    rows = assessed.key.parts["inputs"]
    keys = [one.key for one in found.records.past(stage.name) if one.parts.get("inputs") == rows]
    return list(dict.fromkeys([*keys, assessed.key.digest])).index(assessed.key.digest) + 1


def _last_version(stage: ResolvedStage, found: Assessor) -> dict[str, Any]:
    """The columns of the version of the data that passed last."""
    if not isinstance(stage.asked, DataStage) or stage.name in found.asked.accept:
        return {}
    try:
        read = read_json(found.records.folder / "versions" / f"{stage.name}.json")
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def keep_version(stage: ResolvedStage, found: Assessor) -> None:
    """This version of the data passed: later ones are compared with it."""
    folder = found.records.folder / "versions"
    folder.mkdir(exist_ok=True)
    write_json(folder / f"{stage.name}.json", read_json(stage.product / "columns.json"))
