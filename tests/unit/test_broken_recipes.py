"""300 of the recipes that benchmarks/fuzz_recipes.py breaks: each is refused in words, or understood."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flatout.base.tree import Doc
from flatout.cli.main import app

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
SEED = 7


def test_no_broken_recipe_ends_in_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from _broken_recipes import make_data
    from fuzz_recipes import answer, cases

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLATOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr("flatout.cli.main.app", app)  # which the benchmark puts another form in the place of
    # read, checked and built; what the plan makes of it takes longer, and is left to the benchmark
    plan = SimpleNamespace(settings=None)
    monkeypatch.setattr("flatout.runs.verbs.checked_plan", lambda *given, **more: (plan, None))
    monkeypatch.setattr("flatout.runs.verbs.why_not_here", lambda *given, **more: None)
    monkeypatch.setattr("flatout.runs.verbs.explain_plan", lambda *given, **more: Doc(()))
    make_data(tmp_path)
    found = [(number, answer(case, tmp_path)) for number, case in enumerate(cases(SEED, 300))]
    assert not [(number, one) for number, one in found if one["kind"] not in ("refused", "understood")]
    assert sum(one["kind"] == "refused" for _, one in found) > 150
