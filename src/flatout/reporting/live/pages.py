"""What a live page shows of one run, and of all runs of a folder."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from flatout.base.errors import StoreError
from flatout.base.html import part_html, to_live_html
from flatout.base.tree import Cell, Charts, Doc, Node, Table, TableColumn, TextLine
from flatout.base.units import show_rate
from flatout.reporting.charts import charts_of
from flatout.reporting.live.address import url_of
from flatout.reporting.live.now import Now, shown
from flatout.reporting.live.watched import WatchedRun
from flatout.reporting.page import at_first_glance, below_the_curves, what_is_missing
from flatout.reporting.story import RunStory, read_story
from flatout.runs.scores import overall

MOST_DRAWN = 50  # runs whose curves are drawn
_ENDED_DRAWN = 12  # of which this many have ended
_ROWS = 60
_TROUBLES = 20
_NO_CURVES = Charts({"charts": [], "runs": [], "marks": [], "note": ""}, ())
NOW, GLANCE, BELOW = "now", "glance", "below"


def id_of(name: str) -> str:
    """A short name of a run, for news of it."""
    return f"{zlib.crc32(name.encode()):08x}"


def cursor_of(ends: Mapping[str, int], training: Set[str]) -> str:
    """Up to where the log of each run is on a page, and which of them were training then."""
    return ",".join(f"{id_of(name)}:{end}{'t' if name in training else ''}" for name, end in ends.items())


@dataclass(frozen=True)
class LivePage:
    """`ends`: by the name of a run, up to where its log is on the page; `nows`: what its newest events say."""

    title: str
    before: Mapping[str, Doc]
    charts: Charts
    after: Mapping[str, Doc]
    ends: Mapping[str, int]
    nows: Mapping[str, Now]
    training: Set[str]

    def html(self) -> str:
        cursor = cursor_of(self.ends, self.training)
        charts = Charts({**self.charts.data, "cursor": cursor}, self.charts.pictures)
        return to_live_html(self.before, charts, self.after, self.title)

    def parts(self) -> dict[str, str]:
        return {name: part_html(doc) for name, doc in {**self.before, **self.after}.items()}


def page_of_run(run: WatchedRun, *, is_one_of_many: bool) -> LivePage:
    story = read_story(run.folder)
    charts, missing = charts_of([story], [id_of(run.name)])
    now = Now.of(story.log)
    glance: list[Node] = [TextLine("All runs", link="/")] if is_one_of_many else []
    if not run.is_running:
        glance += at_first_glance(story)
    if run.has_begun:  # what is missing in the first moments of a run is still being written
        glance += what_is_missing(story, missing)
    below = below_the_curves(story) if run.has_begun else []
    before = {GLANCE: Doc(tuple(glance)), NOW: now.doc() if run.is_running else Doc()}
    after, ends = {BELOW: Doc(tuple(below))}, {run.name: story.log.end}
    return LivePage(story.name, before, charts or _NO_CURVES, after, ends, {run.name: now}, training_of([run]))


def drawn_runs(runs: Sequence[WatchedRun]) -> list[WatchedRun]:
    """The newest that train, and a few that have ended."""
    readable = [run for run in runs if run.status not in ("gone", "damaged")]
    training = [run for run in readable if run.is_running][-MOST_DRAWN:]
    ended = [run for run in readable if not run.is_running]
    room = max(0, _ENDED_DRAWN - len(training))
    return [*(ended[-room:] if room else []), *training]


def page_of_folder(title: str, runs: Sequence[WatchedRun]) -> LivePage:
    stories: list[tuple[WatchedRun, RunStory]] = []
    troubles = [f"{run.name}: {run.why}" for run in runs if run.why]
    for run in drawn_runs(runs):
        try:
            stories.append((run, read_story(run.folder)))
        except StoreError as error:  # it vanished meanwhile
            troubles.append(f"{run.name}: {error}")
    charts, missing = (
        charts_of([story for _, story in stories], [id_of(run.name) for run, _ in stories]) if stories else (None, [])
    )
    nows = {run.name: Now.of(story.log) for run, story in stories}
    below = (
        [TextLine("Not all could be read", strong=True), *map(TextLine, troubles[:20] + missing[:20])]
        if troubles + missing
        else []
    )
    ends = {run.name: story.log.end for run, story in stories}
    before = {NOW: folder_now(runs, nows)}
    return LivePage(title, before, charts or _NO_CURVES, {BELOW: Doc(tuple(below))}, ends, nows, training_of(runs))


def training_of(runs: Iterable[WatchedRun]) -> frozenset[str]:
    return frozenset(run.name for run in runs if run.is_running)


_COLUMNS = (
    TableColumn("run", "run"),
    TableColumn("status", "status"),
    TableColumn("step", "step", right=True),
    TableColumn("done", "done", right=True),
    TableColumn("left", "time left", right=True),
    TableColumn("loss", "loss, training", right=True),
    TableColumn("scores", "validation"),
    TableColumn("speed", "speed", right=True),
)


def folder_now(runs: Sequence[WatchedRun], nows: Mapping[str, Now]) -> Doc:
    """What trains first, then the newest."""
    training = [run for run in runs if run.is_running]
    ordered = [*reversed(training), *(run for run in reversed(runs) if not run.is_running)]
    words = f"{len(training):,} of {len(runs):,} runs are training." if runs else "No run here yet: flatout run recipe.yaml"
    rows = [_row(run, nows.get(run.name)) for run in ordered[:_ROWS]]
    more = len(ordered) - len(rows)
    nodes: list[Node] = [TextLine(words), Table("runs", _COLUMNS, rows)]
    if more:
        nodes.append(TextLine(f"{more:,} older runs are not shown: flatout runs lists all"))
    return Doc(tuple(nodes))


def _row(run: WatchedRun, now: Now | None) -> dict[str, Any]:
    named = Cell(run.name, run.name, url_of(run.name))
    if run.is_running and now is not None:
        step = now.step.get("step")
        return {
            "run": named, "status": "training", "step": Cell(step, f"{step:,}") if isinstance(step, int) else None,
            "done": now.share, "left": now.left, "loss": now.loss, "speed": now.speed,
            "scores": ", ".join(f"{name} {value}" for name, value in now.scores.items()),
        }  # fmt: skip
    steps, rate = run.result.get("steps"), run.result.get("tokens_per_s") or run.result.get("samples_per_s")
    metrics = run.result.get("metrics") or {}
    unit = "tokens" if run.result.get("tokens_per_s") else "samples"
    scores = {name: value for name, value in overall(metrics).items() if name != "train_loss" and value is not None}
    loss = metrics.get("train_loss")
    return {
        "run": named, "status": run.status, "step": Cell(steps, f"{steps:,}") if isinstance(steps, int) else None,
        "loss": None if loss is None else shown(loss), "speed": show_rate(rate, unit) if rate else None,
        "scores": ", ".join(f"{name} {shown(value)}" for name, value in list(scores.items())[:4]),
    }  # fmt: skip
