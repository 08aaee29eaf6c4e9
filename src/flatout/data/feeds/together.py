"""Feeds of one of several processes that train together: each gets its rows of every batch that one process would see.

Which rows make a batch depends only on the position, counted over all processes. So a run continues with the same batches after
a resume on more or fewer processes.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.data.feeds.contract import Feed
from flatout.data.feeds.ranks import RunShare
from flatout.data.source import Batch
from flatout.world.world import World


class ShareFeed(Feed):
    """Serves this process's rows of each batch. `position` counts the samples of all processes."""

    def __init__(self, served: Feed, order: RunShare, batch: int, world: World) -> None:
        self.served, self.batch, self.position = served, batch, 0
        self._order, self._world = order, world

    @property
    def degraded(self) -> list[str]:
        return self.served.degraded

    @property
    def moved(self) -> Sequence[str]:
        return self.served.moved

    def next(self, size: int | None = None) -> Batch:
        """One row or more: a process without rows in a short batch gets one that must not be counted."""
        size = self.batch if size is None else size
        low, high = self._world.share(size)
        self.position += size
        return self.served.next(max(1, high - low))

    def seek(self, position: int) -> None:
        self.position = position
        self.served.seek(self._order.place(position))

    def close(self) -> None:
        self.served.close()

    def release(self) -> None:
        self.served.release()


class CutFeed(Feed):
    """Every process reads whole batches and keeps its rows. For streams, whose rows can't be read by number."""

    def __init__(self, served: Feed, world: World) -> None:
        self.served, self.batch, self.position = served, served.batch, 0
        self._world = world

    @property
    def degraded(self) -> list[str]:
        return self.served.degraded

    def next(self, size: int | None = None) -> Batch:
        whole = self.served.next(size)
        self.position = self.served.position
        low, high = self._world.share(len(next(iter(whole.values()))))
        return {name: column[low : max(high, low + 1)] for name, column in whole.items()}

    def seek(self, position: int) -> None:
        self.position = position
        self.served.seek(position)

    def close(self) -> None:
        self.served.close()

    def release(self) -> None:
        self.served.release()
