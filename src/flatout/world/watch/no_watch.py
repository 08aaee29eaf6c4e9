"""The watch of a run with one process, so that the loop need not ask whether there are others."""

from __future__ import annotations

from flatout.world.watch.blame import in_words
from flatout.world.watch.news import Failed, Lost, StoreLost


class NoWatch:
    """Does nothing: a single process has nobody to watch."""

    rank, size, trouble = 0, 1, ""
    cause: Failed | Lost | StoreLost | None = None

    def beat(self, step: int, phase: str) -> None:
        pass

    def waited(self, seconds: float) -> None:
        pass

    def fail(self, error: BaseException) -> Failed:
        return Failed(0, *in_words(error))

    def missing(self, within_s: float = 0.0) -> tuple[int, ...]:
        return ()

    def lost(self) -> tuple[int, ...]:
        return ()

    def goodbye(self) -> None:
        pass

    def close(self) -> None:
        pass
