"""What steps record until the next log point: loss, weight and gradient norm on the device, and the time of each phase.

A log point reads all of it at once, so that no step waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from flatout.engine.device import sync_point
from flatout.measure.ledger import Ledger


@dataclass(frozen=True)
class Interval:
    """Losses, weights and gradient norms of the steps since the last log point."""

    losses: list[float]
    weights: list[float]
    norms: list[float]

    @property
    def mean_loss(self) -> float | None:
        """The weighted mean over the steps with a finite loss."""
        pairs = [(loss, weight) for loss, weight in zip(self.losses, self.weights, strict=True) if math.isfinite(loss)]
        whole = sum(weight for _, weight in pairs)
        return sum(loss * weight for loss, weight in pairs) / whole if whole else None

    def skipped(self, by_norm: bool) -> list[bool]:
        """For each step, whether it was skipped because its loss, or with `by_norm` its gradient norm, was not finite."""
        watched = self.norms if by_norm and self.norms else self.losses
        return [not (math.isfinite(loss) and math.isfinite(seen)) for loss, seen in zip(self.losses, watched, strict=True)]

    @property
    def last_norm(self) -> float | None:
        return self.norms[-1] if self.norms else None


class Records:
    """For an eager step: references to its scalars, without a kernel, a copy or a wait."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._weights: list[Tensor | float] = []
        self._norms: list[Tensor] = []

    def add(self, loss: Tensor, weight: Tensor | float, norm: Tensor | None) -> None:
        self._losses.append(loss)
        self._weights.append(weight)
        if norm is not None:
            self._norms.append(norm)

    def drain(self) -> Interval:
        with sync_point():
            losses = _read(self._losses)
            norms = _read(self._norms)
            weights = _read(self._weights)
        self._losses, self._weights, self._norms = [], [], []
        return Interval(losses, weights, norms)


class GraphRecords:
    """For a step that is replayed as a graph: columns on the device, each replay writes the next slot."""

    def __init__(self, device: torch.device, slots: int, *, compiled: bool = False) -> None:
        self.slots = slots
        self._write = torch.compile(_write, dynamic=False) if compiled else _write
        self.slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._columns: dict[str, Tensor | float] = {}
        self.filled = 0

    def add(self, loss: Tensor, weight: Tensor | float, norm: Tensor | None) -> None:
        scalars = {"loss": loss, "weight": weight} | ({} if norm is None else {"norm": norm})
        kept = {name: scalar.detach() for name, scalar in scalars.items() if isinstance(scalar, Tensor)}
        for name, scalar in scalars.items():
            if name not in kept:  # known from shapes: the same in every replay
                self._columns[name] = scalar
        self._write([self._column(name, scalar) for name, scalar in kept.items()], list(kept.values()), self.slot)

    def _column(self, name: str, like: Tensor) -> Tensor:
        column = self._columns.get(name)
        if not isinstance(column, Tensor):
            self._columns[name] = column = torch.zeros(self.slots, dtype=like.dtype, device=like.device)
        return column

    def replayed(self) -> None:
        self.filled += 1

    def reset(self) -> None:
        self.slot.zero_()
        self.filled = 0

    def drain(self) -> Interval:
        with sync_point():
            losses, weights, norms = (self._values(name) for name in ("loss", "weight", "norm"))
        self.reset()
        return Interval(losses, weights, norms)

    def _values(self, name: str) -> list[float]:
        column = self._columns.get(name)
        if isinstance(column, Tensor):
            return [float(value) for value in column[: self.filled].tolist()]
        return [] if column is None else [column] * self.filled


def _write(columns: Sequence[Tensor], scalars: Sequence[Tensor], slot: Tensor) -> None:
    for column, scalar in zip(columns, scalars, strict=True):
        column.index_copy_(0, slot, scalar.reshape(1))
    slot.add_(1)


def _read(scalars: Sequence[Tensor | float]) -> list[float]:
    """Reads all scalars with one wait for the device."""
    tensors = [scalar for scalar in scalars if isinstance(scalar, Tensor)]
    if len(tensors) < len(scalars):
        return [float(scalar) for scalar in scalars]
    return [float(value) for value in torch.stack(tensors).tolist()] if tensors else []


# ---- where a step's time goes: by the host's clock on a CPU, by CUDA events around a sampled step on a GPU ----


class Phases(Protocol):
    """Gets a call when a phase of a step has been issued."""

    def begin(self) -> None: ...
    def mark(self, phase: str) -> None: ...
    def collect(self) -> None: ...
    def attribute(self, ledger: Ledger) -> None: ...
    def shares(self) -> dict[str, float]: ...


class NoPhases:
    def begin(self) -> None:
        pass

    def mark(self, phase: str) -> None:
        pass

    def collect(self) -> None:
        pass

    def attribute(self, ledger: Ledger) -> None:
        pass

    def shares(self) -> dict[str, float]:
        return {}


class HostPhases:
    """On a CPU the host computes, so its clock shows where the time went."""

    def __init__(self, ledger: Ledger) -> None:
        self.mark = ledger.lap

    def begin(self) -> None:
        pass

    def collect(self) -> None:
        pass

    def attribute(self, ledger: Ledger) -> None:
        pass

    def shares(self) -> dict[str, float]:
        return {}


class DevicePhases:
    """CUDA events around the first step of each log interval, read at the log point, which waits for the device anyway."""

    def __init__(self) -> None:
        self._open: list[tuple[str, torch.cuda.Event]] | None = None
        self._closed: list[list[tuple[str, torch.cuda.Event]]] = []
        self._spent_ms: dict[str, float] = {}

    def begin(self) -> None:
        self._open = [("", _now())]

    def mark(self, phase: str) -> None:
        if self._open is not None:
            self._open.append((phase, _now()))
            if phase == "optimizer":
                self._closed.append(self._open)
                self._open = None

    def collect(self) -> None:
        for marks in self._closed:
            for (_, before), (phase, after) in pairwise(marks):
                self._spent_ms[phase] = self._spent_ms.get(phase, 0.0) + before.elapsed_time(after)
        self._closed = []

    def attribute(self, ledger: Ledger) -> None:
        """Issuing a step and waiting for it are both time of the device: split it like the sampled steps."""
        if shares := self.shares():
            for row in ("step", "device wait"):
                ledger.split(row, shares)

    def shares(self) -> dict[str, float]:
        """Of each phase in a step; empty if none was sampled."""
        whole = sum(self._spent_ms.values())
        return {phase: spent / whole for phase, spent in self._spent_ms.items()} if whole else {}


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
