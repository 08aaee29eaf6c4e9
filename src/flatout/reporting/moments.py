"""What happened in a run besides steps: rollbacks, degraded settings, stops. On its time axis, and as a table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flatout.base.events import Event
from flatout.base.svg import Plot, bar, line, linear, picture, text
from flatout.base.tree import Cell, Node, Picture, Table, TableColumn, TextLine
from flatout.base.units import show_seconds
from flatout.reporting.story import RunStory

_SHOWN = 12  # rows; more are folded
_MARKED = 200  # on the curves
_LONGEST = 300  # characters of a reason in the table
_PLOT = Plot(960, 104, left=12, right=12, top=24, bottom=42)
_ORDINARY = ("started", "resumed", "finished", "compiled", "rate_found", "unfroze")
_COLUMNS = (
    TableColumn("at", "time", right=True),
    TableColumn("step", "step", right=True),
    TableColumn("what", "what"),
    TableColumn("why", ""),
)


@dataclass(frozen=True)
class Moment:
    """`at_s`: wall time since the run began; None: the event does not say."""

    kind: str
    at_s: float | None
    step: int | None
    words: str

    @property
    def is_trouble(self) -> bool:
        return self.kind not in _ORDINARY

    @property
    def named(self) -> str:
        return {"nonfinite": "not finite"}.get(self.kind, self.kind.replace("_", " "))


def moments_of(story: RunStory) -> list[Moment]:
    began = _began(story)
    found = []
    for before, event in story.log.others:
        kind = str(event.get("kind"))
        if (words := _words(kind, event)) is None:
            continue
        step = event.get("step", event.get("steps"))
        if not isinstance(step, int):
            step = int(story.log.numbers["step"][before - 1]) if before else None
        at = event.get("at")
        at_s = max(0.0, at - began) if isinstance(at, int | float) and began is not None else None
        found.append(Moment(kind, at_s, step, words))
    return found


def marks_of(story: RunStory) -> list[dict[str, Any]]:
    """For the curves: only what may explain a change in them."""
    marks: dict[tuple[int, str], dict[str, Any]] = {}
    for moment in moments_of(story):
        if moment.step is None or moment.kind in ("started", "finished", "compiled", "rate_found", "damaged"):
            continue
        words = f"{moment.named}: {moment.words}"
        marks[moment.step, words] = {"step": moment.step, "text": words if len(words) < 90 else f"{words[:87]}..."}
    return list(marks.values())[:_MARKED]


def moment_nodes(story: RunStory, title: str = "What happened", *, only_trouble: bool = False) -> list[Node]:
    """`only_trouble`: nothing about a run in which all went well."""
    moments = moments_of(story)
    if not moments or (only_trouble and not any(moment.is_trouble for moment in moments)):
        return []
    rows = [_row(moment) for moment in moments]
    important = [row for row, moment in zip(rows, moments, strict=True) if moment.is_trouble]
    shown = rows if len(rows) <= _SHOWN else important[:_SHOWN]
    rest = [row for row in rows if row not in shown]
    nodes: list[Node] = [TextLine(title, strong=True)]
    if (drawn := _picture(story, moments)) is not None:
        nodes.append(drawn)
    return [*nodes, Table("events", _COLUMNS, shown, fold=rest, fold_note="more events")]


def _row(moment: Moment) -> dict[str, Any]:
    why = moment.words if len(moment.words) <= _LONGEST else f"{moment.words[:_LONGEST]}..."
    return {
        "at": None if moment.at_s is None else Cell(moment.at_s, show_seconds(moment.at_s)),
        "step": None if moment.step is None else Cell(moment.step, f"{moment.step:,}"),
        "what": moment.named,
        "why": why,
    }


def _words(kind: str, event: Event) -> str | None:
    """None for events that need no row of their own."""
    if kind in ("planned", "evaluation", "checkpoint_saved"):
        return None
    if kind == "started":
        total = event.get("total_steps")
        return f"{total:,} steps to go" if isinstance(total, int) else "until the budget is spent"
    if kind == "resumed":
        return "the run continues from a checkpoint"
    if kind == "rolled_back":
        factor = event.get("rate_factor")
        rate = f"; learning rate times {factor:g}" if isinstance(factor, int | float) and factor != 1 else ""
        return f"from step {event.get('from_step')}{rate}: {event.get('why')}"
    if kind == "nonfinite":
        return f"{event.get('skipped')} steps skipped: loss or gradients were not finite"
    if kind == "degraded":
        return f"{event.get('what')}: {event.get('why')}"
    if kind == "stopped":
        return f"by {event.get('signal')}, {'saved' if event.get('saved') else 'not saved'}"
    if kind == "failed":
        return str(event.get("error"))
    if kind == "finished":
        return str(event.get("reason"))
    if kind == "compiled":
        seconds = event.get("seconds")
        return f"in {show_seconds(seconds)}" if isinstance(seconds, int | float) else ""
    if kind == "unfroze":
        return f"{event.get('tensors')} tensors train from here on"
    if kind == "rate_found":
        return f"{event.get('lr')}: {event.get('why')}"
    if kind == "observer_dropped":
        return f"{event.get('observer')}: {event.get('error')}"
    return str(event.get("why", ""))


def _began(story: RunStory) -> float | None:
    return next((float(at) for event in story.events if isinstance(at := event.get("at"), int | float)), None)


def _sessions(story: RunStory) -> Iterator[tuple[float, float]]:
    """Wall times between which a process trained. A new process starts its monotonic clock again."""
    log = story.log
    starts = [before for before, event in log.others if event.get("kind") == "planned"]
    borders = sorted({before - 1 for before in starts if before} | ({log.count - 1} if log.count else set()))
    steps = [(place + 1, event) for place, event in log.exact(borders).items()]
    began: float | None = None
    ended = clock = 0.0
    for _, event in sorted([*steps, *log.others], key=lambda pair: pair[0]):
        at, t = event.get("at"), event.get("t")
        if not isinstance(at, int | float) or not isinstance(t, int | float):
            continue
        if began is None or event.get("kind") == "planned" or t < clock:
            if began is not None:
                yield began, max(began, ended)
            began = ended = at
        ended, clock = max(ended, at), t
    if began is not None:
        yield began, ended


def _picture(story: RunStory, moments: list[Moment]) -> Picture | None:
    began, sessions = _began(story), list(_sessions(story))
    if began is None or not sessions:
        return None
    last = max(ended for _, ended in sessions) - began
    unit, seconds = ("s", 1.0) if last < 180 else ("minutes", 60.0) if last < 3 * 3600 else ("hours", 3600.0)
    times = linear(0.0, max(last, 1e-3) / seconds, 10)
    middle = (_PLOT.y(0) + _PLOT.y(1)) / 2
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began))
    parts = list(_PLOT.grid(times.ticks, (), f"{unit} since {when} UTC", ""))
    for start, end in sessions:
        left, right = (_PLOT.x(times.at((at - began) / seconds)) for at in (start, end))
        parts.append(bar("p0", left, middle - 7, max(right - left, 1.5), 14))
    free = -1.0
    for moment in moments:
        if moment.at_s is None or moment.kind in ("started", "finished", "compiled", "rate_found"):
            continue
        x = _PLOT.x(times.at(moment.at_s / seconds))
        parts.append(line("cross" if moment.is_trouble else "rung", x, middle - 15, x, middle + 15))
        width = 7.0 * len(moment.named)
        start = min(x - 3, _PLOT.width - width)
        if start > free:
            parts.append(text(start, middle - 21, moment.named))
            free = start + width + 6
    caption = "When the process ran (bar), and what happened." + (" Gaps: no process trained." if len(sessions) > 1 else "")
    return Picture(picture("Time line", _PLOT.width, _PLOT.height, parts), caption)
