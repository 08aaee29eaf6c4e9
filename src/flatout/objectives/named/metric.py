"""A metric with its name: which tasks it fits, what it gathers, and its value with the baseline."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flatout.base.errors import ModelError
from flatout.objectives.named import formulas
from flatout.objectives.named.formulas import Names, Scores
from flatout.objectives.named.gathering import (
    Needed,
    Tensors,
    all_scores,
    calibration_bins,
    class_counts,
    confusion_cells,
    hit_counts,
    label_counts,
    log_losses,
    ranks,
    raw_rows,
    value_errors,
)
from flatout.objectives.objective import Task

CLASSES: tuple[Task, ...] = ("classes", "yes_no", "labels", "tokens")


@dataclass(frozen=True)
class NamedMetric(ABC):
    """`name` is its key among the results."""

    name: str

    tasks: ClassVar[tuple[Task, ...]] = CLASSES
    better: ClassVar[Literal["max", "min"] | None] = "max"  # None: it can't decide which model is best

    of_raw_output: ClassVar[bool] = False  # it gets the output and y as they are

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's functions that it calls: part of a run's identity."""
        return ()

    def fits(self, task: Task) -> bool:
        return task in self.tasks

    @abstractmethod
    def gathering(self, task: Task) -> Needed: ...

    @abstractmethod
    def finish(self, found: Tensors, task: Task, names: Names) -> Scores: ...

    def baseline(self, found: Tensors, task: Task) -> float | None:
        """The value of a model that does not look at its input; None if there is none."""
        return None


@dataclass(frozen=True)
class Accuracy(NamedMetric):
    def gathering(self, task: Task) -> Needed:
        return label_counts() if task == "labels" else hit_counts()

    def finish(self, found: Tensors, task: Task, names: Names) -> Scores:
        return {"": formulas.accuracy(found)}

    def baseline(self, found: Tensors, task: Task) -> float | None:
        return formulas.accuracy(formulas.always_the_majority(found))


@dataclass(frozen=True)
class TokenAccuracy(Accuracy):
    tasks: ClassVar[tuple[Task, ...]] = ("tokens",)


@dataclass(frozen=True)
class TopK(NamedMetric):
    k: int

    tasks: ClassVar[tuple[Task, ...]] = ("classes", "tokens")

    def gathering(self, task: Task) -> Needed:
        return ranks(self.k)

    def finish(self, found: Tensors, task: Task, names: Names) -> Scores:
        return {"": formulas.quotient(found["within"], found["true"].sum())}

    def baseline(self, found: Tensors, task: Task) -> float | None:
        true = found["true"]
        return formulas.quotient(true.topk(min(self.k, len(true))).values.sum(), true.sum())


@dataclass(frozen=True)
class FromCounts(NamedMetric):
    """Precision, recall or F1. `average` None: of class 1 for yes or no, over all labels, or the mean over classes."""

    which: str
    average: str | None

    def fits(self, task: Task) -> bool:
        return task in CLASSES and not (self.average == "per_class" and task == "tokens")

    def gathering(self, task: Task) -> Needed:
        return label_counts() if task == "labels" else class_counts()

    def finish(self, found: Tensors, task: Task, names: Names) -> Scores:
        if self.average == "per_class":
            return formulas.per_class(self.which, found, names)
        return {"": formulas.averaged(self.which, self._average(task), found)}

    def baseline(self, found: Tensors, task: Task) -> float | None:
        if self.average == "per_class":
            return None
        return formulas.averaged(self.which, self._average(task), formulas.always_the_majority(found))

    def _average(self, task: Task) -> str:
        usual: dict[Task, str] = {"yes_no": "positive", "labels": "micro"}
        return self.average or usual.get(task, "macro")


@dataclass(frozen=True)
class FromScores(NamedMetric):
    """AUROC or average precision; over several classes the mean of each class against all others."""

    which: str

    tasks: ClassVar[tuple[Task, ...]] = ("classes", "yes_no", "labels")

    def gathering(self, task: Task) -> Needed:
        return all_scores()

    def finish(self, found: Tensors, task: Task, names: Names) -> Scores:
        return {"": formulas.over_classes(found, self.which).nanmean().item()}

    def baseline(self, found: Tensors, task: Task) -> float | None:
        return 0.5 if self.which == "auroc" else formulas.share_of_positives(found)


