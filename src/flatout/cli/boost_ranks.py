"""`flatout boost` under torchrun: the first process tries remedies, as a group of its own; all then train with those kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from flatout.base.errors import MachineError
from flatout.cli.places import environment_of_one_process, local_processes, process_rank, world_size

_KEY, _FAILED = "flatout boost", "failed"
_BEYOND = timedelta(hours=2)  # what the first process may take after --within: a look at the script, confirming, the patch
# forward passes captured in one process would lack what several exchange within them (statistics of SyncBatchNorm)
ALONE_ONLY = ("cuda_graphs",)


class BoostRanks:
    """This process is one of several. They meet in the store of torchrun, which is there before the script makes its group."""

    def __init__(self, store: tuple[str, int, str], within_s: float) -> None:
        host, port, run = store
        self.is_first = process_rank() == 0
        self.said = (
            f"the first of {world_size()} processes tries remedies, alone and on its share of the cores; "
            "all then train with what is kept"
        )
        wait = _BEYOND + timedelta(seconds=min(within_s, 7 * 86400))
        meeting = TCPStore(host, port, is_master=False, timeout=wait, wait_for_workers=False)
        self._store = PrefixStore(f"{_KEY} {run}", meeting)
        self._told = False

    @contextmanager
    def tells(self) -> Iterator[None]:
        """Around the trials of the first process, which has its share of the cores and no others to wait for. If these end
        without an answer, the other processes end too."""
        try:
            with _share_of_cores(local_processes()), environment_of_one_process():
                yield
        finally:
            if not self._told:
                self._tell({_KEY: _FAILED})

    def tell(self, remedies: Sequence[tuple[str, Any]], steps: int, highest: float) -> None:
        self._tell({"remedies": list(remedies), "steps": steps, "highest": highest})

    def _tell(self, answer: dict[str, Any]) -> None:
        self._told = True
        self._store.set(_KEY, json.dumps(answer))

    def told(self) -> tuple[tuple[tuple[str, Any], ...], int, float]:
        """What the first process kept, how many steps it watched, and the highest loss in them. Waits for it."""
        answer = json.loads(self._store.get(_KEY))
        if answer.get(_KEY) == _FAILED:
            raise MachineError("the first process ended without an answer: its own message says why")
        return tuple((name, value) for name, value in answer["remedies"]), answer["steps"], answer["highest"]


@contextmanager
def _share_of_cores(processes: int) -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[: max(1, len(allowed) // processes)])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
