"""Lets the host read a loss after the forward pass, without waiting for the backward pass and the update.

When a script calls backward on a loss, the loss is copied to the host at the same time. A later read returns as soon as the
copy is done, while the device continues the step. The value is the same: a tensor that was changed since is read normally
(except one changed through `loss.data`, which autograd does not see).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.doctor.diagnosis import Diagnosis


class EarlyReads(Remedy):
    name = "early_reads"
    computes_the_same = True
    of_gpu = True

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        gain = predicted(diagnosis, "host_sync", "chatty_logging")
        return [] if gain is None or not diagnosis.case.on_device else [Offer(self.name, "on", "off", gain)]

    def apply(self, value: Any, hooks: Hooks) -> None:
        sent = LossSent()
        hooks.patches.wrap(torch.autograd, "backward", sent.at_backward)
        hooks.patches.wrap(Tensor, "item", sent.read)
        hooks.patches.wrap(Tensor, "__float__", lambda original: sent.read(original, float))


@dataclass
class _Number:
    tensor: ref[Tensor]
    place: int
    version: int
    host: Tensor
    there: torch.cuda.Event


def _is_shared() -> bool:
    """A collective operation changes a loss in place without changing its version."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class LossSent:
    """Sends the last loss with a backward pass to the host."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._last: _Number | None = None
        self._beside: torch.cuda.Stream | None = None

    def at_backward(self, original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **named: Any) -> Any:
            root = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
            if threading.get_ident() == self._main and isinstance(root, Tensor) and root.is_cuda and root.numel() == 1:
                self._last = None
                if not _is_shared() and not torch.cuda.is_current_stream_capturing():
                    self._send(root)
            return original(tensors, *args, **named)

        return backward

    def read(self, original: Any, kind: type = object) -> Any:
        def item(tensor: Tensor) -> Any:
            last = self._last
            if last is None or not tensor.is_cuda or tensor.is_inference():
                return original(tensor)
            root = last.tensor()
            if root is None or root.data_ptr() != last.place:  # another tensor may use this memory now
                return original(tensor)
            if tensor.data_ptr() != last.place or tensor._version != last.version or tensor.numel() != 1:
                return original(tensor)
            if tensor.dtype != last.host.dtype:
                return original(tensor)
            last.there.synchronize()
            return last.host.item() if kind is object else kind(last.host.item())

        return item

    def _send(self, root: Tensor) -> None:
        if self._beside is None or self._beside.device != root.device:
            self._beside = torch.cuda.Stream(root.device)
        loss = root.detach()
        host = torch.empty((), dtype=loss.dtype, pin_memory=True)
        self._beside.wait_stream(torch.cuda.current_stream(root.device))
        with torch.cuda.stream(self._beside):
            host.copy_(loss.reshape(()), non_blocking=True)
            there = torch.cuda.Event()
            there.record()
        loss.record_stream(self._beside)
        self._last = _Number(ref(root), root.data_ptr(), root._version, host, there)
