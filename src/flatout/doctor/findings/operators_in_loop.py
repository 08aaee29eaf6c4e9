"""A Python loop inside a step that calls small operators again and again: for each sample, each time step or each row."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from flatout.base.units import show_seconds
from flatout.doctor import kinds, marks
from flatout.doctor.account import PYTHON
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.where import source_of

_WORTH = 0.25  # of a step that launching must take
_SHARE = 0.25  # of the samples outside of the backward pass and the optimizer
_SAVED = 0.9
_OFTEN = 4  # calls of one module in a step


def look(case: Case) -> Iterator[Finding]:
    if case.share(case.rows[kinds.LAUNCH]) < _WORTH or any(call.compiled for call in case.training_calls):
        return
    spans = [(s.start, s.end, s.mark.kind) for s in case.trace.host if s.mark is not None and s.mark.kind in _OTHERS]
    spans += [(start, end, "left out") for start, end in case.trace.left_out]
    if case.seen.look is None:
        return
    steps = frozenset(case.seen.look.step_lines)
    loops: Counter[tuple[str, int]] = Counter()
    lines: dict[tuple[str, int], Counter[str]] = {}
    own = backward = 0
    for sample in case.trace.samples:
        kind = next((kind for start, end, kind in spans if start <= sample.at <= end), "")
        backward += kind == marks.BACKWARD
        if kind or not sample.where:
            continue
        own += 1
        if (loop := _loop_of(sample.where, steps)) and not _is_over_layers(case, sample.where):
            loops[loop] += 1
            lines.setdefault(loop, Counter())[sample.where] += 1
    if not loops or not own:
        return
    loop, count = loops.most_common(1)[0]
    line = lines[loop].most_common(1)[0][0]
    if count < _SHARE * own or count < 5:
        return
    in_model = case.seen.look is not None and line in case.seen.look.repeated
    share = count / own
    time_ms = case.train_ms * (count + (share * backward if in_model else 0)) / len(case.trace.samples)
    calls = case.seen.look.repeated[line] if in_model and case.seen.look is not None else None
    yield Finding(
        "operators_in_loop",
        _SAVED * min(time_ms, case.rows[kinds.LAUNCH] + case.rows[PYTHON]),
        line,
        "A Python loop calls small operators again and again in each step",
        f"the loop of line {loop[1]} takes {show_seconds(time_ms / 1e3)} per step"
        + (f"; a {calls[2]} is called {calls[1]} times per step" if calls is not None and calls[1] >= _OFTEN else ""),
        "one call for all samples, rows or time steps: a batch dimension, nn.LSTM or nn.GRU instead of their cells, "
        "torch.vmap, torch._foreach_norm; or torch.compile",
        short="no loop",
    )


_OTHERS = (marks.BACKWARD, marks.STEP, marks.DATA, marks.LOGGING, marks.WRITE, marks.CHECKPOINT)


def _is_over_layers(case: Case, line: str) -> bool:
    """Does this line call different modules, each of them once?"""
    if case.seen.look is None or line not in case.seen.look.repeated:
        return False
    modules, most, _ = case.seen.look.repeated[line]
    return modules > 1 and most < _OFTEN


def _loop_of(where: str, steps: frozenset[str]) -> tuple[str, int] | None:
    """The outermost loop around a line that is inside of a step: neither the training loop nor a generator of batches."""
    name, _, number = where.rpartition(":")
    if not number.isdigit():
        return None
    for first, last, yields in _loops("".join(source_of(where))):
        holds_step = any(one.rpartition(":")[0] == name and first <= int(one.rpartition(":")[2]) <= last for one in steps)
        if first <= int(number) <= last and not yields and not holds_step:
            return name, first
    return None


@lru_cache(maxsize=64)
def _loops(source: str) -> tuple[tuple[int, int, bool], ...]:
    """First and last line of each loop, outermost first, and whether it yields."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ()
    found = [
        (
            node.lineno,
            node.end_lineno or node.lineno,
            any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node)),
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.While | ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp)
    ]
    return tuple(sorted(found))
