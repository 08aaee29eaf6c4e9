"""What a run does at the moment, from its newest events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from flatout.base.events import Event
from flatout.base.tree import Doc, Figure, Figures
from flatout.base.units import show_bytes, show_metric, show_rate, show_seconds, show_share
from flatout.measure.time_left import TimeLeft
from flatout.reporting.live.tail import edges
from flatout.reporting.log_scan import LogScan
from flatout.runs.scores import overall

_RECENT = 64  # log points that say how fast a run is
_MOST_METRICS = 4
_NOTHING: Event = {}


class Now:
    """Call `hear` with the events of a run in order. Of log points in a row it needs only the last."""

    def __init__(self) -> None:
        self.about: Event = {}
        self.step: Event = {}
        self.metrics: Mapping[str, Any] = {}
        self._total: int | None = None
        self._left = TimeLeft()

    @classmethod
    def of(cls, log: LogScan) -> Now:
        """From a whole log, without reading all of its steps."""
        now = cls()
        recent = log.exact(list(range(max(0, log.count - _RECENT), log.count)))
        steps = [(place + 1, event) for place, event in recent.items()]
        for _, event in sorted([*steps, *log.others], key=lambda pair: pair[0]):
            now._hear(event)
        return now

    @classmethod
    def from_edges(cls, path: Path) -> Now:
        """From the beginning and the end of a log, for a page that has the rest."""
        now = cls()
        for event in edges(path):
            now._hear(event)
        return now

    def hear(self, events: Sequence[Event]) -> None:
        for event, following in zip_longest(events, events[1:], fillvalue=_NOTHING):
            if event.get("kind") != "step" or following.get("kind") != "step":
                self._hear(event)

    def _hear(self, event: Event) -> None:
        kind = event.get("kind")
        try:
            self._left(event)
        except (KeyError, TypeError, ValueError):
            self._left = TimeLeft()  # written by another version: the time left is not known then
        if kind == "planned":
            self.about = event
        elif kind == "step":
            self.step = event
        elif kind == "evaluation":
            self.metrics = event.get("metrics") or {}
        elif kind in ("started", "resumed"):
            self._total = event.get("total_steps", self._total)

    @property
    def share(self) -> str:
        done = self.step.get("done")
        return f"{min(done, 1.0):.0%}" if isinstance(done, int | float) and math.isfinite(done) else ""

    @property
    def left(self) -> str:
        seconds = self._left.seconds
        if seconds is None or self.step.get("done") == 1:
            return ""
        return f"{'at most ' if self._left.may_end_early else ''}{show_seconds(seconds)}"

    @property
    def speed(self) -> str:
        rate = self.step.get("tokens_per_s") or self.step.get("samples_per_s")
        unit = "tokens" if self.step.get("tokens_per_s") else "samples"
        return show_rate(rate, unit) if isinstance(rate, int | float) and math.isfinite(rate) else ""

    @property
    def loss(self) -> str:
        return shown(self.step.get("loss")) if self.step else ""

    @property
    def scores(self) -> dict[str, str]:
        return {name: shown(value) for name, value in list(overall(self.metrics).items())[:_MOST_METRICS]}

    def doc(self) -> Doc:
        """The figures at the top of a run that trains."""
        step = self.step.get("step")
        of = f"of {self._total:,}" if isinstance(self._total, int) else ""
        figures = [Figure("status", "training", self._processes())]
        if isinstance(step, int):
            figures.append(Figure("step", f"{step:,}", ", ".join(part for part in (of, self.share) if part)))
            figures.append(Figure("loss, training", self.loss))
        for name, value in self.scores.items():
            figures.append(Figure("loss, validation" if name == "loss" else name, value))
        if self.left:
            figures.append(Figure("time left", self.left))
        if self.speed:
            figures.append(Figure("speed", self.speed, self._of_the_machine()))
        if isinstance(size := self.step.get("memory_bytes"), int | float) and size > 0:
            figures.append(Figure("peak memory", show_bytes(size)))
        if isinstance(power := self.step.get("power_w"), int | float):
            figures.append(Figure("power", f"{power:.0f} W"))
        return Doc((Figures(figures),))

    def _processes(self) -> str:
        count, mesh = self.about.get("processes"), self.about.get("mesh")
        return "" if not isinstance(count, int) else f"{count} processes{f', {mesh}' if mesh else ''}"

    def _of_the_machine(self) -> str:
        flops, ceiling = self.about.get("flops_per_sample"), self.about.get("ceiling_flops")
        rate = self.step.get("samples_per_s")
        return f"{show_share(rate * flops / ceiling)} of the machine's peak" if flops and ceiling and rate else ""


def shown(value: Any) -> str:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "not finite"
    return show_metric(value)
