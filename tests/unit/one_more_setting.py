"""Started by test_new_setting in a flatout with one more setting: what each command answers, and what a run has, as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

import flatout as fo
from flatout.cli.main import main
from flatout.engine.settings import Settings
from flatout.plan import make as planned
from flatout.plan.knobs.all import KNOBS
from flatout.plan.plan import Plan
from flatout.recipe.load import read_recipe
from flatout.testing.knobs import KnobConformance, made_up


def answer(*arguments: str) -> dict[str, Any]:
    sys.argv = ["flatout", *arguments]
    printed, complained, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return {"code": code, "out": printed.getvalue(), "err": complained.getvalue()}


def conforms(knob: Any) -> list[str]:
    suite = type("Suite", (KnobConformance,), {"knob": knob})()
    passed = []
    for name in dir(suite):
        if name.startswith("test_"):
            getattr(suite, name)()
            passed.append(name)
    return passed


def report() -> dict[str, Any]:
    planned.ceilings_of = lambda device, cache, job=None: made_up()  # nothing here depends on how fast this machine is
    commands = {
        "explain": ("explain", "plain.yaml", "--json"),
        "set": ("explain", "plain.yaml", "--set", "denormals=flushed"),
        "off": ("explain", "pinned.yaml", "--off", "denormals", "--json"),
        "bad value": ("explain", "plain.yaml", "--set", "denormals=fushed"),
        "bad name": ("explain", "plain.yaml", "--set", "denormal=flushed"),
        "conflict": ("explain", "pinned.yaml", "--set", "precision=bf16"),
        "run": ("run", "pinned.yaml", "--quiet", "--planning", "off"),
    }
    found: dict[str, Any] = {name: answer(*words) for name, words in commands.items()}
    run = fo.load("last")
    before = run.plan.to_dict()
    del before["settings"]["denormals"]
    found["pins"] = dict(read_recipe(run.recipe.folder / "pinned.yaml").pins)
    found["run has"] = vars(run.plan.settings)["denormals"]
    found["older plan has"] = vars(Plan.from_dict(before).settings)["denormals"]
    found["stored"] = run.folder.read("plan.json")["settings"]["denormals"]
    found["default"] = vars(Settings())["denormals"]
    found["passed"] = [name for knob in KNOBS if knob.name == "denormals" for name in conforms(knob)]
    return found


if __name__ == "__main__":
    print(json.dumps(report()))
