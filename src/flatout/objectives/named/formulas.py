"""Metrics from what was gathered. Definitions are those of scikit-learn; classes that never occur are left out of averages."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from flatout.objectives.areas import areas_under_curve, average_precisions
from flatout.objectives.metrics import accumulator, r_squared
from flatout.objectives.named.gathering import Tensors

Scores = dict[str, float]  # by what follows the metric's name: "" for the metric itself, ".cat" for its value of one class
Names = Sequence[str] | None


def fraction(part: Tensor, whole: Tensor) -> Tensor:
    """Of counts. 0 where there is nothing to divide."""
    return part.to(accumulator(part.device)) / whole.clamp_min(1)


def quotient(part: Tensor, whole: Tensor) -> float:
    """Of counts. NaN if no row counts."""
    return (part.to(accumulator(part.device)) / whole).item()


def of_each_class(which: str, counts: Tensors) -> Tensor:
    hits, guessed, true = counts["hits"], counts["guessed"], counts["true"]
    if which == "precision":
        return fraction(hits, guessed)
    return fraction(hits, true) if which == "recall" else fraction(2 * hits, guessed + true)


def averaged(which: str, average: str, counts: Tensors) -> float:
    if average == "positive":
        return of_each_class(which, counts)[1].item()
    if average == "micro":
        return of_each_class(which, {name: counts[name].sum()[None] for name in ("hits", "guessed", "true")}).item()
    each, true = of_each_class(which, counts), counts["true"]
    occurs = (true + counts["guessed"]) > 0
    weight = true.to(each.dtype) if average == "weighted" else occurs.to(each.dtype)
    return ((each * weight).sum() / weight.sum()).item()


def per_class(which: str, counts: Tensors, names: Names) -> Scores:
    return {
        f".{name}": value
        for name, value in zip(called(names, len(counts["true"])), of_each_class(which, counts).tolist(), strict=True)
    }


def called(names: Names, count: int) -> list[str]:
    return list(names) if names is not None and len(names) == count else [str(place) for place in range(count)]


def accuracy(counts: Tensors) -> float:
    if "same" in counts:  # of labels
        return quotient(counts["same"].sum(), counts["rows"].sum())
    return quotient(counts["hits"].sum(), counts["true"].sum())


def always_the_majority(counts: Tensors) -> dict[str, Tensor]:
    """The counts of a model that always says the most frequent class; of labels, the more frequent answer for each."""
    true = counts["true"]
    if "rows" in counts:
        rows = counts["rows"]
        yes = (2 * true > rows).long()
        return {"hits": true * yes, "guessed": rows * yes, "true": true, "same": torch.maximum(true, rows - true), "rows": rows}
    only = torch.zeros_like(true)
    only[true.argmax()] = 1
    return {"hits": true * only, "guessed": true.sum() * only, "true": true}


def matthews(counts: Tensors) -> float:
    hits, guessed, true = (counts[name].to(accumulator(counts["true"].device)) for name in ("hits", "guessed", "true"))
    rows = true.sum()
    shared = hits.sum() * rows - (guessed * true).sum()
    spread = (rows.square() - guessed.square().sum()) * (rows.square() - true.square().sum())
    if not rows:
        return math.nan
    return (shared / spread.sqrt()).item() if spread > 0 else 0.0


def confusion(cells: Tensor, names: Names) -> Scores:
    size = math.isqrt(len(cells))
    rows, each = cells.view(size, size).tolist(), called(names, size)
    return {f".{true}.{guess}": float(rows[i][j]) for i, true in enumerate(each) for j, guess in enumerate(each)}


def label_entropy(found: Tensors) -> float:
    """The log loss of a model that always says how frequent each class is."""
    true = found["true"].to(accumulator(found["true"].device))
    if "rows" in found:  # yes or no, of one or several labels
        share = true / found["rows"]
        return (-(torch.xlogy(share, share) + torch.xlogy(1 - share, 1 - share))).mean().item()
    share = true / true.sum()
    return -torch.xlogy(share, share).sum().item()


def calibration_error(found: Tensors) -> float:
    return ((found["right"] - found["said"]).abs().sum() / found["rows"].sum()).item()


def over_classes(found: Tensors, formula: str) -> Tensor:
    """One value for each column of scores: each class against all others."""
    scores, labels = found["scores"], found["labels"]
    if "valid" in found and not bool(found["valid"].all()):
        scores, labels = scores[found["valid"]], labels[found["valid"]]
    of_two = scores.shape[1] == 1 and labels.dim() == 1  # log odds of the second class: those of the first are their negative
    if of_two:
        scores, labels = (scores if formula == "auroc" else torch.cat([-scores, scores], 1)), labels[:, None]
        labels = labels if formula == "auroc" else torch.cat([1 - labels, labels], 1)
    return (areas_under_curve if formula == "auroc" else average_precisions)(scores, labels)


def share_of_positives(found: Tensors) -> float:
    labels = found["labels"]
    if labels.dim() > 1:
        return labels.double().mean(0).mean().item()
    counts = torch.bincount(labels[found["valid"]] if "valid" in found else labels)
    return quotient(counts.sum(), counts.sum() * (counts > 0).sum())


def of_values(which: str, found: Tensors) -> float:
    count = found["count"].sum()
    if which == "r2":
        return r_squared(found["squared"].sum(0), _deviations(found)).item()
    part = {"mae": "absolute", "mse": "squared", "rmse": "squared", "mape": "share"}[which]
    mean = found[part].sum().item() / (count.item() * found[part].shape[1])
    return math.sqrt(mean) if which == "rmse" else mean


def of_the_mean(which: str, found: Tensors) -> float | None:
    """The metric of a model that always says the mean of y; None if the values of y were too many to keep."""
    squares = _deviations(found)
    if which == "r2":
        return r_squared(squares, squares).item()
    cells = found["count"].sum().item() * len(squares)
    if which in ("mse", "rmse"):
        mean = squares.sum().item() / cells
        return math.sqrt(mean) if which == "rmse" else mean
    if "target" not in found:
        return None
    target = found["target"]
    apart = (target - target.mean(0)).abs()
    share = apart / target.abs().clamp_min(torch.finfo(target.dtype).eps)
    return (apart if which == "mae" else share).mean().item()


def _deviations(found: Tensors) -> Tensor:
    """Sums of squared deviations from the mean of all batches, per column."""
    count, mean = found["count"], found["mean"]
    whole = (mean * count).sum(0) / count.sum()
    return (found["deviation"] + count * (mean - whole).square()).sum(0)
