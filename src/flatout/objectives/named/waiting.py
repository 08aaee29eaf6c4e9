"""Rows of large outputs, of which only the target, what is known of each row, and the loss are kept: counted once there are
many."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from flatout.objectives.named.gathering import Gathered
from flatout.objectives.named.seen import Seen

_ROWS = 1 << 18  # 16 bytes each, or a few more


class LaterRows:
    """Counting costs several kernel launches, whatever the number of rows: here it waits for more of them."""

    def __init__(self) -> None:
        self._gathered: tuple[Gathered, ...] = ()
        self._others: list[Gathered] = []
        self._names: set[str] | None = None  # None: not known yet
        self._first: Seen | None = None
        self._wanted: list[Tensor] = []
        self._columns: dict[str, list[Tensor]] = {}
        self._loss: Tensor | float | None = None
        self._rows = 0

    def add(self, seen: Seen, gathered: Iterable[Gathered]) -> list[Gathered]:
        """Those that have to look at this batch now, because they read more of it than is kept here."""
        if self._names is None:
            waits = seen.task in ("classes", "tokens")
            self._gathered = tuple(one for one in gathered if waits and one.gathering.reads is not None)
            self._others = [one for one in gathered if one not in self._gathered]
            self._names = {name for one in self._gathered for name in one.gathering.reads or ()}
        if self._gathered:
            self._keep(seen, self._names)
        return self._others

    def look(self) -> None:
        first, self._first = self._first, None
        if first is None:
            return
        known = {name: torch.cat(parts) for name, parts in self._columns.items()}
        joined = Seen(first.task, first.output, torch.cat(self._wanted), first.ignore, self._loss, known=known)
        for one in self._gathered:
            one.update(joined)
        self._wanted, self._columns, self._loss, self._rows = [], {}, None, 0

    def _keep(self, seen: Seen, names: set[str]) -> None:
        if self._first is not None and self._first.classes != seen.classes:
            self.look()
        if self._first is None:
            self._first = Seen(seen.task, seen.output.new_empty((0, seen.output.shape[1])), seen.wanted[:0], seen.ignore)
        self._wanted.append(seen.wanted.clone())  # a captured graph writes its next batch into the same tensor
        for name in names:
            if name == "loss":
                self._loss = seen.log_loss if self._loss is None else self._loss + seen.log_loss
            elif name != "hit":
                self._columns.setdefault(name, []).append(seen.column(name))
            elif "predicted" not in names:  # which tells it too, and is what other devices have first
                name = "predicted" if seen.here is None else "hit"
                self._columns.setdefault(name, []).append(seen.column(name))
        self._rows += len(seen.wanted)
        if self._rows >= _ROWS:
            self.look()
