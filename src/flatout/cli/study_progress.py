"""Progress of a study: a live table on a terminal, a line for each rung elsewhere. Both only read events."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from flatout.base.events import Event, Observer
from flatout.base.units import show_metric, show_rate, show_seconds
from flatout.cli.study_state import StudyState

_RUNGS = 6  # the latest, in the table


@contextmanager
def study_progress(quiet: bool) -> Iterator[tuple[Observer, ...]]:
    """On stderr, since stdout is for the result."""
    console = Console(stderr=True)
    if quiet:
        yield ()
    elif console.is_terminal:
        view = LiveStudy(console)
        with view.live:
            yield (view,)
    else:
        yield (_Lines(),)


class _Lines:
    def __init__(self) -> None:
        self._state = StudyState()

    def __call__(self, event: Event) -> None:
        self._state.hear(event)
        if (line := rung_line(self._state, event)) is not None:
            print(line, file=sys.stderr, flush=True)


def rung_line(state: StudyState, event: Mapping[str, Any]) -> str | None:
    """What a person wants to know of this event; None for most."""
    if event["kind"] == "layout":
        layout = event["layout"]
        return f"{_trials(event['trials'])} {layout['kind']}: {layout['why']}"
    if event["kind"] == "rung":
        scores = state.best_first(event)
        count, failed = len(event["trials"]), len(event["failed"])
        best = "" if not scores else f", {state.metric} {show_metric(scores[0])}"
        if len(scores) > 1:
            best += f" to {show_metric(scores[-1])}"
        return (
            f"{_trials(count)} to step {event['to']:,} in {show_seconds(event['seconds'])}{best}"
            f"{f', {failed} failed' if failed else ''}; {show_seconds(event['spent']['seconds'])} so far"
        )
    if event["kind"] == "finals":
        purpose = "to choose the winner" if event["which"] == "choose" else "to judge it, on rows that chose nothing"
        return f"{len(event['scores'])} trainings with fresh seeds {purpose}"
    return None


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"


class LiveStudy:
    def __init__(self, console: Console) -> None:
        self._state = StudyState()
        self._spinner = Spinner("dots")
        self.live = Live(console=console, get_renderable=self.shown, refresh_per_second=8, transient=True)

    def __call__(self, event: Event) -> None:
        self._state.hear(event)

    def shown(self) -> RenderableType:
        state = self._state
        self._spinner.update(text=Text(f"{state.doing} · {state.time_line()}", no_wrap=True, overflow="ellipsis"))
        lines = [f"best so far: {state.best_line()}"] if state.best is not None else []
        if state.rungs:
            lines.append(state.trials_line())
        elif state.why:
            lines.append(state.why)
        if state.rate:
            lines.append(f"speed: {show_rate(state.rate, 'trial-steps')}{f', {state.layout}' if state.layout else ''}")
        texts = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
        return Group(self._spinner, *texts, *([self._table()] if state.rungs else []))

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("to step", "trials", "best", "median", "worst", "failed", "took"):
            table.add_column(name, justify="right", no_wrap=True)
        for rung in self._state.rungs[-_RUNGS:]:
            scores = self._state.best_first(rung)
            shown = [show_metric(one) for one in (scores[0], scores[len(scores) // 2], scores[-1])] if scores else ["", "", ""]
            failed = str(len(rung["failed"]) or "")
            table.add_row(f"{rung['to']:,}", str(len(rung["trials"])), *shown, failed, show_seconds(rung["seconds"]))
        return table
