"""The life of a worker process: open the parcel, then do one job after the other until the line to the owner closes."""

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

Task = Callable[[Any, WorkerMemory], Any]  # a job, and where its rows go, to a reply


@dataclass(frozen=True)
class Setup:
    """`terms` are for the task in the parcel, which was packed before they were known."""

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
    """Said in full already."""

    why: str


@dataclass(frozen=True)
class Broken:
    """Not a sample's fault."""

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


def work(line: int, memory: int, parcel: int, trace: int) -> None:
    """Never returns. The descriptors are of the line to the owner, the memory of results, the parcel, and of stack traces."""
    code = 1
    try:
        connection = Connection(line)
        threading.Thread(target=_end_with_owner, args=(line,), daemon=True).start()
        faulthandler.register(signal.SIGUSR1, file=trace, all_threads=False)  # where a sample hangs
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
        spawn.prepare(setup.contents.main or {})  # with a main: that script, imported, in place of ours
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
    """Also in the middle of a sample that never comes."""
    watch = select.poll()
    watch.register(line, 0)  # nothing but the closing of the other end wakes it
    watch.poll()
    os._exit(1)