@dataclass(frozen=True)
class LogLoss(NamedMetric):
    """The mean of -log p of what is true, whatever the loss is trained with: no smoothing, no weights."""

    better: ClassVar[Literal["max", "min"] | None] = "min"

    def gathering(self, task: Task) -> Needed:
        return log_losses()

    def finish(self, found: Tensors, task: Task, names: Names) -> Scores:
        return {"": (found["log_loss"] / found["count"]).item()}

    def baseline(self, found: Tensors, task: Task) -> float | None:
        return formulas.label_entropy(found)


@dataclass(frozen=True)
class Perplexity(LogLoss):
    tasks: ClassVar[tuple[Task, ...]] = ("tokens",)

    def finish(self, found: Tensors, task: Task, names: Names) -> Scores:
        return {"": (found["log_loss"] / found["count"]).exp().item()}

    def baseline(self, found: Tensors, task: Task) -> float | None:
        return torch.tensor(formulas.label_entropy(found), dtype=torch.float64).exp().item()


@dataclass(frozen=True)
class CalibrationError(NamedMetric):
    bins: int

    tasks: ClassVar[tuple[Task, ...]] = ("classes", "yes_no", "tokens")
    better: ClassVar[Literal["max", "min"] | None] = "min"

    def gathering(self, task: Task) -> Needed:
        return calibration_bins(self.bins)

    def finish(self, found: Tensors, task: Task, names: Names) -> Scores:
        return {"": formulas.calibration_error(found)}


@dataclass(frozen=True)
class Matthews(NamedMetric):
    tasks: ClassVar[tuple[Task, ...]] = ("classes", "yes_no", "tokens")

    def gathering(self, task: Task) -> Needed:
        return class_counts()

    def finish(self, found: Tensors, task: Task, names: Names) -> Scores:
        return {"": formulas.matthews(found)}

    def baseline(self, found: Tensors, task: Task) -> float | None:
        return 0.0


@dataclass(frozen=True)
class ConfusionMatrix(NamedMetric):
    """The number of rows for each pair of classes: `confusion_matrix.true.predicted`."""

    tasks: ClassVar[tuple[Task, ...]] = ("classes", "yes_no")
    better: ClassVar[Literal["max", "min"] | None] = None

    def gathering(self, task: Task) -> Needed:
        return confusion_cells()

    def finish(self, found: Tensors, task: Task, names: Names) -> Scores:
        return formulas.confusion(found["cells"], names)


@dataclass(frozen=True)
class OfValues(NamedMetric):
    """MAE, MSE, RMSE, MAPE: lower is better."""

    which: str

    tasks: ClassVar[tuple[Task, ...]] = ("values",)
    better: ClassVar[Literal["max", "min"] | None] = "min"

    def gathering(self, task: Task) -> Needed:
        return value_errors()

    def finish(self, found: Tensors, task: Task, names: Names) -> Scores:
        return {"": formulas.of_values(self.which, found)}

    def baseline(self, found: Tensors, task: Task) -> float | None:
        return formulas.of_the_mean(self.which, found)


@dataclass(frozen=True)
class RSquared(OfValues):
    better: ClassVar[Literal["max", "min"] | None] = "max"


@dataclass(frozen=True)
class OwnMetric(NamedMetric):
    """A user's function of all outputs and all targets: a number, or a dict of numbers."""

    function: Callable[..., Any]

    tasks: ClassVar[tuple[Task, ...]] = ("classes", "yes_no", "labels", "values")
    better: ClassVar[Literal["max", "min"] | None] = None
    of_raw_output: ClassVar[bool] = True

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.function.func,) if isinstance(self.function, functools.partial) else (self.function,)

    def gathering(self, task: Task) -> Needed:
        return raw_rows()

    def finish(self, found: Tensors, task: Task, names: Names) -> Scores:
        try:
            given = self.function(found["output"], found["target"])
        except Exception as error:  # a user's function may raise anything
            raise ModelError(f"metric {self.name} failed: {type(error).__name__}: {error}") from error
        several = {f".{name}": value for name, value in given.items()} if isinstance(given, dict) else {"": given}
        return {name: self._number(value) for name, value in several.items()}

    def _number(self, value: Any) -> float:
        if isinstance(value, Tensor) and value.numel() == 1:
            return float(value.item())
        try:
            return float(value)
        except (TypeError, ValueError):
            came = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ModelError(f"metric {self.name} must return a number or a dict of numbers, got {came}") from None
