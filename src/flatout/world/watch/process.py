"""State of a process on this host: running, stopped, or gone."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import psutil

State = Literal["running", "stopped", "gone", "unknown"]


@dataclass(frozen=True)
class ProcessIdentity:
    """`place` says where the process id is valid: several containers may have the same host name."""

    pid: int
    born: float  # process ids are reused; the pair of id and start time is unique
    host: str
    place: str


def this_process() -> ProcessIdentity:
    namespace = ""
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    host = socket.gethostname()
    return ProcessIdentity(os.getpid(), round(psutil.Process().create_time(), 2), host, f"{host} {namespace}")


def state_of(process: ProcessIdentity, here: ProcessIdentity) -> State:
    """ "unknown" for a process on another host: only a process there can tell."""
    if process.place != here.place:
        return "unknown"
    try:
        found = psutil.Process(process.pid)
        status, born = found.status(), found.create_time()
    except psutil.NoSuchProcess:
        return "gone"
    except psutil.Error:
        return "unknown"
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) or abs(born - process.born) > 1:
        return "gone"
    return "stopped" if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP) else "running"
