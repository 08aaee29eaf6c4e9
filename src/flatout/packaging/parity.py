"""Whether a runtime gives the run's own outputs on the stored samples, in batches of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from flatout.data.source import Batch
from flatout.packaging.samples import Samples

TOLERANCES = {"fp32": 1e-5, "bf16": 4e-2, "fp16": 1e-2, "fp8": 1e-1}
"""The largest difference of an output, relative to its value if that is above 1."""

_CALLS = 3  # of each small batch size
_SMALL = 7

Answers = Callable[[Batch], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Parity:
    """`worst` is the largest difference, at `row` of the samples in the output `output`; `problem` is None if all agree."""

    tolerance: float
    worst: float = 0.0
    row: int = 0
    output: str = ""
    classes_differ: int = 0
    rows: int = 0
    batches: tuple[int, ...] = ()
    problem: str | None = None

    @property
    def holds(self) -> bool:
        return self.problem is None

    def to_json(self) -> dict[str, object]:
        return {**vars(self), "batches": list(self.batches)}


def compare(answers: Answers, samples: Samples, tolerance: float = TOLERANCES["fp32"]) -> Parity:
    """Runs a few batches of 1 and 7 samples, one of 64 and one of all. An error of the runtime is a problem, not raised."""
    total = len(samples)
    found = Parity(tolerance, rows=total)
    batches = tuple(size for size in sorted({1, _SMALL, 64, total}) if size <= total)
    for size in batches:
        calls = _CALLS if size <= _SMALL else 1  # the last size covers every row
        for start in range(0, min(total, calls * size), size):
            stop = min(start + size, total)
            part = slice(start, stop)
            try:
                given = answers({name: column[part] for name, column in samples.rows.items()})
            except Exception as error:
                why = f"{type(error).__name__}: {error}".partition("\n")[0]
                return _with(found, problem=f"a batch of {stop - start} failed: {why}")
            expected = {name: column[part] for name, column in samples.outputs.items()}
            found = _compared(found, given, expected, start)
            if not found.holds:
                return found
    return _with(found, batches=batches)


def mean_error(made: Mapping[str, Tensor], wanted: Mapping[str, Tensor], rows: int | None = None) -> float:
    """Of the first `rows`, by default all: of numbers with fractions, relative to values above 1; if an answer has none, the
    share of values that differ."""
    floats = [name for name, one in wanted.items() if one.is_floating_point()]
    far = []
    for name in floats or wanted:
        came, right = made[name][:rows].double(), wanted[name][:rows].double()
        error = _error(came, right) if floats else (came != right).double()
        far.append(float(error.nan_to_num(nan=torch.inf).mean()))
    return sum(far) / len(far)


def _compared(found: Parity, given: Mapping[str, Tensor], expected: Mapping[str, Tensor], start: int) -> Parity:
    if set(given) != set(expected):
        return _with(found, problem=f"outputs are {', '.join(given)}; expected {', '.join(expected)}")
    for name, wanted in expected.items():
        came = given[name].detach().cpu()
        if came.shape != wanted.shape:
            return _with(found, problem=f"{name} is {list(came.shape)}, expected {list(wanted.shape)}")
        if not wanted.is_floating_point():
            differs = came != wanted
            sure = differs & ~_near_ties(expected, found.tolerance) if name == "prediction" else differs
            if sure.any():
                row = start + int(sure.reshape(len(sure), -1).any(1).nonzero()[0])
                return _with(found, row=row, output=name, problem=f"{name} differs at sample {row}")
            found = _with(found, classes_differ=found.classes_differ + int(differs.sum()))
            continue
        error = _error(came.double(), wanted.double()).reshape(len(wanted), -1).amax(1)
        row = int(error.argmax())
        worst = float(error[row])
        if not worst <= found.worst:  # NaN too
            found = _with(found, worst=worst, row=start + row, output=name)
        if not worst <= found.tolerance:
            far = f"{name} differs by {worst:.2g} at sample {start + row}, more than {found.tolerance:g}"
            return _with(found, problem=far)
    return found


def _error(came: Tensor, wanted: Tensor) -> Tensor:
    same = (came == wanted) | (came.isnan() & wanted.isnan())
    return torch.where(same, 0.0, (came - wanted).abs() / wanted.abs().clamp(min=1.0))


def _near_ties(expected: Mapping[str, Tensor], tolerance: float) -> Tensor:
    """Where the two best classes are closer than the tolerance: either may win."""
    prediction = expected["prediction"]
    if "log_probability" in expected:
        return torch.ones_like(prediction, dtype=torch.bool)  # compared by itself: another token with the same one is a tie
    if "probabilities" not in expected:
        return (expected["probability"] - 0.5).abs() <= tolerance if "probability" in expected else prediction.bool() & False
    probabilities = expected["probabilities"]
    if probabilities.shape == prediction.shape:  # each label by itself
        return (probabilities - 0.5).abs() <= tolerance
    best = probabilities.topk(min(2, probabilities.shape[1]), 1).values
    return best[:, 0] - best[:, -1] <= 2 * tolerance if best.shape[1] > 1 else torch.zeros_like(prediction, dtype=torch.bool)


def _with(found: Parity, **changes: object) -> Parity:
    return Parity(**{**vars(found), **changes})  # type: ignore[arg-type]
