"""A load test: open loop, closed loop, or a search for the highest rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from flatout.loadtest.arrivals import Seconds
from flatout.loadtest.connection_pool import Dialing
from flatout.loadtest.crew import Crew, LoadJob, Recorded
from flatout.loadtest.figures import LoadFigures, figures
from flatout.loadtest.own_limit import generator_problem
from flatout.loadtest.requests import LoadRequest
from flatout.loadtest.target import LoadTarget
from flatout.machine.host import affinity_cores, cgroup_cores

_RATE_A_PROCESS = 10_000  # of 30,000 small requests/s that a core sends at most: lag stays small
_BYTES_A_PROCESS = 200e6


@dataclass(frozen=True)
class LoadLimits:
    connections: int = 1024
    timeout_s: float = 10.0
    retry: bool = False


@dataclass(frozen=True)
class LoadResult:
    job: LoadJob
    recorded: Recorded
    figures: LoadFigures
    generator_problem: str | None


class LoadTest:
    """Of one server with one set of requests. Use it with `with`: its processes last from one measurement to the next."""

    def __init__(self, target: LoadTarget, requests: Sequence[LoadRequest], limits: LoadLimits, processes: int) -> None:
        dialing = Dialing(
            host=target.reached_at(limits.timeout_s),
            port=target.port,
            server_name=target.host if target.is_tls else None,
            verify=target.verify,
            most_connections=max(limits.connections, processes),
            timeout_s=limits.timeout_s,
            retry=limits.retry,
        )
        self._crew = Crew(processes, dialing, [request.wire(target.authority) for request in requests])

    def __enter__(self) -> LoadTest:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._crew.__exit__(kind, value, trace)

    def open_loop(self, times_s: Seconds, seconds: float, warm_s: float) -> LoadResult:
        return self._measured(LoadJob(times_s, seconds, warm_s))

    def closed_loop(self, connections: int, seconds: float, warm_s: float) -> LoadResult:
        return self._measured(LoadJob(np.empty(0), seconds, warm_s, connections))

    def _measured(self, job: LoadJob) -> LoadResult:
        recorded = self._crew.run(job)
        found = figures(job, recorded)
        return LoadResult(job, recorded, found, generator_problem(found, recorded))


def processes_for(rate: float | None, request_bytes: float) -> int:
    """By rate and size, and at most half of the cores: the server may be on the same machine. `rate` None: not known yet."""
    cores = int(min(affinity_cores(), cgroup_cores() or math.inf))
    if rate is None:
        return max(1, cores // 4)
    needed = max(rate / _RATE_A_PROCESS, rate * request_bytes / _BYTES_A_PROCESS)
    return max(1, min(cores // 2, math.ceil(needed)))
