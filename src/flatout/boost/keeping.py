"""`flatout.boost.keep`: applies remedies from a line in the script, so that it keeps its speed-up without `flatout boost`."""

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
    """Applies remedies to the script that calls it, as `flatout boost` does from outside.

        import flatout

        flatout.boost.keep(resident_data="cuda", cuda_graphs="on")

    Put the line before the script's own imports: some remedies do not reach objects created earlier. `flatout boost` writes the
    line into its patch; this call tries and proves nothing. A later call adds to an earlier one, and "off" removes a remedy
    (but global settings of torch stay: threads, convolutions, precision of products).
    """
    global _hooks
    if _is_in_a_worker():
        return
    known = {name: remedy for name, remedy in REMEDIES.items() if remedy.can_be_a_line}
    for name, value in remedies.items():
        if name not in known:
            raise UsageError(f"unknown remedy {name!r}; {did_you_mean(name, known)}")
        if value != OFF and not known[name].takes(value):
            raise UsageError(f"remedy {name}: expected {known[name].values} or {OFF!r}, got {value!r}")
    left_out = [name for name, value in remedies.items() if _wants_gpu(name, value) and not _has_gpu()]
    if left_out:
        warnings.warn(f"torch found no GPU, so these remedies are skipped: {', '.join(left_out)}", stacklevel=2)
    _kept.update({name: value for name, value in remedies.items() if name not in left_out})
    if _hooks is not None:
        _hooks.patches.restore()
    _hooks = Hooks()
    for name, value in _kept.items():
        if value != OFF:
            known[name].apply(value, _hooks)
    _hooks.install()


def _is_in_a_worker() -> bool:
    """A worker of a pool or a DataLoader imports the script again; during that import it has no parent process yet."""
    inheriting = getattr(multiprocessing.current_process(), "_inheriting", False)
    return bool(inheriting) or multiprocessing.parent_process() is not None


def _wants_gpu(name: str, value: Any) -> bool:
    return value != OFF and (REMEDIES[name].of_gpu or value == "cuda")


def _has_gpu() -> bool:
    """Asks the driver, so that CUDA is not initialised before the script selects a device."""
    return torch.cuda.device_count() > 0
