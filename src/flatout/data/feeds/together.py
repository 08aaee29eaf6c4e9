"""What each of several processes is served, when they train together: its share of every batch that one process would see.

Which rows make a batch depends on the position alone, counted over all processes. So a run goes on with the same batches after
a resume onto more or fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.data.feeds.contract import Feed
from flatout.data.feeds.ranks import collect_stretches, gap_rows
from flatout.data.order.order import Sampler
from flatout.data.source import Batch
from flatout.world.world import World


class ShareOrder:
    """The order of all, as this process sees it. `total`: where the run ends, in samples of all, its last batch short."""

    def __init__(self, sampler: Sampler, batch: int, world: World, total: int | None) -> None:
        if batch < world.data_size:
            raise UsageError(f"batch {batch} can't be shared by {world.data_size} processes: start fewer, or set a larger one")
        self._sampler, self._batch = sampler, batch
        self._low, high = world.share(batch)
        self.own = high - self._low  # rows of each whole batch
        self._whole = None if total is None else total // batch  # batches before the short one
        self._short = (0, 0) if total is None else world.share(total % batch)

    @property
    def epoch_rows(self) -> int:
        return self._sampler.epoch_rows

    def place(self, position: int) -> int:
        """Where this process is, when all are at this position."""
        return position // self._batch * self.own

    def rows(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return self._made(self._sampler.rows, start, stop, torch.device(device))

    def visits(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        return self._made(self._sampler.visits, start, stop, torch.device(device))

    def _made(self, read: Callable[..., Tensor], start: int, stop: int, device: torch.device) -> Tensor:
        """Of small batches, all that lie between: a stretch for each would take longer than what the others have."""
        first, last = -(-start // self.own), stop // self.own
        last = last if self._whole is None else min(last, self._whole)
        if self._batch - self.own > gap_rows(device) or last - first < 2:
            return collect_stretches(read, self._stretches(start, stop), device)
        between = read(first * self._batch, last * self._batch, device).view(-1, self._batch)
        ends = ((start, first * self.own), (last * self.own, stop))
        before, after = (collect_stretches(read, self._stretches(*end), device) for end in ends)
        return torch.cat([before, between[:, self._low : self._low + self.own].flatten(), after])

    def _stretches(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """This process's positions [start, stop) as stretches of positions of all. After the end there are more, never used."""
        while start < stop:
            number, done = divmod(start, self.own)
            low, high = self._short if number == self._whole and done < self._short[1] - self._short[0] else (self._low, None)
            count = min(stop - start, self.own - done if high is None else high - low - done)
            begin = number * self._batch + low + done
            yield begin, begin + count
            start += count


class ShareFeed(Feed):
    """Serves this process's rows of each batch; `position` counts the samples of all of them."""

    def __init__(self, served: Feed, order: ShareOrder, batch: int, world: World) -> None:
        self.served, self.batch, self.position = served, batch, 0
        self._order, self._world = order, world

    @property
    def degraded(self) -> list[str]:
        return self.served.degraded

    def next(self, size: int | None = None) -> Batch:
        """At least one row: who has none in a short batch gets one that is not to be counted."""
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
    """Every process reads whole batches and keeps its rows: for a stream, whose rows can't be asked for one by one."""

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
