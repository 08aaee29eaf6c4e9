"""The lowest loss that a batch allows: rows with equal inputs and different labels, and label smoothing, keep it above zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flatout.engine.job import Job
from flatout.objectives.classify import Classify

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Floor:
    """`conflicting`: rows whose input equals that of another row with another label. `smoothing`: of the labels."""

    loss: float
    conflicting: int
    smoothing: float


def floor_of(job: Job, batch: Batch) -> Floor:
    """0.0 where nothing is known: the loss of a function of one's own may have any lowest value."""
    target, columns = batch.get("y"), [name for name in job.objective.inputs.columns if name in batch]
    conflicting, loss = 0, 0.0
    smoothing = job.objective.label_smoothing if isinstance(job.objective, Classify) else 0.0
    if target is not None and target.dim() == 1 and columns:
        groups = _alike([batch[name] for name in columns])
        conflicting, entropy = _conflicts(groups, target)
        if job.objective.name in ("classify", "binary") and not smoothing:
            loss = entropy
    if smoothing and job.data.classes:
        loss = _smoothed(smoothing, job.data.classes)
    return Floor(loss, conflicting, smoothing)


def _alike(columns: list[Tensor]) -> Tensor:
    """The number of the group of each row: rows with equal inputs."""
    rows = torch.cat([column.double().reshape(len(column), -1) for column in columns], 1)
    groups: Tensor = rows.unique(dim=0, return_inverse=True)[1]
    return groups


def _conflicts(groups: Tensor, target: Tensor) -> tuple[int, float]:
    """How many rows share their input with another label, and the mean entropy of the labels of equal inputs."""
    rows, entropy, found = len(target), 0.0, 0
    for group in groups.unique():
        counts = target[groups == group].unique(return_counts=True)[1].tolist()
        if len(counts) > 1:
            found += sum(counts)
            entropy -= sum(count * math.log(count / sum(counts)) for count in counts)
    return found, entropy / rows


def _smoothed(smoothing: float, classes: int) -> float:
    other = smoothing / classes
    own = 1 - smoothing + other
    return -own * math.log(own) - ((classes - 1) * other * math.log(other) if other else 0.0)
