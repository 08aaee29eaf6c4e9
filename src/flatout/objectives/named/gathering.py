"""What is gathered over all batches: sums, or rows where a metric needs each of them. Several metrics share one gathering.

Nothing here waits for the device. Counts are integers, so they are exact in any order; other sums are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.objectives.metrics import accumulator
from flatout.objectives.named.seen import Seen, joined_rows

Tensors = Mapping[str, Tensor]
MOST_CELLS_SIDE = 200  # classes in a confusion matrix
_FEW_CLASSES = 64
_CELLS_AT_ONCE = 64  # classes that are counted by pairs of the true and the predicted one
_MOST_KEPT_COLUMNS = 8  # of y, for a baseline that needs every value


@dataclass(frozen=True)
class Needed:
    """Gatherings with the same name are the same."""

    name: str
    measure: Callable[[Seen], dict[str, Tensor]] = field(compare=False)
    keeps_rows: bool = field(default=False, compare=False)


class Gathered:
    """The state of one gathering."""

    def __init__(self, gathering: Needed) -> None:
        self._gathering = gathering
        self._kept: dict[str, list[Tensor]] = {}

    def update(self, seen: Seen) -> None:
        for name, value in self._gathering.measure(seen).items():
            self._add(name, value)

    def tensors(self) -> dict[str, Tensor]:
        return {name: joined_rows(parts) for name, parts in self._kept.items()}

    def put_together(self, shares: Sequence[Tensors], device: torch.device) -> None:
        self._kept = {}
        for share in shares:
            for name, value in share.items():
                self._add(name, value.to(device))

    def _add(self, name: str, value: Tensor) -> None:
        parts = self._kept.setdefault(name, [])
        if self._gathering.keeps_rows or not parts:
            parts.append(value)
        else:
            parts[0] = parts[0] + value


def class_counts() -> Needed:
    return Needed("class counts", _class_counts)


def label_counts() -> Needed:
    return Needed("label counts", _label_counts)


def ranks(k: int) -> Needed:
    return Needed(f"top {k}", lambda seen: _ranks(seen, k))


def confusion_cells() -> Needed:
    return Needed("confusion", _confusion_cells)


def log_losses() -> Needed:
    return Needed("log loss", _log_losses)


def calibration_bins(bins: int) -> Needed:
    return Needed(f"{bins} bins", lambda seen: _calibration_bins(seen, bins))


def all_scores() -> Needed:
    return Needed("scores", _all_scores, keeps_rows=True)


def value_errors() -> Needed:
    return Needed("errors", _value_errors, keeps_rows=True)


def raw_rows() -> Needed:
    return Needed("raw rows", lambda seen: {"output": seen.output.clone(), "target": seen.target.clone()}, keeps_rows=True)


def _tally(places: Tensor, amounts: Tensor, size: int) -> Tensor:
    """The sum of `amounts` by place. On a CPU by torch.bincount, which would wait for any other device."""
    if places.device.type == "cpu":
        return torch.bincount(places, amounts.double(), size).to(amounts.dtype)
    return torch.zeros(size, dtype=amounts.dtype, device=amounts.device).index_add_(0, places, amounts)


def _class_counts(seen: Seen) -> dict[str, Tensor]:
    counting = seen.counting
    if seen.classes <= _CELLS_AT_ONCE:
        cells = _tally(seen.target * seen.classes + seen.predicted, counting, seen.classes**2).view(seen.classes, -1)
        return {"hits": cells.diagonal().clone(), "guessed": cells.sum(0), "true": cells.sum(1)}
    found = {"guessed": _tally(seen.predicted, counting, seen.classes), "true": _tally(seen.target, counting, seen.classes)}
    hit = (seen.predicted == seen.target).long() * counting
    return {"hits": _tally(seen.target, hit, seen.classes), **found}


def _label_counts(seen: Seen) -> dict[str, Tensor]:
    guess, target = seen.predicted, seen.target
    same = (guess == target).sum(0)
    rows = torch.full_like(same, len(target))
    return {"hits": (guess & target).sum(0), "guessed": guess.sum(0), "true": target.sum(0), "same": same, "rows": rows}


def _ranks(seen: Seen, k: int) -> dict[str, Tensor]:
    """Equal logits are ordered by class, as argmax does: a model whose logits are all the same gets no credit for ties."""
    if seen.classes <= k:
        raise UsageError(f"metrics: top_k {k} is always 1 for {seen.classes} classes: use a k below {seen.classes}")
    own = seen.output.gather(1, seen.target[:, None])
    earlier = torch.arange(seen.classes, device=own.device) < seen.target[:, None]
    ahead = ~(seen.output <= own) | ((seen.output == own) & earlier)  # NaN is ahead of everything
    within = (ahead.sum(1) < k).long() * seen.counting
    return {"within": within.sum(), "true": _tally(seen.target, seen.counting, seen.classes)}


def _confusion_cells(seen: Seen) -> dict[str, Tensor]:
    size = seen.classes
    if size > MOST_CELLS_SIDE:
        raise UsageError(f"metrics: confusion_matrix takes at most {MOST_CELLS_SIDE} classes, got {size}")
    return {"cells": _tally(seen.target * size + seen.predicted, seen.counting, size * size)}


def _log_losses(seen: Seen) -> dict[str, Tensor]:
    exact = accumulator(seen.output.device)
    if seen.task in ("yes_no", "labels"):
        losses = F.binary_cross_entropy_with_logits(seen.output, seen.target.to(seen.output.dtype), reduction="none")
        true = seen.target.sum(0, keepdim=seen.task == "yes_no")
        rows = torch.full_like(true, len(seen.target))
        return {"log_loss": losses.to(exact).sum(), "count": rows.sum(), "true": true, "rows": rows}
    if seen.classes > _FEW_CLASSES:
        losses = F.cross_entropy(seen.output, seen.target, reduction="none").to(exact)
    else:  # several times as fast on a CPU
        own = seen.output.gather(1, seen.target[:, None])[:, 0]
        losses = (seen.total.log() + (seen.highest - own)).to(exact)
    counted = losses.where(seen.counting.bool(), 0)  # also where the ignored one is not finite
    return {
        "log_loss": counted.sum(),
        "count": seen.counting.sum(),
        "true": _tally(seen.target, seen.counting, seen.classes),
    }


def _calibration_bins(seen: Seen, bins: int) -> dict[str, Tensor]:
    exact = accumulator(seen.output.device)
    if seen.task == "yes_no":
        said, right = seen.output.sigmoid(), seen.target
    else:
        said = 1 / seen.total
        right = (seen.predicted == seen.target).long()
    counting = seen.counting
    said = said.to(exact)
    place = (said * bins).long().clamp(0, bins - 1)
    return {
        "rows": _tally(place, counting, bins),
        "right": _tally(place, right * counting, bins),
        "said": _tally(place, said * counting, bins),
    }


def _all_scores(seen: Seen) -> dict[str, Tensor]:
    """Log odds: ordered as probabilities are, and different where those are rounded to 1."""
    if seen.task in ("yes_no", "labels"):
        return {
            "scores": seen.output.reshape(len(seen.output), -1).clone(),
            "labels": seen.target.reshape(len(seen.target), -1),
        }
    found = {"scores": _log_odds(seen), "labels": seen.target}
    return found if seen.valid is None else {**found, "valid": seen.valid}


def _log_odds(seen: Seen) -> Tensor:
    """[rows, classes], or one column for two classes. Of the likeliest class by the sum of all others, which keeps them apart
    where its probability is rounded to 1."""
    if seen.classes == 2:
        return seen.output[:, 1:] - seen.output[:, :1]
    highest, likeliest = seen.highest[:, None], seen.predicted[:, None]
    others = seen.output.scatter(1, likeliest, -torch.inf)
    second = others.amax(1, keepdim=True).clamp_min(torch.finfo(others.dtype).min)
    exps = (others - second).exp_()
    total, share = exps.sum(1, keepdim=True), (second - highest).exp()  # share: of the second's probability to the highest
    odds = (others - highest) - ((total - exps) * share + 1).log_()
    return odds.scatter_(1, likeliest, (highest - second) - total.log())


def _value_errors(seen: Seen) -> dict[str, Tensor]:
    """A row for each batch, which the end adds up. Deviations of y are from the batch's mean, to avoid cancellation."""
    exact = accumulator(seen.output.device)
    target = seen.target.to(exact)
    apart, mean = seen.output.to(exact) - target, target.mean(0, keepdim=True)
    share = apart.abs() / target.abs().clamp_min(torch.finfo(exact).eps)  # as in scikit-learn
    columns = {"squared": apart.square(), "absolute": apart.abs(), "share": share, "deviation": (target - mean).square()}
    found = {name: column.sum(0, keepdim=True) for name, column in columns.items()}
    found |= {"mean": mean, "count": torch.full_like(mean[:, :1], len(target))}
    return found | ({"target": target} if target.shape[1] <= _MOST_KEPT_COLUMNS else {})
