"""Trials stacked on one core: an MLP 14-32-32-2 3x the rate of trials one after another; no layout that is chosen is slower."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from _trials import candidates, group_of, rate_of, recipe
from evidence import Bar, Report, options, take_turns

from flatout.machine.threads import most_threads
from flatout.measure.stats import compare_paired
from flatout.tuning.training.alone import Alone
from flatout.tuning.training.layout import STACKED, choose_layout
from flatout.tuning.training.stack import TrialStack
from flatout.tuning.training.unfolded import convolution_forms


@dataclass(frozen=True)
class Case:
    name: str
    shape: tuple[int, ...]
    classes: int
    model: dict[str, Any]
    batch: int
    trials: int
    bar: float | None  # of 64 trials in a stack against one after another, one thread each


CASES = (
    Case("MLP 14-32-32-2, batch 64", (14,), 2, {"mlp": {"hidden": [32, 32]}}, 64, 64, 3.0),
    Case("MLP 64-256-256-10, batch 256", (64,), 10, {"mlp": {"hidden": [256, 256]}}, 256, 16, None),
    Case("CNN 8x8, batch 64", (8, 8), 10, {"convnet": {"channels": [8, 16], "hidden": 32}}, 64, 16, None),
)


def measured(case: Case, report: Report, repeats: int, within: float | None, seconds: float) -> None:
    base = recipe(case.shape, case.classes, case.model, case.batch, 20_000, {"device": "cpu"})
    ones = candidates(base, case.trials)
    with group_of(ones) as group:
        layout = choose_layout(group, ones, 20 * seconds)
        report.conditions[case.name] = asdict(layout)
        serial = {f"{case.name}: one after another, {count} threads": count for count in sorted({1, most_threads()})}
        arms = {name: rate_of(group, ones, Alone, count, seconds) for name, count in serial.items()}
        stacked = f"{case.name}: {case.trials} in a stack, 1 thread"
        arms[stacked] = rate_of(group, ones, TrialStack, 1, seconds)
        for form in convolution_forms(group.job.model)[1:]:
            arms[f"{stacked}, convolutions {form}"] = rate_of(group, ones, TrialStack, 1, seconds, form)
        chosen = f"{case.name}: as choose_layout says ({layout.kind}, {layout.width} wide, {layout.threads} threads)"
        kind, width = (TrialStack, layout.width) if layout.kind == STACKED else (Alone, 1)
        arms[chosen] = rate_of(group, ones[:width], kind, layout.threads, seconds, layout.convolutions)
        for name, values in take_turns(arms, repeats, within).items():
            report.arm(name, "trial-steps/s", values)
    alone = f"{case.name}: one after another, 1 threads"
    if case.bar is not None:
        report.ratio(f"{case.name}: a stack of {case.trials}, against one after another", stacked, alone, case.bar)
    best = max(serial, key=lambda name: float(report.arms[name]["median"]))
    found = compare_paired(report.arms[chosen]["values"], report.arms[best]["values"], prefer="max")
    claim = f"{case.name}: the chosen layout against the faster of one after another (upper end of the interval)"
    report.bars.append(replace(Bar(claim, found.high, 1.0), low=found.low, high=found.high))


def main() -> int:
    parser = options(__doc__, 7)
    parser.add_argument("--case", type=int, help="only this case, by number from 0")
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    report = Report("tune_cpu", (__doc__ or "").strip(), torch.device("cpu"))
    report.conditions = {"aim of the first bar": 8.0}
    for number, case in enumerate(CASES):
        if asked.case in (None, number):
            measured(case, report, 2 if trial else asked.repeats, asked.within, 0.2 if trial else 2.0)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
