"""What is gathered over all batches: sums, or rows where a metric needs each of them. Several metrics share one gathering.

Nothing here waits for the device. Counts are integers, so they are exact in any order; other sums are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.objectives.columns import column_counts, joined_columns
from flatout.objectives.metrics import accumulator
from flatout.objectives.named.seen import Seen

Tensors = Mapping[str, Tensor]
MOST_CELLS_SIDE = 200  # classes in a confusion matrix
_CELLS_AT_ONCE = 64  # classes that are counted by pairs of the true and the predicted one
_MOST_KEPT_COLUMNS = 8  # of y, for a baseline that needs every value


@dataclass(frozen=True)
class Needed:
    """Gatherings with the same name are the same. `reads`: columns of rows that are read besides the target, and the loss, all
    of them small enough to keep; None: the output itself."""

    name: str
    measure: Callable[[Seen], dict[str, Tensor]] = field(compare=False)
    keeps_rows: bool = field(default=False, compare=False)
    by_column: bool = field(default=False, compare=False)  # kept rows are needed column by column
    reads: tuple[str, ...] | None = field(default=None, compare=False)


class Gathered:
    """The state of one gathering."""

    def __init__(self, gathering: Needed) -> None:
        self.gathering = gathering
        self._kept: dict[str, list[Tensor]] = {}

    def update(self, seen: Seen) -> None:
        for name, value in self.gathering.measure(seen).items():
            self._add(name, value)

    def tensors(self) -> dict[str, Tensor]:
        return {name: self._joined(parts) for name, parts in self._kept.items()}

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        if self.gathering.by_column and parts[0].dim() == 2 and parts[0].device.type == "cpu":
            return joined_columns(parts)
        return parts[0] if len(parts) == 1 else torch.cat(list(parts))

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
    return Needed("class counts", _class_counts, reads=("predicted",))


def hit_counts() -> Needed:
    return Needed("hits", _hit_counts, reads=("hit",))


def label_counts() -> Needed:
    return Needed("label counts", _label_counts)


def ranks(k: int) -> Needed:
    return Needed(f"top {k}", lambda seen: _ranks(seen, k), reads=(f"within {k}",))


def confusion_cells() -> Needed:
    return Needed("confusion", _confusion_cells, reads=("predicted",))


def log_losses() -> Needed:
    return Needed("log loss", _log_losses, reads=("loss",))


def calibration_bins(bins: int) -> Needed:
    return Needed(f"{bins} bins", lambda seen: _calibration_bins(seen, bins), reads=("surest", "hit"))


def all_scores() -> Needed:
    return Needed("scores", _all_scores, keeps_rows=True, by_column=True)


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


def _hit_counts(seen: Seen) -> dict[str, Tensor]:
    hit = (seen.predicted == seen.target).long() if seen.task == "yes_no" else seen.column("hit").long()
    return {"hits": (hit * seen.counting).sum(), "true": _tally(seen.target, seen.counting, seen.classes)}


def _label_counts(seen: Seen) -> dict[str, Tensor]:
    guess, target = seen.predicted, seen.target
    hits, guessed, true = _counts_of_columns(guess & target), _counts_of_columns(guess), _counts_of_columns(target)
    rows = torch.full_like(hits, len(seen.target))
    return {"hits": hits, "guessed": guessed, "true": true, "same": rows - guessed - true + 2 * hits, "rows": rows}


def _counts_of_columns(marks: Tensor) -> Tensor:
    return torch.from_numpy(column_counts(marks.numpy())) if marks.device.type == "cpu" else marks.sum(0)


def _ranks(seen: Seen, k: int) -> dict[str, Tensor]:
    within = seen.column(f"within {k}").long()
    return {"within": (within * seen.counting).sum(), "true": _tally(seen.target, seen.counting, seen.classes)}


def _confusion_cells(seen: Seen) -> dict[str, Tensor]:
    size = seen.classes
    if size > MOST_CELLS_SIDE:
        raise UsageError(f"metrics: confusion_matrix takes at most {MOST_CELLS_SIDE} classes, got {size}")
    return {"cells": _tally(seen.target * size + seen.predicted, seen.counting, size * size)}


def _log_losses(seen: Seen) -> dict[str, Tensor]:
    if seen.task in ("yes_no", "labels"):
        true = seen.target.sum(0, keepdim=True) if seen.task == "yes_no" else _counts_of_columns(seen.target)
        rows = torch.full_like(true, len(seen.target))
        return {"log_loss": _as_tensor(seen.log_loss), "count": rows.sum(), "true": true, "rows": rows}
    return {
        "log_loss": _as_tensor(seen.log_loss),
        "count": seen.counting.sum(),
        "true": _tally(seen.target, seen.counting, seen.classes),
    }


def _as_tensor(total: Tensor | float) -> Tensor:
    return total if isinstance(total, Tensor) else torch.tensor(total, dtype=torch.float64)


def _calibration_bins(seen: Seen, bins: int) -> dict[str, Tensor]:
    exact = accumulator(seen.output.device)
    if seen.task == "yes_no":
        said, right = seen.output.sigmoid(), seen.target
    else:
        said, right = seen.column("surest"), seen.column("hit").long()
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
    found = {"scores": seen.log_odds(), "labels": seen.target.clone()}
    return found if seen.valid is None else {**found, "valid": seen.valid}


def _value_errors(seen: Seen) -> dict[str, Tensor]:
    """A row for each batch, which the end adds up. Deviations of y are from the batch's mean, to avoid cancellation."""
    exact = accumulator(seen.output.device)
    target = seen.target.to(exact, copy=True)  # kept below
    apart, mean = seen.output.to(exact) - target, target.mean(0, keepdim=True)
    share = apart.abs() / target.abs().clamp_min(torch.finfo(exact).eps)  # as in scikit-learn
    columns = {"squared": apart.square(), "absolute": apart.abs(), "share": share, "deviation": (target - mean).square()}
    found = {name: column.sum(0, keepdim=True) for name, column in columns.items()}
    found |= {"mean": mean, "count": torch.full_like(mean[:, :1], len(target))}
    return found | ({"target": target} if target.shape[1] <= _MOST_KEPT_COLUMNS else {})
