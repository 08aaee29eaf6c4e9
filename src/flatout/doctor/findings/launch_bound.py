"""Many small operators: calling them takes longer than computing them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from flatout.base.units import show_count, show_seconds
from flatout.doctor import kinds, marks
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.trace import Span
from flatout.machine.optimisations import COMPILE

_WORTH, _WORTH_ON_CPU = 0.15, 0.25  # of a step
_SAVED, _SAVED_ON_CPU = 0.7, 0.5
# calling compiled code on a CPU costs as much as this many operators: compiling models of 32, 80, 150, 208 and 410 operators
# gave 0.72x, 1.00x, 1.25x, 1.25x and 1.44x
_COMPILED_CALL = 80
_RECURRENT = frozenset({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"})  # layers, not cells


def look(case: Case) -> Iterator[Finding]:
    spent_ms = case.rows[kinds.LAUNCH]
    worth, saved = (_WORTH, _SAVED) if case.on_device else (_WORTH_ON_CPU, _saved_on_cpu(case))
    if case.share(spent_ms) < worth or saved <= 0 or any(call.compiled for call in case.training_calls):
        return
    operators = sum(count for name, count in case.trace.counts.items() if name.startswith("aten::"))
    calls = sorted(case.training_calls, key=lambda one: -one.seconds)
    yield Finding(
        COMPILE.finding,
        spent_ms * saved,
        calls[0].where if calls else case.places.get(kinds.LAUNCH, ""),
        "Calling operators takes longer than computing them"
        if spent_ms > case.compute_ms
        else "Calling operators takes a large part of the step",
        f"{show_count(case.per_step(operators))} operators per step; calling them takes {show_seconds(spent_ms / 1e3)}",
        'model = torch.compile(model)' + (', mode="reduce-overhead" for a CUDA graph' if case.on_device else "")
        + "; or use larger batches",
        short=COMPILE.words,
    )  # fmt: skip


def _saved_on_cpu(case: Case) -> float:
    if _RECURRENT & case.trace.counts.keys():
        return 0.0  # torch.compile leaves these layers unchanged, and most operators belong to them
    calls = sum(call.count / max(call.between, 1) for call in case.training_calls if call.parameter_dtype)
    return _SAVED_ON_CPU * (1 - _COMPILED_CALL * max(calls, 1.0) / max(operators_of_models(case), 1.0))


def operators_of_models(case: Case) -> float:
    """Computing operators per step in the forward and backward pass. Of nested operators only the innermost counts."""
    until, computing = 0, list[Span]()
    for span in sorted(case.trace.host, key=lambda one: (one.start, -one.end)):
        if any(start <= span.start < end for start, end in case.trace.left_out):
            continue
        if span.mark is not None and span.mark.kind in (marks.FORWARD, marks.BACKWARD):
            until = max(until, span.end)
        elif span.start < until and span.mark is None and kinds.of_operator(span.name) in kinds.COMPUTE:
            computing.append(span)
    inner = sum(following.start >= one.end for one, following in pairwise(computing))
    return case.per_step(inner + bool(computing))
