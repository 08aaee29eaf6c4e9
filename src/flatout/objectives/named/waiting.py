"""Rows of large outputs, of which only the target, the predicted class and the loss are kept: counted once there are many."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from flatout.objectives.named.gathering import Gathered
from flatout.objectives.named.seen import Seen

_ROWS = 1 << 18  # 16 bytes each


class LaterRows:
    """Counting costs several kernel launches, whatever the number of rows: here it waits for more of them."""

    def __init__(self) -> None:
        self._gathered: tuple[Gathered, ...] = ()
        self._first: Seen | None = None
        self._wanted: list[Tensor] = []
        self._guesses: list[Tensor] = []
        self._loss: Tensor | None = None
        self._rows = 0

    def add(self, seen: Seen, gathered: Iterable[Gathered]) -> list[Gathered]:
        """Those that have to look at this batch now, because they read more of it than is kept here."""
        kinds = ("predicted",) if seen.loss is None else ("predicted", "loss")
        mine, others = list[Gathered](), list[Gathered]()
        for one in gathered:
            (mine if seen.task in ("classes", "tokens") and one.gathering.reads in kinds else others).append(one)
        if mine:
            self._keep(seen, tuple(mine))
        return others

    def look(self) -> None:
        first, self._first = self._first, None
        if first is None:
            return
        guess = torch.cat(self._guesses) if self._guesses else None
        joined = Seen(first.task, first.output[:0], torch.cat(self._wanted), first.ignore, self._loss, guess)
        for one in self._gathered:
            one.update(joined)
        self._wanted, self._guesses, self._loss, self._rows = [], [], None, 0

    def _keep(self, seen: Seen, gathered: tuple[Gathered, ...]) -> None:
        self._gathered = gathered
        if self._first is not None and self._first.classes != seen.classes:
            self.look()
        if self._first is None:
            self._first = Seen(seen.task, seen.output.new_empty((0, seen.output.shape[1])), seen.wanted[:0], seen.ignore)
        self._wanted.append(seen.wanted.clone())  # a captured graph writes its next batch into the same tensor
        if any(one.gathering.reads == "predicted" for one in gathered):
            self._guesses.append(seen.predicted)
        if seen.loss is not None:
            self._loss = seen.loss if self._loss is None else self._loss + seen.loss
        self._rows += len(seen.wanted)
        if self._rows >= _ROWS:
            self.look()
