"""Why a command starts a new run and does not resume a similar unfinished one: recipe, code or data differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError
from flatout.base.source import lasting_text
from flatout.recipe.build import Identity
from flatout.recipe.schema import Recipe
from flatout.runs.record import Origin
from flatout.store.run_folder import ENDED, RunFolder, all_runs

_IN_WORDS = {
    "code": "the code that the recipe names was changed",
    "data": "the content of the data was changed",
}


@dataclass(frozen=True)
class Left:
    """An unfinished run that is not resumed, and what differs: `recipe`, `code`, `data`."""

    run: str
    differs: tuple[str, ...]
    why: str

    def words(self) -> str:
        return f"starting a new run; the unfinished run {self.run} is not resumed: {self.why}"

    def fields(self) -> dict[str, Any]:
        return asdict(self)


def left_unfinished(runs: Path, recipe: Recipe, own: Identity) -> Left | None:
    """The newest unfinished run of an equal recipe, or of the same file with the same overrides."""
    for folder in reversed(list(all_runs(runs))):
        try:
            if folder.status not in (*ENDED, "running") and (found := _compared(folder, recipe, own)) is not None:
                return found
        except StoreError:
            continue  # `flatout runs` shows what is wrong with it
    return None


def _compared(folder: RunFolder, recipe: Recipe, own: Identity) -> Left | None:
    parts = folder.about.get("parts")
    then, now = _plain(folder.read("recipe.json")), _plain(recipe.written())
    if not isinstance(parts, Mapping):  # of an older version, which did not store them
        if then != now:
            return None
        return Left(folder.name, ("code", "data"), "its code, its data or its version of flatout differs")
    differs = tuple(name for name, digest in own.parts.items() if parts.get(name) != digest)
    if "recipe" in differs and not _is_same_command(folder, recipe):
        return None
    keys = sorted(key for key in {*then, *now} if then.get(key) != now.get(key))
    recipe_words = f"the recipe differs in {', '.join(keys)}" if keys else "the recipe differs"
    why = ", and ".join({**_IN_WORDS, "recipe": recipe_words}[name] for name in differs)
    return Left(folder.name, differs, f"{why}. Undo this to resume it")


def _is_same_command(folder: RunFolder, recipe: Recipe) -> bool:
    origin = folder.parsed("origin.json", Origin.from_dict)
    overrides, pins = recipe.given
    if recipe.source is None or origin.file != str(recipe.source.resolve()):
        return False
    return list(origin.overrides) == list(overrides) and _plain(origin.pins) == _plain(pins)


def _plain(written: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(written, default=lasting_text))
    return found
