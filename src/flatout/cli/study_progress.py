"""Progress of a study: a live table on a terminal, a line for each rung elsewhere. Both only read events."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from flatout.base.events import Event, Observer
from flatout.base.units import show_metric, show_rate, show_seconds


@contextmanager
def study_progress(quiet: bool) -> Iterator[tuple[Observer, ...]]:
    """On stderr, since stdout is for the result."""
    console = Console(stderr=True)
    if quiet:
        yield ()
    elif console.is_terminal:
        view = _LiveTable(console)
        with view.live:
            yield (view,)
    else:
        yield (_lines,)


def _lines(event: Event) -> None:
    if (line := _line(event)) is not None:
        print(line, file=sys.stderr, flush=True)


def _line(event: Event) -> str | None:
    if event["kind"] == "layout":
        layout = event["layout"]
        return f"{event['trials']} trials {layout['kind']}: {layout['why']}"
    if event["kind"] == "rung":
        scores = _scores(event)
        best = f", scores {show_metric(scores[0])} to {show_metric(scores[-1])}" if scores else ""
        failed = f", {len(event['failed'])} failed" if event["failed"] else ""
        return (
            f"{len(event['trials'])} trials to step {event['to']}: {show_seconds(event['seconds'])}{best}{failed}; "
            f"{show_seconds(event['spent']['seconds'])} so far"
        )
    if event["kind"] == "finals":
        return f"{len(event['scores'])} trainings with fresh seeds, scored on the rows that {event['which']}"
    return None


def _scores(event: Mapping[str, Any]) -> list[float]:
    return sorted(score for score in event["scores"].values() if score is not None)


class _LiveTable:
    def __init__(self, console: Console) -> None:
        self.live = Live(console=console, get_renderable=self._table, refresh_per_second=4, transient=True)
        self._began_s = time.monotonic()
        self._rungs: list[Mapping[str, Any]] = []
        self._layouts: list[str] = []
        self._trials: set[int] = set()
        self._state = "measuring how trials are trained fastest"

    def __call__(self, event: Event) -> None:
        if event["kind"] == "layout":
            self._layouts.append(f"{event['layout']['kind']}: {event['layout']['why']}")
            self._state = "training"
        elif event["kind"] == "rung":
            self._rungs.append(event)
            self._trials |= {number for number, _ in event["trials"]}
        elif event["kind"] == "finals":
            self._state = "training the best again with fresh seeds"

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, title_justify="left", header_style="dim")
        table.title = f"{self._state} · {len(self._trials)} trials · {show_seconds(time.monotonic() - self._began_s)}"
        for name in ("to step", "trials", "best", "median", "worst", "failed", "rate"):
            table.add_column(name, justify="right")
        for rung in self._rungs[-8:]:
            scores = _scores(rung)
            shown = [show_metric(one) for one in (scores[-1], scores[len(scores) // 2], scores[0])] if scores else ["", "", ""]
            rate = show_rate(len(rung["trials"]) * rung["to"] / max(rung["training_s"], 1e-9), "trial-steps")
            table.add_row(str(rung["to"]), str(len(rung["trials"])), *shown, str(len(rung["failed"]) or ""), rate)
        for line in self._layouts[-2:]:
            table.caption = line
        return table
