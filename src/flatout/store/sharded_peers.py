"""How the ranks of a run agree on a checkpoint: each reports to rank 0, rank 0 decides, and all get its answer.

Each rank talks only to rank 0, over its own connection, so a dead rank is identified at once and nobody waits for it. Messages
are JSON. The process group is separate: it can be used in a thread while training uses others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flatout.base.errors import DamagedCheckpoint, FlatoutError, StoreError
from flatout.base.units import show_seconds
from flatout.world.world import World

TIMEOUT_S = 1800.0  # long enough for the slowest disk


class Peers:
    def __init__(self, world: World, timeout_s: float = TIMEOUT_S) -> None:
        """All ranks create theirs at the same point of the program."""
        self.rank, self.size = world.rank, world.size
        self._timeout_s = timeout_s
        self._group: Any = None
        if self.size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def close(self) -> None:
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def agree(self, work: Callable[[], Any], decide: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Each rank does its `work`; rank 0 decides from all results and sends each rank an answer.

        If it fails on any rank, it fails on all, with the rank and the reason.
        """
        if self.size == 1:
            return decide([work()])[0]
        cause: BaseException | None = None
        try:
            told: dict[str, Any] = {"said": work()}
        except BaseException as error:
            cause, told = error, _failed(error)
        if self.rank:
            self.say(0, told)
            heard = self.hear(0)
        else:
            heard = self._answer([told, *(self._report(rank) for rank in range(1, self.size))], decide)
        if cause is not None and not isinstance(cause, Exception):
            raise cause  # a request to stop this process, such as Ctrl-C
        if "failed" in heard:
            raise (DamagedCheckpoint if heard["damaged"] else StoreError)(heard["failed"]) from cause
        return heard["said"]

    def everyone(self, thing: Any) -> list[Any]:
        return [thing] * self.size

    def _report(self, rank: int) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self.hear(rank)
        except StoreError as error:
            return {"gone": str(error)}
        return found

    def _answer(self, told: list[dict[str, Any]], decide: Callable[[list[Any]], Sequence[Any]]) -> dict[str, Any]:
        answers: Sequence[Any] = ()
        if all("said" in each for each in told):
            try:
                answers = decide([each["said"] for each in told])
            except Exception as error:
                told[0] = _failed(error)
        problems = [
            each["gone"] if "gone" in each else f"rank {rank}: {each['failed']}"
            for rank, each in enumerate(told)
            if "said" not in each
        ]
        damaged = all(each.get("damaged", True) and "gone" not in each for each in told)
        replies = (
            [{"failed": "; ".join(problems), "damaged": damaged}] * self.size if problems else [{"said": a} for a in answers]
        )
        for rank in range(1, self.size):
            with suppress(StoreError):  # known to be gone, or noticed next time
                self.say(rank, replies[rank])
        return replies[0]

    # ---- one to one ----

    def say(self, rank: int, thing: Any) -> None:
        content = torch.frombuffer(bytearray(json.dumps(thing).encode()), dtype=torch.uint8)
        self.send(rank, torch.tensor([len(content)]))
        self.send(rank, content)

    def hear(self, rank: int) -> Any:
        length = torch.empty(1, dtype=torch.int64)
        self.receive(rank, length)
        content = torch.empty(int(length), dtype=torch.uint8)
        self.receive(rank, content)
        return json.loads(content.numpy().tobytes())

    def send(self, rank: int, tensor: Tensor) -> None:
        try:
            dist.send(tensor, dst=rank, group=self._group)
        except RuntimeError as error:
            raise self._lost(rank, error) from error

    def receive(self, rank: int, tensor: Tensor) -> None:
        try:
            dist.recv(tensor, src=rank, group=self._group)
        except RuntimeError as error:
            raise self._lost(rank, error) from error

    def _lost(self, rank: int, error: RuntimeError) -> StoreError:
        if "timed out" in str(error).lower():
            return StoreError(f"rank {rank} did not answer within {show_seconds(self._timeout_s)}")
        return StoreError(f"rank {rank} is gone: its process ended, or its machine can't be reached")


def why_failed(error: BaseException) -> str:
    if isinstance(error, FlatoutError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"


def _failed(error: BaseException) -> dict[str, Any]:
    return {"failed": why_failed(error), "damaged": isinstance(error, DamagedCheckpoint)}
