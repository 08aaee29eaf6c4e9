"""What a feed is: it serves batches to a training loop. All that others ask of one is declared here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flatout.data.source import Batch


class StepEnds(Protocol):
    """Which step ends where, if batches differ in their number of rows."""

    def samples_after(self, steps: int) -> int: ...

    def steps_until(self, samples: int) -> int: ...


class Feed(ABC):
    """`position` is the number of samples served: with the seed, all there is to know to go on from here."""

    batch: int
    position: int

    @property
    def degraded(self) -> list[str]:
        """What is not as it should be, in words. More may come while it serves."""
        return []

    @property
    def moved(self) -> Sequence[str]:
        """Why it is not served by the tier that was asked for, in words; empty where it is."""
        return ()

    @abstractmethod
    def next(self, size: int | None = None) -> Batch:
        """The batch at `position`, which moves on by its size."""

    @abstractmethod
    def seek(self, position: int) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Stop working ahead; `next` starts again."""

    def release(self) -> None:
        """Nothing is served any more: what was read is kept where a store outlives the run."""
        self.close()

    def next_size(self, most: int) -> int:
        """Rows of the next batch, at most so many."""
        return most

    @property
    def steps(self) -> StepEnds | None:
        """None: all batches have as many rows."""
        return None

    def worst(self) -> list[Batch]:
        """Batches that need the most memory, if their shapes differ; the position stays."""
        return []

    @property
    def capturable(self) -> CapturableFeed | None:
        """This feed, if a CUDA graph can take batches from it."""
        return None

    @property
    def why_not_capturable(self) -> str:
        return "a graph reads its batch from one place, and the shapes of these batches differ"

    def state_dict(self) -> dict[str, Any] | None:
        """What it takes beside the position to go on from here; None: nothing."""
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 (most feeds have nothing to do)
        """Where `state_dict` gives nothing, nothing is taken either: `seek` does it all."""

    def stats(self) -> dict[str, Any] | None:
        """What reading has taken so far; None where nothing is read ahead."""
        return None


class CapturableFeed(Feed):
    """One whose batches come to fixed places on the device, so that a graph can hold the step."""

    @property
    def capturable(self) -> CapturableFeed:
        return self

    @abstractmethod
    def load(self) -> None:
        """Make the places for `capture_next`, once, and fill them for the current position."""

    @abstractmethod
    def capture_next(self) -> Batch:
        """The batch at those places, inside of a capture."""

    @abstractmethod
    def bring(self) -> None:
        """Before each replay."""

    @abstractmethod
    def replayed(self) -> None:
        """After each replay."""
