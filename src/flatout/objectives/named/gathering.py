"""What is gathered over all batches: sums, or rows where a metric needs each of them. Several metrics share one gathering.

Nothing here waits for the device. Counts are integers, so they are exact in any order; other sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.objectives.metrics import accumulator
from flatout.objectives.named.seen import Seen, joined_rows

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Tensor]
Reads = Literal["output", "predicted", "loss"]  # of a batch, besides the target. All but the output is small enough to keep
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
    reads: Reads = field(default="output", compare=False)


class Gathered:
    """The state of one gathering."""

    def __init__(self, gathering: Needed) -> None:
        self.gathering = gathering
        self._kept: dict[str, list[Tensor]] = {}

    def update(self, seen: Seen) -> None:
        for name, value in self.gathering.measure(seen).items():
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
        if self.gathering.keeps_rows or not parts:
            parts.append(value)
        else:
            parts[0] = parts[0] + value


def on_host(gathered: Mapping[str, Gathered]) -> dict[str, dict[str, Tensor]]:
    """The tensors of each, sums and counts on the host: one copy for each type, instead of one for each number that is read."""
    found = {place: one.tensors() for place, one in gathered.items()}
    small = [
        (place, name, value)
        for place, tensors in found.items()
        if not gathered[place].gathering.keeps_rows
        for name, value in tensors.items()
        if value.device.type != "cpu"
    ]
    for dtype in {value.dtype for _, _, value in small}:
        alike = [one for one in small if one[2].dtype == dtype]
        flat = torch.cat([value.flatten() for _, _, value in alike]).cpu()
        parts = flat.split([value.numel() for _, _, value in alike])
        for (place, name, value), part in zip(alike, parts, strict=True):
            found[place][name] = part.view(value.shape)
    return found


def class_counts() -> Needed:
    return Needed("class counts", _class_counts, reads="predicted")


def label_counts() -> Needed:
    return Needed("label counts", _label_counts)


def ranks(k: int) -> Needed:
    return Needed(f"top {k}", lambda seen: _ranks(seen, k))


def confusion_cells() -> Needed:
    return Needed("confusion", _confusion_cells, reads="predicted")


def log_losses() -> Needed:
    return Needed("log loss", _log_losses, reads="loss")


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
    hits, guessed, true = _here(seen) if seen.output.device.type == "cpu" else _there(seen)
    rows = torch.full_like(hits, len(seen.target))
    return {"hits": hits, "guessed": guessed, "true": true, "same": rows - guessed - true + 2 * hits, "rows": rows}


def _there(seen: Seen) -> tuple[Tensor, ...]:
    guess, target = seen.predicted, seen.target
    return (guess & target).sum(0), guess.sum(0), target.sum(0)


def _here(seen: Seen) -> tuple[Tensor, ...]:
    """By products of matrices, several times as fast as sums of integers."""
    exact = torch.float32 if len(seen.target) <= 1 << 24 else torch.float64
    guess, target = (seen.output >= 0).to(exact), seen.target.to(exact)
    every = torch.ones((1, len(guess)), dtype=exact)
    return tuple((every @ each)[0].round().long() for each in (guess * target, guess, target))


def _ranks(seen: Seen, k: int) -> dict[str, Tensor]:
    """Equal logits are ordered by class, as argmax does: a model whose logits are all the same gets no credit for ties."""
    if seen.classes <= k:
        raise UsageError(f"metrics: top_k {k} is always 1 for {seen.classes} classes: use a k below {seen.classes}")
    own = seen.output.gather(1, seen.target[:, None])
    if own.device.type == "cpu":
        within = torch.from_numpy(_within_here(seen.output.numpy(), own.numpy(), seen.target.numpy(), k))
    else:
        within = _ahead(seen.output, own, seen.target).sum(1) < k
    return {"within": (within.long() * seen.counting).sum(), "true": _tally(seen.target, seen.counting, seen.classes)}


def _ahead(logits: Tensor, own: Tensor, target: Tensor) -> Tensor:
    earlier = torch.arange(logits.shape[1], device=own.device) < target[:, None]
    return ~(logits <= own) | ((logits == own) & earlier)  # NaN is ahead of everything


def _within_here(logits: Array, own: Array, target: Array, k: int) -> Array:
    """Most rows have k larger logits: only for the others do ties count."""
    narrow = np.uint16 if logits.shape[1] < 1 << 16 else np.uint32
    ahead = logits.shape[1] - (logits <= own).view(np.uint8).sum(1, dtype=narrow).astype(np.int64)
    within: Array = ahead < k
    some = np.flatnonzero(within)
    earlier = np.arange(logits.shape[1]) < target[some, None]
    within[some] = ahead[some] + ((logits[some] == own[some]) & earlier).sum(1) < k
    return within


def _confusion_cells(seen: Seen) -> dict[str, Tensor]:
    size = seen.classes
    if size > MOST_CELLS_SIDE:
        raise UsageError(f"metrics: confusion_matrix takes at most {MOST_CELLS_SIDE} classes, got {size}")
    return {"cells": _tally(seen.target * size + seen.predicted, seen.counting, size * size)}


def _log_losses(seen: Seen) -> dict[str, Tensor]:
    total = seen.loss
    if seen.task in ("yes_no", "labels"):
        if total is None:
            losses = F.binary_cross_entropy_with_logits(seen.output, seen.target.to(seen.output.dtype), reduction="none")
            total = losses.to(accumulator(losses.device)).sum()
        true = seen.target.sum(0, keepdim=seen.task == "yes_no")
        rows = torch.full_like(true, len(seen.target))
        return {"log_loss": total, "count": rows.sum(), "true": true, "rows": rows}
    return {
        "log_loss": _cross_entropy(seen) if total is None else total,
        "count": seen.counting.sum(),
        "true": _tally(seen.target, seen.counting, seen.classes),
    }


def _cross_entropy(seen: Seen) -> Tensor:
    exact = accumulator(seen.output.device)
    if seen.classes > _FEW_CLASSES:
        losses = F.cross_entropy(seen.output, seen.target, reduction="none").to(exact)
    else:  # several times as fast on a CPU
        own = seen.output.gather(1, seen.target[:, None])[:, 0]
        losses = (seen.total.log() + (seen.highest - own)).to(exact)
    return losses.where(seen.counting.bool(), 0).sum()  # also where the ignored one is not finite


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
            "labels": seen.target.reshape(len(seen.target), -1).to(torch.uint8),
        }
    found = {"scores": _log_odds(seen), "labels": seen.target}
    return found if seen.valid is None else {**found, "valid": seen.valid}


def _log_odds(seen: Seen) -> Tensor:
    """[rows, classes], or one column for two classes: numbers with the order of the probabilities p.

    log p up to 1/2; above it, -log(1 - p) - 2 log 2, from the sum of all other classes: p itself may be rounded to 1.
    """
    if seen.classes == 2:
        return seen.output[:, 1:] - seen.output[:, :1]
    likeliest = seen.predicted[:, None]
    if seen.classes > _FEW_CLASSES:
        scores = seen.output.log_softmax(1)
    else:  # several times as fast on a CPU
        scores = (seen.output - seen.highest[:, None]).sub_(seen.total.log()[:, None])
    highest = scores.gather(1, likeliest)
    if scores.device.type == "cpu":  # elsewhere, to pick rows would make the host wait for the device
        sure = (highest[:, 0] > -math.log(2)).nonzero()[:, 0]
        chosen = (side.index_select(0, sure) for side in (seen.output, likeliest, highest))
        return scores.index_put_((sure, likeliest[sure, 0]), _from_above(*chosen)[:, 0])
    above = _from_above(seen.output, likeliest, highest)
    return scores.scatter_(1, likeliest, torch.where(highest > -math.log(2), above, highest))


def _from_above(logits: Tensor, likeliest: Tensor, highest: Tensor) -> Tensor:
    """-log(1 - p) - 2 log 2 of the likeliest class of each row, where `highest` is log p."""
    others = logits.scatter(1, likeliest, -torch.inf)
    second = others.amax(1, keepdim=True).clamp_min(torch.finfo(others.dtype).min)
    rest = (others - second).exp_().sum(1, keepdim=True).log_()
    return (logits.gather(1, likeliest) - second) - rest - highest - 2 * math.log(2)


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
