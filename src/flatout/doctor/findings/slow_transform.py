"""One line of the dataset takes most of the time to read a batch, and reading is slower than training."""

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
    if loader.workers:  # waiting longer than a batch takes to read has another cause, such as no free core
        wait_ms = min(wait_ms, fetch_ms * case.batches_per_step(loader) / loader.workers)
    helpers = loader.workers or case.seen.cores
    starves = fetch_ms / helpers > max(case.train_ms - wait_ms, 0.0)  # the step would wait even if all cores read
    if share < _MOST or not (loader.workers or starves) or line == loader.where:
        return
    yield Finding(
        "slow_transform",
        wait_ms * (0.5 + share / 2),
        line,
        f"One line of {loader.dataset} takes {share:.0%} of the time to read a batch",
        f"{show_seconds(fetch_ms / 1e3)} per batch in one process ({seen} profiler samples); "
        f"a step waits {show_seconds(wait_ms / 1e3)}",
        "compute it once and store the result, do it for whole batches (on the GPU if there is one), or use a faster library",
        short="faster transform",
    )


def _lines(case: Case, loader: ScriptLoader) -> tuple[Counter[str], float]:
    """Profiler samples per line, and milliseconds per batch in one process."""
    if loader.workers:
        lines: Counter[str] = Counter()
        for told in case.read_by_workers(loader):
            lines.update(told.lines)
        del lines[loader.where]  # a forked worker still has this frame while it waits for indices
        return lines, case.fetch_ms(loader)
    spans = [(s.start, s.end) for s in case.trace.host if s.mark is not None and s.mark.kind == "data"]
    inside = Counter(s.where for s in case.trace.samples if s.where and any(a <= s.at <= b for a, b in spans))
    return inside, case.rows[DATA]
