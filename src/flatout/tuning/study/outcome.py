"""What came of a study: result.json, the best recipe as a file, and the object that `fo.tune` returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.units import show_metric
from flatout.recipe.load import with_overrides
from flatout.recipe.schema import Recipe
from flatout.tuning.search.search import TrialSearch
from flatout.tuning.study.driver import Driver, TrialStanding
from flatout.tuning.study.finals import RECIPE, FinalsVerdict
from flatout.tuning.study.folder import StudyFolder
from flatout.tuning.study.ledger import StudyLedger
from flatout.tuning.study.outlook import expected_gain
from flatout.tuning.study.spending import Spending

_HOUR_S = 3600.0
_AT_MOST_ONE = ("accuracy", "auc", "auroc", "average_precision", "f1", "mcc", "precision", "r2", "recall", "token_acc", "top_k")


def outcome(
    about: Mapping[str, Any],
    search: TrialSearch,
    driver: Driver,
    verdict: FinalsVerdict,
    spending: Spending,
    ledger: StudyLedger,
    stopped: str,
) -> dict[str, Any]:
    spent, higher = spending.spent, bool(about["higher_is_better"])
    winner = driver.standings.get(verdict.winner, TrialStanding(RECIPE, {}, []))
    scores = driver.last_scores
    failed = Counter(one.failed for one in driver.standings.values() if one.failed)
    searched = {trial.number: score for trial, score in search.best(len(driver.standings))}
    return {
        "metric": about["metric"],
        "higher_is_better": higher,
        "judged_on": about["judged_on"],
        **_within_reach(verdict.to_dict(), str(about["metric"])),
        "trials": len(driver.standings),
        "finished_trials": len(searched),
        "failed": dict(failed),
        "winner": {"number": winner.number, "point": dict(winner.point), "overrides": winner.overrides},
        "score_in_search": searched.get(winner.number),
        "better_than_recipe": verdict.better(higher),
        "expected_gain_in_an_hour": expected_gain(scores, higher, _HOUR_S / max(spent.seconds, 1e-9)),
        "steps_of_a_trial": about["total_steps"],
        "seconds": spent.seconds,
        "training_s": driver.training_s,
        "parts": ledger.parts(spent.seconds),
        "layouts": [layout.to_dict() for layout in driver.layouts.values()],
        "first_rung": search.history.why,
        "stopped": stopped,
        "lost_processes": driver.lost,
        "degraded": driver.degraded,
    }


def _within_reach(verdict: dict[str, Any], metric: str) -> dict[str, Any]:
    """Intervals end at 1 for a metric that can't be more."""
    if metric.startswith(_AT_MOST_ONE):
        for name in ("again", "recipe"):
            verdict[name]["high"] = min(verdict[name]["high"], 1.0)
    return verdict


def write_best(folder: StudyFolder, recipe: Recipe, overrides: Sequence[str]) -> None:
    """A recipe file that trains the winner from anywhere; not for models and data that only Python has."""
    import yaml

    written = with_overrides(recipe, overrides).written()
    if recipe.source is None or recipe.source.suffix == ".py":
        return
    for key in ("data", "init_from"):
        if key in written:
            written[key] = _from_anywhere(written[key], recipe.folder)
    text = yaml.safe_dump(written, sort_keys=False, default_flow_style=None, width=1000)
    folder.best_path.write_text(f"# The winner of {folder.name}; its score is in `flatout runs show {folder.name}`.\n{text}")


def _from_anywhere(written: Any, folder: Path) -> Any:
    """Paths of files that exist, from the root."""
    if isinstance(written, Mapping):
        return {key: _from_anywhere(value, folder) for key, value in written.items()}
    if isinstance(written, list | tuple):
        return [_from_anywhere(value, folder) for value in written]
    if isinstance(written, str) and written and "\n" not in written and len(written) < 4096 and (folder / written).exists():
        return str((folder / written).resolve())
    return written


@dataclass(frozen=True)
class Best:
    """`score`: of the winner when it was trained again; `interval`: where one more training of it lies, 95%."""

    recipe: Recipe
    point: Mapping[str, Any]
    score: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Study:
    """A finished study. `print(study)` shows it."""

    folder: StudyFolder
    recipe: Recipe

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def result(self) -> dict[str, Any]:
        return self.folder.result or {}

    @property
    def best(self) -> Best:
        result = self.result
        again, winner = result["again"], result["winner"]
        recipe = with_overrides(self.recipe, winner["overrides"])
        return Best(recipe, winner["point"], again["mean"], (again["low"], again["high"]))

    def __str__(self) -> str:
        from flatout.base.tree import to_text
        from flatout.tuning.views.doc import study_doc

        return to_text(study_doc(self.folder))

    def __repr__(self) -> str:
        best = self.best
        return f"<Study {self.name}: {self.result['metric']} {show_metric(best.score)} with {dict(best.point)}>"
