"""Decisions that depend on a clock, a disk or signals, made once for all processes.

Processes agree at log points, which are at the same step on every process. In between the clock stands still, so that
everything that depends on time is the same on all: learning rates, budgets, the next log point.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout.base.errors import Stopped
from flatout.engine.one_process import Together
from flatout.engine.progress import Progress
from flatout.engine.signals import StopRequest
from flatout.world.watch import NoWatch
from flatout.world.world import World

if TYPE_CHECKING:
    from flatout.world.watch.watch import RankWatch

HEAR_EVERY_S = 0.5
_met = itertools.count()  # a process may train several times with the same store


class AmongSeveral(Together):
    """For several processes: clock and saving as the first one decided at the last log point. Signals to any one reach all."""

    def __init__(self, world: World, stop: StopRequest, watch: RankWatch | NoWatch | None = None) -> None:
        super().__init__(world, StopRequest(), watch)  # what all agreed on
        self._own = stop
        self._now_s = world.from_first(time.monotonic())
        self._save = False
        self._key, self._listened_s = f"asked to stop/{next(_met)}", time.monotonic()
        self._said = self._heard = False

    def clock(self) -> float:
        return self._now_s

    def meet(self, wants_save: Callable[[Progress], bool], progress: Progress) -> None:
        """A signal after another process ended comes from the launcher: then saving together is impossible."""
        self.watch.beat(progress.step, "exchange")
        if self._own and (missing := self.watch.missing()):
            gone = f"rank{'' if len(missing) == 1 else 's'} {', '.join(map(str, missing))}"
            why = f"{self._own.signal_name} after {gone} ended: stopped without saving, the last checkpoint is unchanged"
            raise Stopped(str(self._own.signal_name), self._own.exit_code, why)
        said: list[dict[str, Any]] = self.world.gather(
            {"stop": self._own.signal_name, "now": time.monotonic(), "save": self.world.is_first and wants_save(progress)}
        )
        self._now_s, self._save = said[0]["now"], said[0]["save"]
        signals = [one["stop"] for one in said if one["stop"]]
        if signals:
            self.stop.signal_name = signals[0]

    def hears_stop(self) -> bool:
        """This process's own signal at once, that of another one a moment later, through the store."""
        if self._own and not self._said:
            self.world.store.set(self._key, "yes")
            self._said = self._heard = True
        now_s = time.monotonic()
        if not self._heard and now_s - self._listened_s >= HEAR_EVERY_S:
            self._listened_s, self._heard = now_s, bool(self.world.store.check([self._key]))
        return self._heard

    def save_due(self, wants_save: Callable[[Progress], bool], progress: Progress) -> bool:
        due, self._save = self._save, False
        return due
