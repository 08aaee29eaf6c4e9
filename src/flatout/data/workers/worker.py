"""What a worker process does: unpack its task, then do one job after another until the connection to its owner closes."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker

from flatout.base.errors import DataError
from flatout.data.workers.arena import ArenaLayout, WorkerMemory
from flatout.data.workers.failures import Failure, SampleFailed
from flatout.data.workers.parcel import Contents, unpack
from flatout.data.workers.seeding import drawn_since, generators, set_generators

Task = Callable[[Any, WorkerMemory], Any]  # (job, memory for its rows) -> reply


@dataclass(frozen=True)
class Setup:
    """`terms` are for the task, which was packed before they were known."""

    contents: Contents
    terms: Any
    layout: ArenaLayout
    number: int
    workers: int
    folder: str
    path: list[str]


@dataclass(frozen=True)
class JobDone:
    reply: Any


@dataclass(frozen=True)
class Refused:
    """A DataError; `why` is its complete message."""

    why: str


@dataclass(frozen=True)
class Broken:
    """An error that no sample caused."""

    trace: str


Answer = JobDone | Failure | Refused | Broken


def do(task: Task, job: Any, memory: WorkerMemory) -> Answer:
    try:
        return JobDone(task(job, memory))
    except SampleFailed as failed:
        return failed.failure
    except DataError as error:
        return Refused(str(error))
    except BaseException:
        return Broken(traceback.format_exc())


def warm_up() -> None:
    """In the template: what the first sample of every worker would else set up once more. Starts no threads."""
    torch.set_num_threads(1)
    set_generators(0, 0, 0)
    drawn_since(generators())


def work(line: int, memory: int, parcel: int, trace: int) -> None:
    """Never returns. Descriptors: connection to the owner, memory for rows, packed task, file for stack traces."""
    code = 1
    try:
        connection = Connection(line)
        threading.Thread(target=_end_with_owner, args=(line,), daemon=True).start()
        faulthandler.register(signal.SIGUSR1, file=trace, all_threads=False)  # tells where a sample hangs
        _work(connection, memory, parcel)
        code = 0
    except (EOFError, ConnectionError):
        pass  # the owner is gone
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _work(line: Connection, memory: int, parcel: int) -> None:
    setup: Setup = line.recv()
    try:
        torch.set_num_threads(1)
        sys.path[:] = setup.path
        os.chdir(setup.folder)
        spawn.prepare(setup.contents.main or {})  # imports the script that started it all, if the task needs it
        task = unpack(parcel, setup.contents)
        task.settle(setup.terms)
        shared = WorkerMemory.shared(setup.layout, memory)
        told = {"id": setup.number, "num_workers": setup.workers, "seed": 0, "dataset": task.dataset}
        torch_worker._worker_info = torch_worker.WorkerInfo(**told)
    except BaseException:
        line.send(Broken(traceback.format_exc()))
        return
    line.send(JobDone(None))
    while (job := line.recv()) is not None:
        line.send(do(task, job, shared))


def _end_with_owner(line: int) -> None:
    """Even while a sample hangs."""
    watch = select.poll()
    watch.register(line, 0)  # only woken when the other end closes
    watch.poll()
    os._exit(1)
