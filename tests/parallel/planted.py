"""A user's own model, in which one process has a fault: `FAULT=raises:1` makes it the second one's."""

from __future__ import annotations

import os
import resource
import time

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        self.calls = 0  # to learn from

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        fault, _, rank = os.environ.get("FAULT", "").partition(":")
        if rank == os.environ.get("RANK"):
            self.fail_in(fault)
        scores: Tensor = self.body(x)
        return scores

    def fail_in(self, fault: str) -> None:
        if fault == "raises" and self.calls == 20:
            raise ValueError("a row that nobody has thought of")  # here
        if fault == "slow on a disk that is full for a while":
            time.sleep(0.1)
            limits = {15: 100, 35: resource.RLIM_INFINITY}  # bytes that a file may have: the kernel keeps it
            if self.calls in limits:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limits[self.calls], resource.RLIM_INFINITY))
