"""What a feed is: it serves batches to a training loop. Everything that others may ask of one is declared here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from flatout.data.source import Batch, Transform


@dataclass(frozen=True)
class FeedOptions:
    """How a feed serves its rows. `feed.feed_options` makes and checks one."""

    batch: int
    device: torch.device
    transforms: tuple[Transform, ...] = ()
    seed: int = 0
    workers: int | None = None  # reading threads; 0: read each batch when it is asked for; None: tuned while it runs
    depth: int | None = None  # batches read ahead; None: tuned while it runs
    epoch_rows: int | None = None  # no batch crosses a multiple of this; the batch before it may be short


class StepEnds(Protocol):
    """At which sample each step ends, if batches differ in their number of rows."""

    def samples_after(self, steps: int) -> int: ...

    def steps_until(self, samples: int) -> int: ...


class Feed(ABC):
    """`position` is the number of samples served. Position and seed are enough to resume from here."""

    batch: int
    position: int

    @property
    def degraded(self) -> list[str]:
        """Problems that did not stop the feed, as sentences. The list can grow while it serves."""
        return []

    @property
    def moved(self) -> Sequence[str]:
        """Why another tier than the requested one serves the rows, as sentences. Empty if the requested one does."""
        return ()

    @abstractmethod
    def next(self, size: int | None = None) -> Batch:
        """The batch at `position`, which moves on by the batch's size."""

    @abstractmethod
    def seek(self, position: int) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Stop reading ahead. `next` starts it again."""

    def release(self) -> None:
        """Stop serving. Rows are written to the cache where it outlives the run."""
        self.close()

    def next_size(self, most: int) -> int:
        """Rows of the next batch, at most this many."""
        return most

    @property
    def steps(self) -> StepEnds | None:
        """None: all batches have the same number of rows."""
        return None

    def worst(self) -> list[Batch]:
        """The batches that need the most memory, if shapes differ. The position stays."""
        return []

    @property
    def capturable(self) -> CapturableFeed | None:
        """This feed, if a CUDA graph can take batches from it."""
        return None

    @property
    def why_not_capturable(self) -> str:
        return "a CUDA graph needs batches of one shape, and the shapes of these batches differ"

    def state_dict(self) -> dict[str, Any] | None:
        """What is needed to resume in addition to the position. None: nothing."""
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 (most feeds have nothing to do)
        """Where `state_dict` returns None, `seek` does everything."""

    def stats(self) -> dict[str, Any] | None:
        """Measurements of the reading so far. None if nothing is read ahead."""
        return None


class CapturableFeed(Feed):
    """A feed whose batches arrive at fixed addresses on the device, so that a CUDA graph can hold the step."""

    @property
    def capturable(self) -> CapturableFeed:
        return self

    @abstractmethod
    def load(self) -> None:
        """Allocate the buffers of `capture_next`, once, and fill them for the current position."""

    @abstractmethod
    def capture_next(self) -> Batch:
        """The batch in those buffers, inside of a capture."""

    @abstractmethod
    def bring(self) -> None:
        """Call before each replay."""

    @abstractmethod
    def replayed(self) -> None:
        """Call after each replay."""
