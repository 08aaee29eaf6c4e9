"""Copies batches from pinned memory on a separate stream.

The host still waits for the copy, because the script may overwrite the source next. But on a separate stream the copy does
not wait for earlier work of the device.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit, placed
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.doctor.diagnosis import Diagnosis
from flatout.machine.optimisations import PINNED_COPIES


class AsyncCopies(Remedy):
    name = PINNED_COPIES.name
    computes_the_same = True
    of_gpu = True
    written_in_part = True

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        case = diagnosis.case
        loader = case.training_loader
        if not case.on_device or loader is None or not case.seen.copies:
            return []
        return [Offer(self.name, "on", "off", predicted(diagnosis, PINNED_COPIES.finding, "blocking_copy"))]

    def apply(self, value: Any, hooks: Hooks) -> None:
        hooks.patches.wrap(DataLoader, "__init__", _pinning)
        for name in ("to", "cuda"):
            hooks.patches.wrap(Tensor, name, _beside)

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        loader = diagnosis.case.training_loader
        at = placed(loader.made) if loader is not None else None
        return [] if at is None else [Edit(*at, function="DataLoader", arguments=(("pin_memory", "True"),))]


def _pinning(original: Any) -> Any:
    def __init__(loader: DataLoader[Any], dataset: Any, *args: Any, **named: Any) -> None:
        if len(args) < 7 and torch.cuda.is_available():
            named = {**named, "pin_memory": True}
        original(loader, dataset, *args, **named)

    return __init__


def _beside(original: Any) -> Any:
    ours, streams = os.getpid(), dict[torch.device, torch.cuda.Stream]()

    def move(tensor: Tensor, *args: Any, **named: Any) -> Any:
        # a forked worker must not use the device, which is_pinned does
        if torch.compiler.is_compiling() or os.getpid() != ours or tensor.device.type != "cpu" or not tensor.is_pinned():
            return original(tensor, *args, **named)
        says_how = "non_blocking" in named or any(isinstance(one, bool) for one in args)
        if says_how or tensor.requires_grad or torch.cuda.is_current_stream_capturing():
            return original(tensor, *args, **named)
        main = torch.cuda.current_stream()
        if main.device not in streams:
            streams[main.device] = torch.cuda.Stream(main.device)
        with torch.cuda.stream(streams[main.device]):
            moved = original(tensor, *args, **{"non_blocking": True, **named})
        if moved.device == main.device:
            streams[main.device].synchronize()
            moved.record_stream(main)
        elif moved.is_cuda:
            torch.cuda.synchronize(moved.device)
        return moved

    return move
