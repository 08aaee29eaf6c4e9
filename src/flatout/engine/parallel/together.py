"""What each process would decide by its own clock, disk or signals, decided once for all of them.

They meet at log points, which are at the same step on every process. A clock that stands still in between makes everything
that depends on time the same everywhere: rates, budgets, the next log point.
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
_met = itertools.count()  # a process may train several times, with the same others and the same store


class Among(Together):
    """Of several: as the first one said when they last met. A signal to any one of them is known to all then."""

    def __init__(self, world: World, stop: StopRequest, watch: RankWatch | NoWatch | None = None) -> None:
        super().__init__(world, StopRequest(), watch)  # the agreed one
        self._own = stop
        self._now_s = world.from_first(time.monotonic())
        self._save = False
        self._key, self._listened_s = f"asked to stop/{next(_met)}", time.monotonic()
        self._said = self._heard = False

    def clock(self) -> float:
        return self._now_s

    def meet(self, wants_save: Callable[[Progress], bool], progress: Progress) -> None:
        """A signal after somebody's end comes from whoever started all of them: then there is nobody to save with."""
        self.watch.beat(progress.step, "exchange")
        if self._own and (missing := self.watch.missing()):
            gone = f"rank{'' if len(missing) == 1 else 's'} {', '.join(map(str, missing))}"
            why = f"{self._own.signal_name} after {gone} went: left without saving, the last checkpoint is as it was"
            raise Stopped(str(self._own.signal_name), self._own.exit_code, why)
        said: list[dict[str, Any]] = self.world.gather(
            {"stop": self._own.signal_name, "now": time.monotonic(), "save": self.world.is_first and wants_save(progress)}
        )
        self._now_s, self._save = said[0]["now"], said[0]["save"]
        signals = [one["stop"] for one in said if one["stop"]]
        if signals:
            self.stop.signal_name = signals[0]

    def hears_stop(self) -> bool:
        """Its own signal at once, that of another a moment later: through the store, as nobody meets here."""
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
