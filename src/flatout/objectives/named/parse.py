"""From the names in a recipe to metrics: `f1`, `{top_k: 5}`, `{f1: {average: micro}}`, `package.module:function`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.specs import Spec, import_named
from flatout.objectives.named.metric import (
    Accuracy,
    CalibrationError,
    ConfusionMatrix,
    FromCounts,
    FromScores,
    LogLoss,
    Matthews,
    NamedMetric,
    OfValues,
    OwnMetric,
    Perplexity,
    RSquared,
    TokenAccuracy,
    TopK,
)
from flatout.objectives.objective import Objective

AVERAGES = ("macro", "micro", "weighted", "per_class")
_EXAMPLE = "[f1, {top_k: 5}, package.module:function]"


def parse_metrics(written: Any) -> tuple[NamedMetric, ...]:
    """All mistakes at once, as a UsageError."""
    if written is None:
        return ()
    each = [written] if isinstance(written, str | Mapping | Spec) or callable(written) else written
    if not isinstance(each, list | tuple):
        raise UsageError(f"expected a list of names, such as {_EXAMPLE}; got {written!r}")
    found, problems = list[NamedMetric](), list[str]()
    for one in each:
        try:
            found.append(_metric(one))
        except UsageError as error:
            problems.append(str(error))
    names = [metric.name for metric in found]
    problems += [f"{name} is given twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    if problems:
        raise UsageError("; ".join(problems))
    return tuple(found)


def named_metrics_of(written: Any, objective: Objective) -> tuple[NamedMetric, ...]:
    """Metrics that fit the task of the objective. For a loss of one's own the shapes of its first batch tell."""
    found = parse_metrics(written)
    if objective.task is None:
        return found
    for metric in found:
        if not metric.fits(objective.task):
            raise UsageError(
                f"metrics: {metric.name} does not fit objective {objective.name}, which has {', '.join(names_for(objective))}"
            )
    return found


def names_for(objective: Objective) -> list[str]:
    task = objective.task
    return sorted(name for name, maker in _MAKERS.items() if task is None or maker(name).fits(task))


def describe_metrics(written: Any) -> Any:
    """For JSON: as written, functions by their place."""
    if isinstance(written, list | tuple):
        return [describe_metrics(one) for one in written]
    if isinstance(written, Spec):
        return written.written()
    if callable(written):
        while isinstance(written, functools.partial):
            written = written.func
        named: Any = written if inspect.isroutine(written) else type(written)
        return f"{named.__module__}:{named.__qualname__}"
    return written


def _metric(written: Any) -> NamedMetric:
    if callable(written):
        return OwnMetric(_own_name(written), written)
    try:
        spec = Spec.parse(written)
    except UsageError:
        raise UsageError(f"expected a name, or a name with options such as {{top_k: 5}}; got {written!r}") from None
    if ":" in spec.name:
        return _imported_metric(spec)
    if spec.name not in _MAKERS:
        usual = _USUAL_NAMES.get(spec.name.lower())
        hint = did_you_mean(spec.name, _MAKERS) if usual is None else f"here it is {usual}"
        raise UsageError(f"unknown metric {spec.name!r}; {hint}")
    maker = _MAKERS[spec.name]
    made: NamedMetric = spec.fitted_to(maker, given=("name",)).call(maker, name=spec.name)
    return made


_USUAL_NAMES = {  # elsewhere
    "acc": "accuracy", "error_rate": "accuracy, which is 1 - error_rate",
    "balanced_accuracy": "recall_macro", "f1score": "f1", "f1_score": "f1",
    "rocauc": "auroc", "roc_auc": "auroc", "roc_auc_score": "auroc", "ap": "average_precision", "ece": "calibration_error",
    "matthews_corrcoef": "mcc", "cross_entropy": "log_loss", "nll": "log_loss", "r2_score": "r2", "ppl": "perplexity",
}  # fmt: skip


def _imported_metric(spec: Spec) -> NamedMetric:
    function = import_named(spec.name, "metric")
    if not callable(function) or isinstance(function, type):
        raise UsageError(f"metric {spec.name!r} must be a function (output, y) -> number, got {type(function).__name__}")
    if spec.value is not None:
        raise UsageError(f"metric {spec.name!r} takes options by name, such as {{alpha: 0.5}}, got {spec.value!r}")
    own = list(inspect.signature(function).parameters)[2:]
    for name in spec.options:
        if name not in own:
            raise UsageError(f"metric {spec.name!r} has no option {name!r}; {did_you_mean(name, own)}")
    return OwnMetric(_own_name(function), functools.partial(function, **spec.options) if spec.options else function)


def _own_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    named: Any = function if inspect.isroutine(function) else type(function)
    return str(named.__name__)


def _average_of(which: str, name: str, average: str | None = None) -> NamedMetric:
    if average is not None and average not in AVERAGES:
        raise UsageError(f"{which}.average: unknown average {average!r}; {did_you_mean(average, AVERAGES)}")
    return FromCounts(name if average is None else f"{which}_{average}", which, average)


def _f1(name: str, average: str | None = None) -> NamedMetric:
    return _average_of("f1", name, average)


def _precision(name: str, average: str | None = None) -> NamedMetric:
    return _average_of("precision", name, average)


def _recall(name: str, average: str | None = None) -> NamedMetric:
    return _average_of("recall", name, average)


def _top_k(name: str, k: int = 5) -> NamedMetric:
    if k < 1:
        raise UsageError(f"top_k: expected 1 or more, got {k}")
    return TopK(f"top_{k}", k)


def _calibration_error(name: str, bins: int = 15) -> NamedMetric:
    if not 1 <= bins <= 10_000:
        raise UsageError(f"calibration_error: expected 1 to 10,000 bins, got {bins}")
    return CalibrationError(name, bins)


def _fixed(which: str, average: str) -> Callable[..., NamedMetric]:
    def make(name: str) -> NamedMetric:
        return FromCounts(name, which, average)

    return make


def _scores(name: str) -> NamedMetric:
    return FromScores(name, "average_precision" if name == "average_precision" else "auroc")


def _value(name: str) -> NamedMetric:
    return OfValues(name, name)


def _r2(name: str) -> NamedMetric:
    return RSquared(name, "r2")


def _plain(kind: Callable[[str], NamedMetric]) -> Callable[..., NamedMetric]:
    def make(name: str) -> NamedMetric:
        return kind(name)

    return make


_MAKERS: Mapping[str, Callable[..., NamedMetric]] = {
    "accuracy": _plain(Accuracy),
    "top_k": _top_k,
    "f1": _f1,
    "precision": _precision,
    "recall": _recall,
    **{f"{which}_{average}": _fixed(which, average) for which in ("f1", "precision", "recall") for average in AVERAGES},
    "auroc": _scores,
    "auc": _scores,
    "average_precision": _scores,
    "log_loss": _plain(LogLoss),
    "calibration_error": _calibration_error,
    "mcc": _plain(Matthews),
    "confusion_matrix": _plain(ConfusionMatrix),
    "mae": _value,
    "mse": _value,
    "rmse": _value,
    "mape": _value,
    "r2": _r2,
    "perplexity": _plain(Perplexity),
    "token_accuracy": _plain(TokenAccuracy),
}
