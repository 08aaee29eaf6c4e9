"""Uses as many threads as there are cores, and ignores the script's own setting."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.doctor.diagnosis import Diagnosis
from flatout.machine.host import affinity_cores


class Threads(Remedy):
    name = "threads"
    values = "a number of threads"
    may_slow = True  # where other processes use the cores, or operators are small

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        seen = diagnosis.case.seen
        if diagnosis.case.on_device or seen.threads == seen.cores:
            return []
        return [Offer(self.name, seen.cores, seen.threads, predicted(diagnosis, "oversubscribed_threads"))]

    def takes(self, value: Any) -> bool:
        return type(value) is int and value > 0

    def apply(self, value: Any, hooks: Hooks) -> None:
        count, cores = int(value), affinity_cores()
        if count > cores:  # the patched script runs on a smaller machine
            warnings.warn(f"threads={count} is more than the {cores} cores here; using {cores}", stacklevel=4)
        torch.set_num_threads(min(count, cores))
        here = os.getpid()
        hooks.patches.wrap(
            torch, "set_num_threads", lambda original: lambda count: None if os.getpid() == here else original(count)
        )  # a worker sets its own single thread

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        return []
