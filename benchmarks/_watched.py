"""A small training program of several ranks with one fault planted, watched; benchmarks/hangs.py and tests/faults run it.

    python benchmarks/_watched.py '[{"kind": "sleep", "rank": 2}, ...]'

Each fault gets ranks of its own, forked off this process once it has imported torch, and a store in a process of its own (as
an elastic agent has it) or in rank 0. All faults run side by side. What ranks say comes out as JSON lines.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from flatout.world.watch import Failed, Lost, News, StoreLost
from flatout.world.watch.watch import RankWatch

SOURCE = Path(__file__).read_text().splitlines()


@dataclass(frozen=True)
class Fault:
    kind: str
    rank: int
    size: int = 4
    step: int = 40
    hang_s: float | None = None
    ddp: bool = False
    store: str = "agent"  # or "rank": rank 0 has it
    until: str = "hang"  # news after which all is known
    of_each: bool = False  # every survivor must have said it
    limit_s: float = 60.0

    @property
    def line(self) -> int:
        """Of this file, where the rank is stuck."""
        return next(number for number, text in enumerate(SOURCE, 1) if text.endswith(f"# here: {self.kind}"))


# ---- what goes wrong, each in a line of its own ----


def sleep() -> None:
    time.sleep(600)  # here: sleep


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)  # here: stop


def hold_lock_of_python() -> None:
    ctypes.PyDLL(None).sleep(600)  # here: gil


def deadlock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # here: lock


def read_nothing() -> None:
    reader, _writer = os.pipe()
    os.read(reader, 1)  # here: read


def spin() -> None:
    """A stack shows whichever line of a loop runs; this one spends its time in one."""
    while True:
        sum(range(1_000_000))  # here: spin


def other_collective() -> None:
    dist.broadcast(torch.zeros(1), 0)  # here: collective


def fail() -> None:
    raise ValueError("a row of 13 columns among rows of 12")  # here: raise


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # here: kill


def nap() -> None:
    time.sleep(5)  # here: nap


def work_more() -> None:
    until_s = time.perf_counter() + 0.06
    while time.perf_counter() < until_s:
        torch.ones(64, 64) @ torch.ones(64, 64)


IN_DATA: dict[str, Callable[[], None]] = {
    "sleep": sleep, "nap": nap, "read": read_nothing, "raise": fail, "kill": kill,
}  # fmt: skip
IN_FORWARD: dict[str, Callable[[], None]] = {
    "lock": deadlock, "stop": stop, "gil": hold_lock_of_python, "spin": spin, "collective": other_collective,
}  # fmt: skip


# ---- the program ----


class Model(nn.Module):
    def __init__(self, plant: Callable[[], None]) -> None:
        super().__init__()
        self.first, self.second, self.plant = nn.Linear(32, 64), nn.Linear(64, 8), plant

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        self.plant()
        return self.second(hidden)  # type: ignore[no-any-return]


class Program:
    """A plain loop with the marks of a watch."""

    def __init__(self, fault: Fault, rank: int, watch: RankWatch, say: Callable[..., None]) -> None:
        self.fault, self.rank, self.watch, self.say, self.step = fault, rank, watch, say, 0
        model = Model(self.in_forward)
        self.model = DistributedDataParallel(model) if fault.ddp else model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def run(self) -> None:
        while True:
            self.step += 1
            if self.step == self.fault.step and self.fault.kind in ("roll call", "end"):
                return self.end()
            self.watch.beat(self.step, "data")
            batch = self.next_batch()
            self.watch.beat(self.step, "forward")
            loss = self.model(batch).square().mean()
            self.watch.beat(self.step, "backward")
            loss.backward()
            if not self.fault.ddp:
                self.watch.beat(self.step, "exchange")
                self.exchange()
            self.watch.beat(self.step, "optimizer")
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.step % 20 == 0:
                self.watch.beat(self.step, "checkpoint")
                self.save()

    def next_batch(self) -> Tensor:
        time.sleep(0.02)  # a loop that leaves the cores to others now and then
        if self.is_due(IN_DATA):
            IN_DATA[self.fault.kind]()
        if self.is_slow("slow data"):
            time.sleep(0.05)
        return torch.randn(16, 32)

    def in_forward(self) -> None:
        if self.is_due(IN_FORWARD):
            IN_FORWARD[self.fault.kind]()
        if self.is_slow("slow forward"):
            work_more()

    def end(self) -> None:
        """All ranks come here. Rank 0 takes its store along; for a roll call one is killed, as if an agent then ended all."""
        dist.barrier()
        if self.fault.kind == "roll call":
            self.say("roll", missing=self.watch.missing())
            dist.barrier()
            if self.rank == self.fault.rank:
                kill()
            with suppress(RuntimeError):
                dist.barrier()  # breaks when that rank has died
            self.say("roll", missing=self.watch.missing(), lost=self.watch.lost())
        self.watch.goodbye()
        self.say("ended", trouble=self.watch.trouble)

    def exchange(self) -> None:
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)

    def save(self) -> None:
        if self.fault.kind == "save" and self.fault.rank == self.rank and self.step >= self.fault.step:
            self.say("planted")
            time.sleep(600)  # here: save
        dist.barrier()

    def is_due(self, kinds: dict[str, Callable[[], None]]) -> bool:
        due = self.step == self.fault.step and self.rank == self.fault.rank and self.fault.kind in kinds
        if due:
            self.say("planted")
        return due

    def is_slow(self, kind: str) -> bool:
        if self.fault.kind != kind or self.fault.rank != self.rank or self.step < self.fault.step:
            return False
        if self.step == self.fault.step:
            self.say("planted")
        return True


# ---- its processes ----


def be_rank(fault: Fault, number: int, rank: int, listening: socket.socket, out: int) -> None:
    def say(kind: str, **fields: Any) -> None:
        line = {"fault": number, "rank": rank, "kind": kind, "clock_s": time.monotonic(), **fields}
        os.write(out, json.dumps(line).encode() + b"\n")  # one line of a pipe is written whole

    def on_news(news: News) -> None:
        odd = list(getattr(news, "ranks", ())) or [getattr(news, "rank", -1)]
        say(news.kind, mine=news.mine, odd=odd, told=news.words()[:1500])
        if isinstance(news, Failed | Lost | StoreLost) and fault.kind != "roll call":
            os._exit(17)

    store = open_store(listening, serves=fault.store == "rank" and rank == 0)
    dist.init_process_group(
        "gloo",
        store=PrefixStore("group", store),
        rank=rank,
        world_size=fault.size,
        timeout=timedelta(minutes=10),
    )
    watch = RankWatch(PrefixStore("side", store), rank, fault.size, on_news, hang_s=fault.hang_s)
    watch.missing(within_s=30.0)  # nothing goes wrong before all have heard of each other
    try:
        Program(fault, rank, watch, say).run()
    except BaseException as error:
        cause = watch.fail(error)
        say("left", cause=cause.kind, own=isinstance(cause, Failed) and cause.rank == rank, told=cause.words()[:1500])
        os._exit(18)
    os._exit(0)


def open_store(listening: socket.socket, *, serves: bool) -> Any:
    host, port = listening.getsockname()
    if serves:
        return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    listening.close()
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))


def be_agent(listening: socket.socket) -> None:
    store = open_store(listening, serves=True)
    while store is not None:
        time.sleep(60)


@dataclass
class Running:
    fault: Fault
    pids: dict[int, int]  # rank to process; -1 is the agent
    said: dict[int, list[str]] = field(default_factory=dict)

    def is_known(self) -> bool:
        told = {rank for rank, kinds in self.said.items() if self.fault.until in kinds or "left" in kinds}
        survivors = {rank for rank in self.pids if rank not in (-1, self.fault.rank)}
        return (
            survivors <= told if self.fault.of_each else self.fault.until in [k for kinds in self.said.values() for k in kinds]
        )

    def end(self) -> None:
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)  # none is waited for before, so the number is still this process's
        for pid in self.pids.values():
            os.waitpid(pid, 0)


def start(fault: Fault, number: int, out: int) -> Running:
    listening = socket.create_server(("127.0.0.1", 0))
    ranks = [*range(fault.size), *([-1] if fault.store == "agent" else [])]
    pids = {rank: fork(fault, number, rank, listening, out) for rank in ranks}
    listening.close()
    return Running(fault, pids)


def fork(fault: Fault, number: int, rank: int, listening: socket.socket, out: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        be_agent(listening) if rank < 0 else be_rank(fault, number, rank, listening, out)
    finally:
        os._exit(19)


def run(faults: list[Fault]) -> None:
    torch.set_num_threads(1)
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)  # imports a lot, here once for all
    reader, writer = os.pipe()
    running = {number: start(fault, number, writer) for number, fault in enumerate(faults)}
    began_s, rest = time.monotonic(), b""
    try:
        while running:
            ready, _, _ = select.select([reader], [], [], 0.2)
            lines = (rest + os.read(reader, 1 << 16) if ready else rest).split(b"\n")
            rest = lines.pop()
            for line in lines:
                said = json.loads(line)
                print(line.decode(), flush=True)
                if said["fault"] in running:
                    running[said["fault"]].said.setdefault(said["rank"], []).append(said["kind"])
            for number, one in list(running.items()):
                if one.is_known() or time.monotonic() - began_s > one.fault.limit_s:
                    running.pop(number).end()
    finally:
        for one in running.values():
            one.end()


if __name__ == "__main__":
    run([Fault(**fields) for fields in json.loads(sys.argv[1])])
