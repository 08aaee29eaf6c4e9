"""Writes checkpoints while the loop runs: the loop waits only for a copy on its device, a thread does the rest.

If the disk is full or gone, the checkpoint is lost and an event says so. The run and the checkpoint before it are not affected.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatout.base.events import EventLog
from flatout.base.units import show_seconds
from flatout.engine.device import sync_point
from flatout.machine.out_of_memory import is_out_of_memory
from flatout.store.sharded import RankSnapshot, ShardedCheckpoints, local_parts
from flatout.store.sharded_peers import why_failed
from flatout.store.tensors import encode

_STAGE_BYTES = 64 << 20
_FIRST_INTERVAL_S = 120.0  # until the time of a save is known
_SHORTEST_S, _LONGEST_S = 10.0, 3600.0


@dataclass
class SaveTimes:
    """The time that saving took: of the loop, and from the call until the checkpoint's folder was renamed."""

    count: int = 0
    blocked_s: float = 0.0
    whole_s: float = 0.0
    last_s: float = 0.0


class Saver:
    def __init__(
        self, checkpoints: ShardedCheckpoints, events: EventLog, device: torch.device, grace_s: float = math.inf
    ) -> None:
        self.times = SaveTimes()
        self.failures = 0
        self._written, self._checkpoints = checkpoints, checkpoints.checkpoints
        self._events = events
        self._device = device
        self._grace_s = grace_s
        self._copies: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None

    def best_interval_s(self, failure_every_s: float) -> float:
        """Young's formula, which balances the time of saves against the work lost by failures. A save counts in full."""
        if not self.times.count:
            return _FIRST_INTERVAL_S
        save_s = self.times.whole_s / self.times.count
        return min(max(math.sqrt(2 * save_s * failure_every_s), _SHORTEST_S), _LONGEST_S)

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def save(self, step: int, state: Any, *, best: dict[str, Any] | None = None, wait: bool = False) -> None:
        """`best` is the best evaluation so far. Its checkpoint is marked and kept; a lost mark is written again."""
        self.wait()
        began_s = time.perf_counter()
        document, tensors = encode(state)
        copies, copied = self._copy(local_parts(tensors))
        blocked_s = time.perf_counter() - began_s
        self._thread = threading.Thread(
            target=self._write,
            args=(step, RankSnapshot(document, copies, tensors), copied, best, began_s, blocked_s),
            name="flatout-checkpoint",
            daemon=True,
        )
        self._thread.start()
        if wait:
            self.wait()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _copy(self, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], torch.cuda.Event | None]:
        """Copies into buffers that are reused, because allocating memory would take longer than the copy."""
        if self._copies.keys() != tensors.keys() or any(self._copies[k].shape != t.shape for k, t in tensors.items()):
            self._copies = {}
            try:
                # contiguous, as in the file: making them so later, in the thread that writes, would be work on another
                # stream than the one that copies them to the host
                ordered = torch.contiguous_format
                self._copies = {name: torch.empty_like(tensor, memory_format=ordered) for name, tensor in tensors.items()}
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._events.emit(
                    "degraded",
                    what="checkpoint copy",
                    why="no room for a second copy on the device: the loop waits for the host",
                )
                with sync_point():
                    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}, None
        with torch.no_grad():
            torch._foreach_copy_(list(self._copies.values()), list(tensors.values()))
        if self._device.type != "cuda":
            return self._copies, None
        copied = torch.cuda.Event()
        copied.record()
        return self._copies, copied

    def _write(
        self,
        step: int,
        taken: RankSnapshot,
        copied: torch.cuda.Event | None,
        best: dict[str, Any] | None,
        began_s: float,
        blocked_s: float,
    ) -> None:
        with suppress(OSError):  # lower priority than the loop, on systems that allow it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        try:
            with _DeviceReader(self._device, copied) as to_host:
                path = self._written.write(step, taken, to_host)
            if self._written.peers.rank == 0:
                if best is not None and best["step"] in self._checkpoints.steps() and not self._checkpoints.is_marked(best):
                    self._checkpoints.mark_best(**best)
                self._checkpoints.prune()
        except Exception as error:
            self.failures += 1
            self._events.emit("checkpoint_failed", step=step, why=why_failed(error), kept=self._checkpoints.steps()[-1:])
            return
        whole_s = time.perf_counter() - began_s
        self.times.count += 1
        self.times.blocked_s += blocked_s
        self.times.whole_s += whole_s
        self.times.last_s = whole_s
        if whole_s > self._grace_s and self.times.count == 1:
            grace = show_seconds(self._grace_s)
            why = f"a save takes {show_seconds(whole_s)}, longer than the grace period of {grace}: a SIGTERM may lose steps"
            self._events.emit("degraded", what="grace", why=why)
        size = sum(tensor.numel() * tensor.element_size() for tensor in taken.copies.values())
        self._events.emit("checkpoint_saved", step=step, path=path.name, seconds=whole_s, blocked_s=blocked_s, bytes=size)


class SaverElsewhere(Saver):
    """For a process that writes nothing, because the first one has the same weights."""

    def save(self, step: int, state: Any, *, best: dict[str, Any] | None = None, wait: bool = False) -> None:
        pass


class _DeviceReader:
    """Copies tensors to the host through a small pinned buffer on a separate stream, so that the loop's kernels continue."""

    def __init__(self, device: torch.device, copied: torch.cuda.Event | None) -> None:
        self._device = device
        self._copied = copied

    def __enter__(self) -> Callable[[Tensor], Tensor]:
        if self._copied is None:
            return lambda tensor: tensor
        self._stream = torch.cuda.Stream(self._device)
        self._stream.wait_event(self._copied)
        self._stage = torch.empty(_STAGE_BYTES, dtype=torch.uint8, pin_memory=True)
        return self._to_host

    def __exit__(self, *error: object) -> None:
        pass

    def _to_host(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu":
            return tensor
        assert tensor.is_contiguous()  # making it contiguous here would run on a stream that nothing waits for
        source = tensor.reshape(-1).view(torch.uint8)
        result = torch.empty_like(source, device="cpu")
        with torch.cuda.stream(self._stream):
            for start in range(0, len(source), _STAGE_BYTES):
                piece = source[start : start + _STAGE_BYTES]
                staged = self._stage[: len(piece)]
                staged.copy_(piece, non_blocking=True)
                arrived = torch.cuda.Event()
                arrived.record(self._stream)
                arrived.synchronize()
                result[start : start + len(piece)] = staged
        return result.view(tensor.dtype).view(tensor.shape)
