"""Server-sent events of one viewer: what changed on the page since the last look.

The id of an event says up to where each log was read, so a page that lost its connection goes on from there, also with another
watcher. Each viewer has a reader of its own: one that is slow, or gone, has no effect on others.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event as Flag
from typing import Any

from flatout.base.errors import StoreError
from flatout.base.html import part_html
from flatout.base.tree import Doc
from flatout.reporting.live.news import CurveNews
from flatout.reporting.live.now import Now
from flatout.reporting.live.pages import NOW, LivePage, cursor_of, id_of
from flatout.reporting.live.tail import LogTail
from flatout.reporting.live.watched import WatchedRun

EVERY_S = 1.0
_SLOWEST = 5  # times EVERY_S, where a look at many busy runs would otherwise take more than
_SHARE = 0.005  # of a core, of all viewers together
_ALIVE_S = 15.0  # so that a viewer who is gone is noticed
_REST = 20.0  # a page that took a second to make is not made again for 20: the machine is there to train
_LEAST_REST_S = 2.0
_RETRY_MS = 2000


class LiveView:
    """What a stream is about. `runs`: those on the page, `drawn`: those with curves, `make`: the page as a whole."""

    def __init__(
        self,
        runs: Callable[[], Sequence[WatchedRun]],
        drawn: Callable[[Sequence[WatchedRun]], Sequence[WatchedRun]],
        make: Callable[[Sequence[WatchedRun]], LivePage],
        now: Callable[[Sequence[WatchedRun], Mapping[str, Now]], Doc],
        why_empty: Callable[[Sequence[WatchedRun]], str],
    ) -> None:
        self.runs, self.drawn, self.make, self.now, self.why_empty = runs, drawn, make, now, why_empty


class LiveStream:
    """`after`: the id of the last event that the page got; empty if it has nothing."""

    def __init__(self, view: LiveView, after: str) -> None:
        self._view = view
        self._had = {one: (int(end), bool(trains)) for one, end, trains in re.findall(r"([0-9a-f]{8}):(\d{1,15})(t?)", after)}
        self._training: frozenset[str] = frozenset()
        self._tails: dict[str, LogTail] = {}
        self._nows: dict[str, Now] = {}
        self._state: object = None
        self._is_stale = not after
        self._not_before_s = self._spoke_s = 0.0
        self._last: dict[str, Any] = {}
        self._said = ""

    def messages(self, ended: Flag, viewers: Callable[[], int], why_ended: Callable[[], str]) -> Iterator[bytes]:
        yield f"retry: {_RETRY_MS}\n\n".encode()
        while not ended.is_set():
            began_s, began_cpu_s = time.monotonic(), time.thread_time()
            for message in self._look():
                self._spoke_s = began_s
                yield message
            if began_s - self._spoke_s >= _ALIVE_S:
                self._spoke_s = began_s
                yield b": alive\n\n"
            affordable_s = viewers() * (time.thread_time() - began_cpu_s) / _SHARE
            apart_s = min(max(EVERY_S, affordable_s), _SLOWEST * EVERY_S)
            ended.wait(max(EVERY_S / 5, apart_s - (time.monotonic() - began_s)))
        self._not_before_s = 0.0
        yield from self._look()
        yield self._message("bye", {"words": why_ended()})

    def _look(self) -> Iterator[bytes]:
        runs = self._view.runs()
        drawn = self._view.drawn(runs)
        if (why := self._view.why_empty(runs)) != self._said:
            self._said = why
            yield self._message("said", {"words": why})
        if why:
            self._is_stale = True  # once it is back, all is read again
            return
        self._follow(runs, drawn)
        news: dict[str, Any] = {}
        for run in drawn:
            found = self._news(run)
            if found is not None and found:
                news[id_of(run.name)] = found.data()
        if self._is_stale and time.monotonic() >= self._not_before_s:
            yield from self._whole(runs)
            return
        now = self._changed(NOW, part_html(self._view.now(runs, self._nows)))
        if news or now:
            yield self._message("points", {"parts": now, "news": news})

    def _follow(self, runs: Sequence[WatchedRun], drawn: Sequence[WatchedRun]) -> None:
        state = [(run.name, run.is_running, run.has_begun if run.is_running else run.status) for run in drawn]
        if state == self._state:
            return
        if self._state is not None:
            self._is_stale = True
        elif {id_of(run.name): run.is_running for run in drawn} == {one: trains for one, (_, trains) in self._had.items()}:
            for run in drawn:
                self._tails[run.name] = LogTail(run.folder.events_path, self._had[id_of(run.name)][0])
                self._nows[run.name] = Now.from_edges(run.folder.events_path)
        else:
            self._is_stale = True
        self._state, self._training = state, frozenset(run.name for run in drawn if run.is_running)

    def _news(self, run: WatchedRun) -> CurveNews | None:
        tail = self._tails.get(run.name)
        if tail is None:
            self._is_stale = True
            return None
        try:
            events = tail.read()
        except OSError:
            events = None
        if events is None:
            self._is_stale = True
            return None
        news = CurveNews()
        news.hear(events)
        self._is_stale |= news.changes_the_page
        self._nows[run.name].hear(events)
        return news

    def _whole(self, runs: Sequence[WatchedRun]) -> Iterator[bytes]:
        began_s = time.monotonic()
        try:
            page = self._view.make(runs)
        except StoreError as error:  # it vanished meanwhile
            self._said = str(error)
            yield self._message("said", {"words": self._said})
            self._not_before_s = time.monotonic() + _LEAST_REST_S
            return
        self._is_stale = False
        drawn = {run.name: run for run in self._view.drawn(runs)}
        self._tails = {name: LogTail(drawn[name].folder.events_path, end) for name, end in page.ends.items() if name in drawn}
        self._nows = dict(page.nows)
        self._last = page.parts()
        yield self._message("whole", {"parts": self._last, "curves": page.charts.data})
        ended_s = time.monotonic()
        self._not_before_s = ended_s + max(_LEAST_REST_S, _REST * (ended_s - began_s))

    def _changed(self, name: str, html: str) -> dict[str, str]:
        if self._last.get(name) == html:
            return {}
        self._last[name] = html
        return {name: html}

    def _message(self, kind: str, data: Mapping[str, Any]) -> bytes:
        ends = cursor_of({name: tail.offset for name, tail in self._tails.items()}, self._training)
        content = json.dumps(data, separators=(",", ":"), allow_nan=False)
        return f"event: {kind}\nid: {ends}\ndata: {content}\n\n".encode()
