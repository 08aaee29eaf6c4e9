"""What a model is judged by: its run's own metric, row by row, and the margin that may be given up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flatout.base.errors import UsageError
from flatout.measure.row_proof import RowCheck, check_estimate, check_means, check_shares
from flatout.measure.stats import Values

Unit = Literal["points", "loss", "percent"]
Costs = Mapping[str, Values]
WRONG, SCORE, TRUTH, SQUARED, LOSS = "wrong", "score", "truth", "squared", "loss"  # names of columns of costs


@dataclass(frozen=True)
class Metric:
    """`margin` is in its unit: points of accuracy or AUC, nats of loss, percent of an error."""

    name: str
    unit: Unit
    margin: float

    def of(self, costs: Costs) -> float:
        """Of a model, in the units that people know."""
        if self.name == "auc":
            return _area(*_placements(costs[SCORE], costs[TRUTH]))
        if self.name == "rmse":
            return float(np.sqrt(costs[SQUARED].mean()))
        return float(costs[LOSS].mean()) if self.unit == "loss" else 1.0 - float(costs[WRONG].mean())

    def lost(self, source: Costs, candidate: Costs) -> float:
        """What the candidate gives up, as a share of points, as loss, or as a share of the error."""
        before, after = self.of(source), self.of(candidate)
        if self.unit == "percent":
            return after / before - 1 if before else after
        return after - before if self.unit == "loss" else before - after

    @property
    def allowed(self) -> float:
        """The margin in the unit of `lost`."""
        return self.margin if self.unit == "loss" else self.margin / 100

    def check(self, source: Costs, candidate: Costs, look: int, among: int = 1) -> RowCheck:
        """Is the candidate as good, by the margin? `among`: of so many comparisons at once."""
        if self.name == "auc":
            return self._check_area(source, candidate, look, among)
        if self.unit == "percent":
            mean = float(source[SQUARED].mean())
            allowed = ((1 + self.margin / 100) ** 2 - 1) * mean
            differences = candidate[SQUARED] - source[SQUARED]
            return check_means(differences, allowed, look, lambda lost: _percent_of_root(lost, mean), among)
        if self.unit == "loss":
            return check_means(candidate[LOSS] - source[LOSS], self.margin, look, self.show, among)
        before, after = source[WRONG], candidate[WRONG]
        if set(np.unique(before)) | set(np.unique(after)) <= {0.0, 1.0}:
            worse, better = int((after > before).sum()), int((after < before).sum())
            return check_shares(worse, better, len(before), self.margin / 100, look, self.show, among)
        return check_means(after - before, self.margin / 100, look, self.show, among)

    def _check_area(self, source: Costs, candidate: Costs, look: int, among: int) -> RowCheck:
        """By DeLong's method: the AUC is a mean over positives and negatives, so its paired difference has a standard error."""
        truth = source[TRUTH]
        yes, no = (
            after - before
            for before, after in zip(_placements(source[SCORE], truth), _placements(candidate[SCORE], truth), strict=True)
        )
        error = float(np.sqrt(yes.var(ddof=1) / len(yes) + no.var(ddof=1) / len(no)))
        return check_estimate(-float(yes.mean()), error, len(truth), self.margin / 100, look, self.show, among)

    def show(self, lost: float) -> str:
        """An amount of this metric in words."""
        return f"{lost:.2g}" if self.unit == "loss" else f"{100 * lost:.2g} points"

    def show_value(self, value: float) -> str:
        return f"{value:.4g}"

    @property
    def words(self) -> str:
        shown = {"points": f"{self.margin:g} points", "loss": f"+{self.margin:g}", "percent": f"{self.margin:g}%"}
        return f"{self.name}, at most {shown[self.unit]} worse"


def metrics_of(objective: str, margin: float | None, asked_by: str = "shrink") -> tuple[Metric, ...]:
    """All must hold. UsageError for an objective whose answers can't be judged row by row."""
    made: dict[str, tuple[tuple[str, Unit], ...]] = {
        "classify": (("accuracy", "points"),),
        "binary": (("accuracy", "points"), ("auc", "points")),
        "multilabel": (("accuracy", "points"),),
        "regress": (("rmse", "percent"),),
        "next_token": (("loss", "loss"),),
    }
    if objective not in made:
        raise UsageError(
            f"the objective {objective} is a function of your own: its answers can't be judged row by row. "
            f"{asked_by} knows {', '.join(made)}"
        )
    usual: dict[Unit, float] = {"points": 0.5, "loss": 0.01, "percent": 0.5}
    return tuple(Metric(name, unit, usual[unit] if margin is None else margin) for name, unit in made[objective])


def _placements(scores: Values, truth: Values) -> tuple[Values, Values]:
    """For each positive the share of negatives below it, for each negative the share of positives above it; ties are halves."""
    yes, no = scores[truth > 0], scores[truth <= 0]
    return _share_below(yes, no), 1.0 - _share_below(no, yes)


def _share_below(values: Values, others: Values) -> Values:
    ordered = np.sort(others)
    both = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    return both / (2.0 * max(len(others), 1))  # type: ignore[no-any-return]


def _area(yes: Values, no: Values) -> float:
    return float(yes.mean()) if len(yes) and len(no) else float("nan")


def _percent_of_root(lost: float, mean: float) -> str:
    """A change of the mean squared error as one of its root."""
    return f"{100 * (np.sqrt(max(1 + lost / mean, 0.0)) - 1):.2g}%" if mean > 0 else f"{lost:.2g}"
