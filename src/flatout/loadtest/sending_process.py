"""A process that sends requests. Its stdin is a socket to the command that started it, which gives it one job after another.

command -> process   {"job": ..., "dialing": ...} with the schedule and the requests; {"start": time.monotonic() to begin at}
                     {"stop": true}, or the end of the socket: end the job now
process -> command   {"ready": true}; then the result of the job, with its records
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flatout.loadtest.connection_pool import ConnectionPool, Dialing
from flatout.loadtest.frames import receive_frame, send_frame
from flatout.loadtest.libraries import http_library
from flatout.loadtest.pacing import by_schedule, one_after_another

_SCHEDULER = Path("/proc/self/schedstat")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command says when to stop
    _allow_most_files()
    loops = http_library("uvloop")
    line = socket.socket(fileno=0)
    gc.collect()
    gc.freeze()
    try:
        while True:
            head, blobs = receive_frame(line)
            if "job" not in head:  # a stop that came after the job had ended
                continue
            send_frame(line, {"ready": True})
            start, _ = receive_frame(line)
            with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
                result, records = runner.run(_job(line, head, blobs, start["start"]))
            send_frame(line, result, [records])
    except (EOFError, ConnectionError):
        return


async def _job(
    line: socket.socket, head: dict[str, Any], blobs: Sequence[bytes], began_s: float
) -> tuple[dict[str, Any], bytes]:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_reader(line.fileno(), stop.set)
    job = head["job"]
    pool = ConnectionPool(loop, Dialing(**head["dialing"]), began_s, job["warm_s"])
    before = _Effort.now()
    efforts: list[tuple[float, float]] = []
    # until the last is scheduled: while the last answers are waited for there is nothing to do
    loop.call_later(began_s + job["seconds"] - time.monotonic(), lambda: efforts.append(before.shares_since(began_s)))
    if job["closed"]:
        asked = await one_after_another(pool, job["closed"], blobs[1:], began_s, job["seconds"], stop)
    else:
        asked = await by_schedule(pool, array("d", blobs[0]), blobs[1:], began_s, stop)
    efforts.append(before.shares_since(began_s))
    ended_s = time.monotonic() - began_s
    loop.remove_reader(line.fileno())
    line.setblocking(True)  # the loop has changed that
    records = pool.records.tobytes()
    result = {
        "asked": asked,
        "ended_s": ended_s,
        "cpu_share": efforts[0][0],
        "starved_share": efforts[0][1],
        "received_bytes": pool.received_bytes,
        "retried": pool.retried,
        "most_open": pool.most_open,
        "has_waited": pool.has_waited,
        "sums": pool.heard_numbers.sums,
        "counts": pool.heard_numbers.counts,
    }
    pool.close()
    await asyncio.sleep(0)  # connections are closed by the loop
    return result, records


class _Effort(NamedTuple):
    cpu_s: float
    starved_s: float  # ready to run, and no core free

    @classmethod
    def now(cls) -> _Effort:
        return cls(time.process_time(), _starved_s())

    def shares_since(self, began_s: float) -> tuple[float, float]:
        """Of the time since then: on a core, and waiting for one."""
        now, elapsed_s = _Effort.now(), max(1e-9, time.monotonic() - began_s)
        return (now.cpu_s - self.cpu_s) / elapsed_s, (now.starved_s - self.starved_s) / elapsed_s


def _starved_s() -> float:
    """By Linux's scheduler; 0 on other systems."""
    try:
        return int(_SCHEDULER.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _allow_most_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
