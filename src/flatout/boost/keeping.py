"""Remedies as a line of the script: what was proven from outside stays when the script is run by itself."""

from __future__ import annotations

import multiprocessing
import warnings
from typing import Any

import torch

from flatout.base.errors import UsageError, did_you_mean
from flatout.boost.hooks import Hooks
from flatout.boost.remedies.all import REMEDIES
from flatout.boost.remedies.remedy import Remedy

_installed: Hooks | None = None


def keep(**remedies: Any) -> None:
    """Puts remedies into the script that calls it, as `flatout boost` does from outside.

        import flatout

        flatout.boost.keep(resident_data="cuda", cuda_graphs="on")

    The line stands before all others: what is made earlier is not reached by all of them. `flatout boost` writes it into its
    patch; nothing is tried or proven here. A second call takes the place of the first.
    """
    global _installed
    if multiprocessing.parent_process() is not None:
        return  # a worker that imports the script anew
    known = {name: remedy for name, remedy in REMEDIES.items() if remedy.can_be_a_line}
    for name in remedies:
        if name not in known:
            raise UsageError(f"there is no remedy {name!r} to keep; {did_you_mean(name, known)}")
    if _installed is not None:
        _installed.patches.restore()
    hooks = Hooks()
    left_out = [name for name, value in remedies.items() if _wants_a_gpu(known[name], value)]
    if left_out:
        warnings.warn(f"proven on a GPU, and torch sees none here: {', '.join(left_out)} left out", stacklevel=2)
    for name, value in remedies.items():
        if name not in left_out:
            try:
                known[name].apply(value, hooks)
            except (RuntimeError, TypeError, ValueError) as error:
                hooks.patches.restore()
                raise UsageError(f"the remedy {name} can't be {value!r}: {error}") from error
    hooks.install()
    _installed = hooks


def _wants_a_gpu(remedy: Remedy, value: Any) -> bool:
    return (remedy.of_gpu or value == "cuda") and not torch.cuda.is_available()
