"""A run as it goes: a live line on a terminal, plain lines where there is none. Both only read events."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from flatout.base.events import Event, Observer
from flatout.base.units import show_bytes, show_count, show_rate, show_seconds

_PLAIN_EVERY_S = 2.0


class View:
    """Turns events into words; subclasses of nothing, shown by one of the two below."""

    def __init__(self) -> None:
        self.about: Event = {}

    def step_line(self, event: Event) -> str:
        parts = [f"step {event['step']}"]
        if event.get("loss") is not None:
            parts.append(f"loss {event['loss']:.4f}")
        parts.append(show_rate(event["samples_per_s"] * self.about.get("per_sample", 1), self.about.get("unit", "samples")))
        flops, ceiling = self.about.get("flops_per_sample"), self.about.get("ceiling_flops")
        if flops and ceiling:
            share = event["samples_per_s"] * flops / ceiling
            parts.append(f"{share:.1%} of ceiling" if share < 0.1 else f"{share:.0%} of ceiling")
        parts.append(show_bytes(event["memory_bytes"]))
        if event.get("power_w") is not None:
            parts.append(f"{event['power_w']:.0f} W")
        if event.get("skipped"):
            parts.append(f"{event['skipped']} steps skipped")
        return " · ".join(parts)

    def notice(self, event: Event) -> str | None:
        """A line that stays, for what happens seldom."""
        kind = event["kind"]
        if kind == "planned":
            self.about = event
            return f"run {event['run']}: {event['model']} on {event['machine']}"
        if kind == "resumed":
            return f"resumed at step {event['step']} ({show_count(event['samples'])} samples)"
        if kind == "evaluation":
            metrics = ", ".join(f"{name} {value:.4f}" for name, value in event["metrics"].items())
            return f"step {event['step']}: {metrics}{' (best)' if event.get('best') else ''}"
        if kind == "degraded":
            return f"degraded: {event['what']}: {event['why']}"
        if kind == "nonfinite":
            return f"step {event['step']}: {event['skipped']} steps with a loss that is not finite were skipped"
        if kind == "rolled_back":
            return f"rolled back to step {event['step']} at {event['rate_factor']:g} of the rate: {event['why']}"
        if kind in ("checkpoint_failed", "checkpoint_refused", "checkpoint_damaged"):
            return f"{kind.replace('_', ' ')} (step {event['step']}): {event['why']}"
        return None


class LiveLine:
    """For a terminal: one line that moves, notices above it."""

    def __init__(self, console: Console) -> None:
        self._view = View()
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}"), console=console, transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task("starting", total=1.0, left="")
        self._progress.start()

    def __call__(self, event: Event) -> None:
        if (line := self._view.notice(event)) is not None:
            self._progress.console.print(line, highlight=False)
        if event["kind"] == "step":
            self._progress.update(
                self._task, description=self._view.step_line(event), completed=event["done"], left=time_left(event)
            )
        if event["kind"] in ("finished", "stopped", "failed"):
            self._progress.stop()


class PlainLines:
    """For a log file: a line now and then."""

    def __init__(self) -> None:
        self._view = View()
        self._last_s = -_PLAIN_EVERY_S

    def __call__(self, event: Event) -> None:
        if (line := self._view.notice(event)) is not None:
            self._print(line)
        now_s = time.monotonic()
        if event["kind"] == "step" and (now_s - self._last_s >= _PLAIN_EVERY_S or event["done"] >= 1):
            self._last_s = now_s
            self._print(f"{event['done']:4.0%}  {self._view.step_line(event)}{time_left(event)}")

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def time_left(event: Event) -> str:
    done: Any = event["done"]
    if not 0 < done < 1:
        return ""
    return f" · {show_seconds(event['elapsed_s'] * (1 - done) / done)} left"


def progress_view(quiet: bool = False) -> tuple[Observer, ...]:
    """What is printed while a run goes, always to stderr: stdout is for results."""
    if quiet:
        return ()
    console = Console(stderr=True)
    return (LiveLine(console),) if console.is_terminal else (PlainLines(),)
