"""One line of the dataset takes most of the time that reading a batch takes, and reading can't keep up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import DATA
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.seen import ScriptLoader

_MOST = 0.4


def look(case: Case) -> Iterator[Finding]:
    loader = case.training_loader
    if loader is None:
        return
    lines, fetch_ms = _lines(case, loader)
    seen = sum(lines.values())
    if seen < 5 or not fetch_ms:
        return
    line, count = lines.most_common(1)[0]
    share = count / seen
    wait_ms = case.rows[DATA]
    if loader.workers:  # no step waits longer for reading than the next batch takes; the rest is for want of a core, say
        wait_ms = min(wait_ms, fetch_ms * case.batches_per_step(loader) / loader.workers)
    helpers = loader.workers or case.seen.cores
    starves = fetch_ms / helpers > max(case.train_ms - wait_ms, 0.0)  # even if all of them read, the step would wait
    if share < _MOST or not (loader.workers or starves) or line == loader.where:
        return
    yield Finding(
        "slow_transform",
        wait_ms * (0.5 + share / 2),
        line,
        f"One line of {loader.dataset} takes {share:.0%} of the time that a batch takes to read",
        f"{show_seconds(fetch_ms / 1e3)} a batch in one process, {seen} samples; the step waits {show_seconds(wait_ms / 1e3)}",
        "compute it once and keep the result, do it for whole batches (on the device if there is one), or by a faster library",
        short="that line for whole batches",
    )


def _lines(case: Case, loader: ScriptLoader) -> tuple[Counter[str], float]:
    """Samples by line, and milliseconds of one process for one batch."""
    if loader.workers:
        lines: Counter[str] = Counter()
        for told in case.read_by_workers(loader):
            lines.update(told.lines)
        del lines[loader.where]  # whose frames a forked worker still has: it waits there for what to read
        return lines, case.fetch_ms(loader)
    spans = [(s.start, s.end) for s in case.trace.host if s.mark is not None and s.mark.kind == "data"]
    inside = Counter(s.where for s in case.trace.samples if s.where and any(a <= s.at <= b for a, b in spans))
    return inside, case.rows[DATA]
