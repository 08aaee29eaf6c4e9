"""The watch over the processes of a run: which one hangs, is slow, has failed or is gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from flatout.base.errors import PeerLost, Stopped, TrainingError
from flatout.base.events import EventLog
from flatout.runs.record import status_of
from flatout.world.watch import Failed, Lost, News, NoWatch, StoreLost
from flatout.world.watch.watch import RankWatch
from flatout.world.world import World


def watch_over(world: World, events: EventLog, keep_end: Callable[[str, str], None]) -> RankWatch:
    """Ends this process if the run can't continue. `keep_end` gets the run's status and the reason."""

    def on_news(news: News) -> None:
        if isinstance(news, Failed | Lost | StoreLost):
            events.emit("failed", error=news.words())
            keep_end(status_of(news), news.short())
            if news.mine:
                _say_aloud(news.words())
            os._exit(TrainingError.exit_code)  # the main thread may wait forever for a process that is gone
        events.emit("degraded", what=news.kind, why=news.words())
        if not world.is_first:  # the first process has the events, which people see
            _say_aloud(news.words())

    return RankWatch(world.store, world.rank, world.size, on_news)


def _say_aloud(words: str) -> None:
    sys.stderr.write(f"flatout: {words}\n")
    sys.stderr.flush()


def cause_of(watch: RankWatch | NoWatch, world: World, ended: BaseException) -> BaseException:
    """The error that ended the run: another process may have failed first."""
    if isinstance(ended, Stopped | KeyboardInterrupt | SystemExit):
        return ended
    cause = watch.fail(ended)
    if isinstance(cause, Failed) and cause.rank == world.rank:
        return ended
    return PeerLost(cause.words())
