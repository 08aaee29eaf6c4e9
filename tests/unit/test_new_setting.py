"""Adding a setting takes one field of Settings and one file, nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flatout
from flatout.plan.knobs.all import KNOBS
from flatout.testing.knobs import KnobConformance

SOURCE = Path(flatout.__file__).parent
TOUCHED = "engine/settings.py"
LINE = '    denormals: Literal["kept", "flushed"] = "kept"  # numbers too small for a normal float\n'
BELOW = '    residual: Literal["float32", "autocast"] = "float32"\n'
FILE = '''
"""Numbers too small for a normal float: as they are, or 0, which some CPUs compute with faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.engine.settings import Settings
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation

name = "denormals"
off = "kept"
lossy = True
risky = False
meets: tuple[str, ...] = ()


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    yield Choice(name, off, "exact by default")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    if now.denormals == off:
        yield Candidate("flushed", "zeros are computed faster", 1.05)


def _conflicts(now: Settings) -> Iterator[str]:
    if now.denormals == "flushed" and now.precision != "fp32":
        yield f"denormals=flushed needs precision=fp32; it is {now.precision}: --off denormals"


rules = SettingRules(_conflicts)
'''
RECIPE = "{data: digits, model: mlp, batch: 32, lr: 1e-3, budget: 3 steps, settings: {device: cpu, denormals: %s}}"


def flatout_with(folder: Path) -> None:
    """A linked copy of flatout with the new file and field."""
    package = folder / "flatout"
    (package / "plan" / "knobs").mkdir(parents=True)
    (package / "engine").mkdir()
    (package / "plan" / "knobs" / "denormals.py").write_text(FILE)
    before = (SOURCE / TOUCHED).read_text()
    assert before.count(BELOW) == 1
    (package / TOUCHED).write_text(before.replace(BELOW, BELOW + LINE))
    for part in ("plan/knobs", "plan", "engine", "."):
        for entry in (SOURCE / part).iterdir():
            if entry.name != "__pycache__" and not (package / part / entry.name).exists():
                (package / part / entry.name).symlink_to(entry)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One process for all checks, as importing torch takes most of the time."""
    folder = tmp_path_factory.mktemp("new_setting")
    flatout_with(folder / "source")
    (folder / "plain.yaml").write_text(RECIPE.replace(", denormals: %s", ""))
    (folder / "pinned.yaml").write_text(RECIPE % "flushed")
    environment = {**os.environ, "PYTHONPATH": str(folder / "source"), "FLATOUT_CACHE": str(folder / "cache")}
    command = [sys.executable, "-B", str(Path(__file__).parent / "one_more_setting.py")]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def row(answer: Any) -> Any:
    return next(row for row in json.loads(answer["out"])["settings"] if row["name"] == "denormals")


def test_explain_shows_the_new_setting_with_its_reason(told: Any) -> None:
    found = row(told["explain"])
    assert (found["value"], found["why"], found["source"]) == ("kept", "exact by default", "default")


def test_the_new_setting_can_be_pinned_and_switched_off(told: Any) -> None:
    assert "denormals flushed pinned by you" in " ".join(told["set"]["out"].split())
    assert (row(told["off"])["value"], row(told["off"])["source"]) == ("kept", "pinned")


def test_mistakes_are_reported(told: Any) -> None:
    assert "settings.denormals: expected one of kept, flushed, got 'fushed'" in told["bad value"]["err"]
    assert "settings.denormal: no such setting; did you mean 'denormals'?" in told["bad name"]["err"]
    assert told["bad value"]["code"] == told["bad name"]["code"] == 2


def test_its_conflict_is_reported(told: Any) -> None:
    assert "denormals=flushed needs precision=fp32; it is bf16: --off denormals" in told["conflict"]["err"]
    assert told["conflict"]["code"] == 2


def test_a_recipe_can_pin_it(told: Any) -> None:
    assert told["pins"] == {"device": "cpu", "denormals": "flushed"}
    assert told["run"]["code"] == 0, told["run"]["err"]
    assert told["run has"] == told["stored"] == "flushed"


def test_an_older_plan_gets_its_default(told: Any) -> None:
    assert told["older plan has"] == told["default"] == "kept"


def test_the_search_can_change_it(told: Any) -> None:
    assert told["passed"] == sorted(name for name in dir(KnobConformance) if name.startswith("test_"))
    assert "denormals" not in {knob.name for knob in KNOBS}, "the flatout of these tests is as it was"
