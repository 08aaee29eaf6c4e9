"""The pinned tier: rows are gathered on the host, ahead of their use, and copied to the device on a stream of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.data.ahead import Ahead
from flatout.data.keyed import Keys
from flatout.data.lookahead import Lookahead
from flatout.data.order import Sampler
from flatout.data.source import Batch, Source
from flatout.data.transforms import Transform, apply, rehearse

_SLOTS = 3
_HOST = torch.device("cpu")


@dataclass(frozen=True)
class Sent:
    """A batch on its way: its tensors may be used once the stream has passed `copied` (None: they never left the host)."""

    columns: Batch
    rows: Tensor
    visits: Tensor
    copied: Any


class Uplink:
    """Sends rows of a source to a device through a ring of reused pinned buffers. One thread at a time may send."""

    def __init__(self, source: Source, sampler: Sampler, batch: int, device: torch.device) -> None:
        self.degraded: list[str] = []
        self._source = source
        self._ahead = Lookahead(sampler, _HOST)
        self._device = device
        if device.type != "cpu":
            self._module = torch.get_device_module(device)
            self._stream = self._module.Stream(device)
            self._ring = cycle([self._slot(batch) for _ in range(_SLOTS)])

    def send(self, span: tuple[int, int]) -> Sent:
        rows, visits = self._ahead.rows(*span), self._ahead.visits(*span)
        if self._device.type == "cpu":
            return Sent(self._source.read(rows), rows, visits, None)
        slot = next(self._ring)
        if slot.copied is not None:
            slot.copied.synchronize()  # the copy that last read these buffers; the sending thread waits, not the training one
        size = len(rows)
        columns = {name: column[:size] for name, column in slot.columns.items()}
        self._source.read_into(rows, columns)
        slot.rows[:size].copy_(rows)
        slot.visits[:size].copy_(visits)
        with self._module.stream(self._stream):
            uploaded = {name: self._upload(column) for name, column in columns.items()}
            rows, visits = self._upload(slot.rows[:size]), self._upload(slot.visits[:size])
            slot.copied = self._stream.record_event()
        return Sent(uploaded, rows, visits, slot.copied)

    def receive(self, sent: Sent) -> None:
        """Order the current stream after the copy; the host does not wait."""
        if sent.copied is None:
            return
        current = self._module.current_stream(self._device)
        current.wait_event(sent.copied)
        for tensor in (*sent.columns.values(), sent.rows, sent.visits):
            tensor.record_stream(current)  # made on the side stream: its memory is not reused before this one is done

    def _upload(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True)

    def _slot(self, batch: int) -> _Slot:
        columns = {name: self._buffer(batch, *c.shape, dtype=c.dtype) for name, c in self._source.schema.items()}
        rows, visits = self._buffer(batch, dtype=torch.int64), self._buffer(batch, dtype=torch.int64)
        return _Slot(columns, rows, visits)

    def _buffer(self, *shape: int, dtype: torch.dtype) -> Tensor:
        if not self.degraded:
            try:
                return torch.empty(shape, dtype=dtype, pin_memory=True)
            except RuntimeError as error:
                why = str(error).splitlines()[0]
                self.degraded.append(f"memory could not be pinned ({why}): batches are copied from pageable memory")
        return torch.empty(shape, dtype=dtype)


@dataclass
class _Slot:
    columns: Batch
    rows: Tensor
    visits: Tensor
    copied: Any = None  # the event after the last copy out of these buffers


class PinnedFeed:
    """Serves the same batches as a resident feed. On a CPU, where there is nothing to copy, it reads them when asked."""

    def __init__(
        self,
        source: Source,
        sampler: Sampler,
        batch: int,
        device: torch.device | str,
        *,
        transforms: Sequence[Transform] = (),
        seed: int = 0,
    ) -> None:
        if batch < 1:
            raise UsageError(f"batch must be 1 or more, got {batch}")
        self.batch = batch
        self.position = 0
        self._device = torch.device(device)
        self._transforms = tuple(transforms)
        self._seed = seed
        self._uplink = Uplink(source, sampler, batch, self._device)
        self._ahead: Ahead[tuple[int, int], Sent] | None = None
        first = source.read(torch.zeros(1, dtype=torch.int64))
        rehearse(self._transforms, {name: column.to(self._device) for name, column in first.items()})

    @property
    def degraded(self) -> list[str]:
        return self._uplink.degraded

    def next(self, size: int | None = None) -> Batch:
        """The batch at `position`, which moves on by its size. The host waits only when the data is not there yet."""
        size = self.batch if size is None else size
        sent = self._fetch(size)
        self._uplink.receive(sent)
        self.position += size
        if not self._transforms:
            return sent.columns
        return apply(self._transforms, sent.columns, Keys(self._seed, sent.visits, sent.rows))

    def seek(self, position: int) -> None:
        self.close()
        self.position = position

    def close(self) -> None:
        """Stop working ahead; `next` starts again."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _fetch(self, size: int) -> Sent:
        if size > self.batch:
            raise UsageError(f"next(size={size}): the buffers hold batches of {self.batch}; make the feed with a larger batch")
        if self._device.type == "cpu" or size != self.batch:
            self.close()  # an odd size, as at the end of a budget: what was prepared does not start where the next batch will
            return self._uplink.send((self.position, self.position + size))
        if self._ahead is None:
            self._ahead = Ahead(self._uplink.send, spans(self.position, None, self.batch), depth=_SLOTS)
        return next(self._ahead)


def spans(start: int, end: int | None, batch: int) -> Iterator[tuple[int, int]]:
    """[start, stop) of one batch after the other; the last one before `end` may be short."""
    while end is None or start < end:
        stop = start + batch if end is None else min(start + batch, end)
        yield start, stop
        start = stop
