"""Remedies as a line of the script: what was proven from outside stays when the script is run by itself."""

from __future__ import annotations

import multiprocessing
import warnings
from typing import Any

import torch

from flatout.base.errors import UsageError, did_you_mean
from flatout.boost.hooks import Hooks
from flatout.boost.remedies.all import REMEDIES

OFF = "off"
_kept: dict[str, Any] = {}
_hooks: Hooks | None = None


def keep(**remedies: Any) -> None:
    """Puts remedies into the script that calls it, as `flatout boost` does from outside.

        import flatout

        flatout.boost.keep(resident_data="cuda", cuda_graphs="on")

    The line stands before the script's own imports: what is made earlier is not reached by all of them. `flatout boost` writes
    it into its patch; nothing is tried or proven here. A later call adds to an earlier one, and "off" takes a remedy back
    (what torch was told once stays: threads, convolutions, precision of products).
    """
    global _hooks
    if _is_in_a_worker():
        return
    known = {name: remedy for name, remedy in REMEDIES.items() if remedy.can_be_a_line}
    for name, value in remedies.items():
        if name not in known:
            raise UsageError(f"there is no remedy {name!r} to keep; {did_you_mean(name, known)}")
        if value != OFF and not known[name].takes(value):
            raise UsageError(f"the remedy {name} is {known[name].values}, or {OFF!r} to leave it out; got {value!r}")
    left_out = [name for name, value in remedies.items() if _wants_gpu(name, value) and not _has_gpu()]
    if left_out:
        warnings.warn(f"proven on a GPU, and torch sees none here: {', '.join(left_out)} left out", stacklevel=2)
    _kept.update({name: value for name, value in remedies.items() if name not in left_out})
    if _hooks is not None:
        _hooks.patches.restore()
    _hooks = Hooks()
    for name, value in _kept.items():
        if value != OFF:
            known[name].apply(value, _hooks)
    _hooks.install()


def _is_in_a_worker() -> bool:
    """A process that a pool or a loader has started imports the script anew; until that is done it has no parent."""
    inheriting = getattr(multiprocessing.current_process(), "_inheriting", False)
    return bool(inheriting) or multiprocessing.parent_process() is not None


def _wants_gpu(name: str, value: Any) -> bool:
    return value != OFF and (REMEDIES[name].of_gpu or value == "cuda")


def _has_gpu() -> bool:
    """Asked of the driver: CUDA itself stays untouched until the script has said which device it wants."""
    return torch.cuda.device_count() > 0
