"""A line outside of the model, the backward pass and the optimizer takes a large part of the step: a copy or conversion."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from flatout.base.units import show_seconds
from flatout.doctor import marks
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_SHARE = 0.25
_FEWEST = 8
_SAVED = 0.9


def look(case: Case) -> Iterator[Finding]:
    left_out = sorted(case.trace.left_out)
    samples = [sample for sample in case.trace.samples if not _within(sample.at, left_out)]
    inside = _model_and_loss(case)
    lines: Counter[str] = Counter()
    in_torch: Counter[str] = Counter()
    for sample in samples:
        if sample.where and not _within(sample.at, inside):
            lines[sample.where] += 1
            in_torch[sample.where] += sample.in_torch
    if not lines:
        return
    line, count = lines.most_common(1)[0]
    share = count / len(samples)
    if share < _SHARE or count < _FEWEST or in_torch[line] < count / 2:  # slow_python covers lines without operators
        return
    spent_ms = share * case.train_ms
    yield Finding(
        "costly_line",
        _SAVED * spent_ms,
        line,
        "One line outside of the model, the backward pass and the optimizer takes a large part of each step",
        f"{show_seconds(spent_ms / 1e3)} per step, {share:.0%} of it",
        "do it less often, outside of the loop, or for all tensors at once (torch._foreach_*)",
        short="not this line",
    )


def _model_and_loss(case: Case) -> Sequence[tuple[int, int]]:
    """Periods of marks, and those between a model's end and the backward pass, where losses are computed."""
    spans = sorted((s.start, s.end, s.mark.kind) for s in case.trace.host if s.mark is not None)
    periods = [(start, end) for start, end, _ in spans]
    forward = None
    for start, end, kind in spans:
        if kind == marks.FORWARD:
            forward = end if forward is None else forward
        elif kind == marks.BACKWARD:
            if forward is not None:
                periods.append((forward, start))
            forward = None
        elif kind == marks.STEP:
            forward = None
    merged: list[tuple[int, int]] = []
    for start, end in sorted(periods):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _within(at: int, periods: Sequence[tuple[int, int]]) -> bool:
    """Whether a time is in one of these periods, which are in order."""
    place = bisect_right(periods, (at, at)) - 1
    return place >= 0 and periods[place][0] <= at <= periods[place][1]
