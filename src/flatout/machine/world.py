"""The processes of one run. Everything above speaks to a World; on a single process it is the null one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class World(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def is_main(self) -> bool:
        """Whether this process prints, writes the run folder and answers for the others."""

    def all_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, the same on each; `tensor` may be changed in place."""

    def barrier(self) -> None:
        """Return once every process has come here."""


@dataclass(frozen=True)
class NullWorld:
    """One process: sums are what they are, and nobody is waited for."""

    rank: int = 0
    size: int = 1
    is_main: bool = True

    def all_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def barrier(self) -> None:
        pass
