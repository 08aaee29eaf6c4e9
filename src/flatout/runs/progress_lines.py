"""Lines that show the progress of a run: one that is updated, for a terminal, or plain ones. They only read events."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from flatout.base.events import Event
from flatout.base.units import show_bytes, show_count, show_metric, show_rate, show_seconds, show_share
from flatout.measure.time_left import TimeLeft
from flatout.runs.scores import overall

_PLAIN_EVERY_S = 2.0
_BAR_COLUMNS, _BAR_FROM_COLUMNS = 20, 110


class View:
    """Turns events into text, shown by one of the two classes below."""

    def __init__(self) -> None:
        self.about: Event = {}

    def step_parts(self, event: Event) -> list[str]:
        """Most important first: a narrow terminal shows as many as fit."""
        parts = [f"step {event['step']}"]
        if event.get("loss") is not None:
            parts.append(f"loss {show_metric(event['loss'])}")
        parts.append(show_rate(event["samples_per_s"] * self.about.get("per_sample", 1), self.about.get("unit", "samples")))
        if event.get("skipped"):
            parts.append(f"{event['skipped']} steps skipped")
        flops, ceiling = self.about.get("flops_per_sample"), self.about.get("ceiling_flops")
        if flops and ceiling:
            parts.append(f"{show_share(event['samples_per_s'] * flops / ceiling)} of ceiling")
        parts.append(show_bytes(event["memory_bytes"]))
        if event.get("power_w") is not None:
            parts.append(f"{event['power_w']:.0f} W")
        return parts

    def notice(self, event: Event) -> str | None:
        """A line that stays on the screen, for rare events."""
        kind = event["kind"]
        if kind == "planned":
            self.about = event
            return f"run {event['run']}: {event['model']} on {event['machine']}"
        if kind == "compiled":
            return f"step {event['step']}: compiled in {show_seconds(event['seconds'])}"
        if kind == "rate_found":
            return f"learning rate {event['lr']:.3g}, found in {show_seconds(event['seconds'])}: {event['why']}"
        if kind == "planning":
            return str(event["line"])
        if kind == "resumed":
            return f"resumed at step {event['step']} ({show_count(event['samples'])} samples)"
        if kind == "evaluation":
            metrics = ", ".join(f"{name} {show_metric(value)}" for name, value in overall(event["metrics"]).items())
            return f"step {event['step']}: {metrics}{' (best)' if event.get('best') else ''}"
        if kind == "unfroze":
            return f"step {event['step']}: {event['weights']:,} weights that were frozen start to train"
        if kind == "degraded":
            return f"degraded: {event['what']}: {event['why']}"
        if kind == "nonfinite":
            return f"step {event['step']}: skipped {event['skipped']} steps whose loss was not finite"
        if kind == "rolled_back":
            return f"rolled back to step {event['step']}, learning rate times {event['rate_factor']:g}: {event['why']}"
        if kind in ("checkpoint_failed", "checkpoint_refused", "checkpoint_damaged"):
            return f"{kind.replace('_', ' ')} (step {event['step']}): {event['why']}"
        return None


class LiveLine:
    """For a terminal: one line that is updated, with notices above it."""

    def __init__(self, console: Console) -> None:
        self._view, self._left = View(), TimeLeft()
        wide = console.width >= _BAR_FROM_COLUMNS
        self._room = console.width - (_BAR_COLUMNS + 1 if wide else 0) - len("100%  ")
        bar = [BarColumn(bar_width=_BAR_COLUMNS)] if wide else []
        self._progress = Progress(
            TextColumn("{task.percentage:>3.0f}%"), *bar, TextColumn("{task.description}"), console=console, transient=True
        )
        self._task = self._progress.add_task("planning", total=1.0)
        self._progress.start()

    def __call__(self, event: Event) -> None:
        self._left(event)
        if (line := self._view.notice(event)) is not None:
            self._progress.console.print(line, highlight=False, markup=False)
        if event["kind"] == "step":
            left = time_left(self._left)
            shown = fitting(self._view.step_parts(event), self._room - len(left)) + left
            self._progress.update(self._task, description=escape(shown), completed=event["done"])

    def close(self) -> None:
        self._progress.stop()


class PlainLines:
    """For a log file: a line from time to time."""

    def __init__(self) -> None:
        self._view, self._left = View(), TimeLeft()
        self._last_s = -_PLAIN_EVERY_S

    def __call__(self, event: Event) -> None:
        self._left(event)
        if (line := self._view.notice(event)) is not None:
            self._print(line)
        now_s = time.monotonic()
        if event["kind"] == "step" and (now_s - self._last_s >= _PLAIN_EVERY_S or event["done"] >= 1):
            self._last_s = now_s
            self._print(f"{event['done']:4.0%}  {fitting(self._view.step_parts(event))}{time_left(self._left)}")

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def time_left(left: TimeLeft) -> str:
    if left.seconds is None:
        return ""
    return f" · {'at most ' if left.may_end_early else ''}{show_seconds(left.seconds)} left"


def fitting(parts: Sequence[str], columns: int | None = None) -> str:
    """As many of the parts as fit, at least the first."""
    line = parts[0]
    for part in parts[1:]:
        longer = f"{line} · {part}"
        if columns is not None and len(longer) > columns:
            break
        line = longer
    return line
