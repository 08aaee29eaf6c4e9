"""Bare loops around `LocalUpdates`, for tests; each process of a world runs all of them and keeps what came out in a folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from flatout.engine.parallel.local import LocalUpdates
from flatout.engine.parallel.rounds import AVERAGE, Outer, Rounds
from flatout.engine.records import Interval
from flatout.store.checkpoints import Checkpoints
from flatout.store.sharded import ShardedCheckpoints, snapshot
from flatout.store.sharded_peers import Peers
from flatout.world.joining import join
from flatout.world.world import World

STEPS, ROWS, STOP = 14, 22, 9
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    rounds: Rounds
    kind: str = "plain"
    inner: str = "adamw"


CASES = {
    "diloco": Case(Rounds(4)),
    "diloco of a model with batch norm": Case(Rounds(4), "norm"),
    "heavy ball": Case(Rounds(3, Outer(0.5, 0.8, False)), inner="sgd"),
    "average": Case(Rounds(5, AVERAGE)),
    "late by 1 of 4": Case(Rounds(4, delay=1)),
    "late by a round": Case(Rounds(4, delay=4), "norm"),
    "late by more than two rounds": Case(Rounds(3, AVERAGE, delay=7)),
    "every step, late by 3": Case(Rounds(1, AVERAGE, delay=3), inner="sgd"),
}
SAVED = Case(Rounds(4, delay=6), "norm")  # at STOP, two exchanges are under way and a round has begun


def model_of(kind: str, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    norm = nn.BatchNorm1d(8) if kind == "norm" else nn.Identity()
    first = nn.Linear(6, 8, bias=kind != "norm")  # before a norm its gradient is rounding, which AdamW makes steps of
    return nn.Sequential(first, norm, nn.Tanh(), nn.Linear(8, 3)).double()


def optimizer_of(model: nn.Module, inner: str) -> torch.optim.Optimizer:
    if inner == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=0.02)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if inner == "sgd" else 0.0)


def batch_of(step: int, kind: str) -> Batch:
    """The last one is short: of four processes the first has no row of it, where the model does not need two of each."""
    draw = torch.Generator().manual_seed(step)
    rows = ROWS if step < STEPS - 1 else 13 if kind == "norm" else 3
    return {
        "x": torch.randn((rows, 6), generator=draw, dtype=torch.float64),
        "y": torch.randint(0, 3, (rows,), generator=draw),
    }


def loss_of(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="sum"), float(len(batch["y"]))


def inner_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, loss: Any = loss_of) -> None:
    optimizer.zero_grad()
    loss_sum, weight = loss(model, batch)
    (loss_sum / weight).backward()
    optimizer.step()


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def of_model(model: nn.Module) -> Tensor:
    return flat(model.state_dict().values())


class Training:
    def __init__(self, world: World, case: Case) -> None:
        self.world, self.case = world, case
        self.model = model_of(case.kind)
        self.optimizer = optimizer_of(self.model, case.inner)
        self.local = LocalUpdates(self.model, loss_of, case.rounds, world)
        self.own: list[Tensor] = []  # after each step
        self.of_all: list[Tensor] = []

    def run(self, begin: int, end: int, each: Callable[[], None] = lambda: None) -> None:
        for step in range(begin, end):
            batch = batch_of(step, self.case.kind)
            rows = len(batch["x"])
            low, high = self.world.share(rows)
            assert self.local.takes_part(rows) == (low < high)
            if low < high:
                share = {name: column[low:high] for name, column in batch.items()}
                inner_step(self.model, self.optimizer, share, self.local.loss)
            self.local.after_step(rows)
            each()
            self.own.append(of_model(self.model))
            self.of_all.append(flat(self.local.weights().values()))

    def finished(self) -> dict[str, Any]:
        self.local.finish()
        end = of_model(self.model)
        self.local.finish()  # there is nothing left to do
        return {"own": self.own, "of_all": self.of_all, "end": end, "again": of_model(self.model)}

    def look(self) -> None:
        """Evaluate and save, which are to change nothing."""
        with self.local.in_place():
            assert torch.equal(of_model(self.model), flat(self.local.weights().values()))
            self.model(torch.ones(2, 6, dtype=torch.float64))
        self.local.tree({})

    def tree(self) -> dict[str, Any]:
        own = {"optimizer": self.optimizer.state_dict()}
        return {"model": self.local.weights(), "exchange": self.local.tree(own)}

    def restore(self, tree: dict[str, Any]) -> None:
        self.model.load_state_dict(tree["model"])
        self.optimizer.load_state_dict(self.local.restore(tree["exchange"])["optimizer"])


def whole_run(world: World, case: Case, look: bool = False) -> dict[str, Any]:
    training = Training(world, case)
    training.run(0, STEPS, training.look if look else lambda: None)
    return training.finished()


def data_parallel(world: World, sent: list[int]) -> Tensor:
    model = model_of("plain")
    engine = nn.parallel.DistributedDataParallel(model)

    def counted(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations, and not as text
        sent.append(bucket.buffer().nbytes)
        return allreduce_hook(None, bucket)

    engine.register_comm_hook(None, counted)
    optimizer = optimizer_of(model, "plain sgd")
    for step in range(STEPS - 1):
        batch = batch_of(step, "plain")
        low, high = world.share(len(batch["x"]))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(engine(batch["x"][low:high]), batch["y"][low:high], reduction="sum")
        (loss * world.size / len(batch["x"])).backward()
        optimizer.step()
    return of_model(model)


@contextmanager
def counting() -> Iterator[list[int]]:
    """The bytes of every sum."""
    sent: list[int] = []
    before = dist.all_reduce

    def counted(tensor: Tensor, *given: Any, **named: Any) -> Any:
        sent.append(tensor.nbytes)
        return before(tensor, *given, **named)

    dist.all_reduce = counted
    try:
        yield sent
    finally:
        dist.all_reduce = before


def against_data_parallel(world: World) -> dict[str, Any]:
    """Without the short batch, so that steps are as many as rounds take."""
    found: dict[str, Any] = {"bytes of data parallel": []}
    found["data parallel"] = data_parallel(world, found["bytes of data parallel"])
    for every in (1, 4):
        training = Training(world, Case(Rounds(every, AVERAGE), inner="plain sgd"))
        with counting() as sent:
            training.run(0, STEPS - 1 - (STEPS - 1) % every)
        found[f"every {every}"], found[f"bytes of every {every}"] = training.own[-1], sent
    return found


def overlapped(world: World) -> list[Tensor]:
    """The second process ends its round only when the first one has gone on from its own: that one can't have waited for it."""
    training = Training(world, Case(Rounds(2, delay=2)))
    if world.rank == 1:
        training.run(0, 1)
        world.store.wait(["gone on"])
        training.run(1, 3)
    else:
        training.run(0, 3)
        world.store.set("gone on", "1")
    training.run(3, 4)
    training.local.finish()
    return training.own


def different_from_the_start(world: World) -> Tensor:
    model = model_of("norm", seed=world.rank)
    LocalUpdates(model, loss_of, Rounds(4), world)
    return of_model(model)


def losses_of_all(world: World) -> Interval:
    local = LocalUpdates(model_of("plain"), loss_of, Rounds(4), world)
    nan, rank = float("nan"), world.rank
    return local.of_all(Interval([1.0 + rank, 2.0, nan if rank else 1.0], [1.0, 3.0 * rank, 1.0], [0.5 + rank, 1.0, 1.0]))


def stopped(world: World, folder: Path) -> dict[str, Any]:
    """Saved in the middle, ended there, and gone on from there by others."""
    first = Training(world, SAVED)
    first.run(0, STOP)
    checkpoints = ShardedCheckpoints(Checkpoints(folder), Peers(world, timeout_s=50))
    checkpoints.write(STOP, snapshot(first.tree()))
    second = Training(world, SAVED)
    second.run(0, 5)  # anything: a rollback restores over what is under way
    second.restore(checkpoints.load(STOP))
    second.own.clear()
    second.run(STOP, STEPS)
    third = Training(world, SAVED)
    third.restore(checkpoints.load(STOP, into=third.tree()))
    third.run(STOP, STEPS)
    return {"ended": first.finished()["end"], "resumed": second.finished(), "resumed in place": third.finished()}


def resumed(world: World, folder: Path) -> dict[str, Any]:
    training = Training(world, SAVED)
    checkpoints = ShardedCheckpoints(Checkpoints(folder), Peers(world, timeout_s=50))
    training.restore(checkpoints.load(STOP))
    start = of_model(training.model)
    training.run(STOP, STEPS - 1)
    return {"start": start, **training.finished()}


def main(folder: Path) -> None:
    world = join(torch.device("cpu"))
    found: dict[str, Any] = {name: whole_run(world, case) for name, case in CASES.items()}
    if world.size == 2:
        found["saved"] = whole_run(world, SAVED)
        found |= {"looked at": whole_run(world, Case(Rounds(4, delay=1)), look=True), "stopped": stopped(world, folder)}
        found |= {"overlapped": overlapped(world), "losses": losses_of_all(world)}
    else:
        found["resumed"] = resumed(world, folder)
    found |= {"parallel": against_data_parallel(world), "start": different_from_the_start(world)}
    torch.save(found, folder / f"{world.rank} of {world.size}.pt")
    world.barrier()
    world.close()


if __name__ == "__main__":
    main(Path(json.loads(sys.argv[1])))
