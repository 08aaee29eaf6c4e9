"""When requests are sent: at scheduled times (open loop), or each when the one before it is answered (closed loop)."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence

from flatout.loadtest.connection import ScheduledRequest
from flatout.loadtest.connection_pool import ConnectionPool
from flatout.loadtest.precise_timer import PreciseTimer


async def by_schedule(
    pool: ConnectionPool, times_s: array[float], wires: Sequence[bytes], began_s: float, stop: asyncio.Event
) -> int:
    """Returns how many were looked at: all, unless `stop` was set. Ends when all of these have ended."""
    loop = asyncio.get_running_loop()
    count, variants = len(times_s), len(wires)
    position = ended = 0
    over = asyncio.Event()

    def send_due() -> None:
        nonlocal position
        clock, ask = time.monotonic, pool.ask
        while position < count:
            scheduled_s = times_s[position]
            lag_s = clock() - began_s - scheduled_s
            if lag_s < 0:
                timer.set(began_s + scheduled_s)
                return
            wire = wires[position % variants]
            position += 1
            ask(ScheduledRequest(scheduled_s, lag_s, wire))

    def note_end() -> None:
        nonlocal ended
        ended += 1
        if ended == count:
            over.set()

    pool.on_end = note_end
    timer = PreciseTimer(loop, send_due)
    if count == 0:
        over.set()
    send_due()
    await _first_of(over, stop)
    timer.close()
    return position


async def one_after_another(
    pool: ConnectionPool, connections: int, wires: Sequence[bytes], began_s: float, seconds: float, stop: asyncio.Event
) -> int:
    """Returns how many were asked; those without an answer when the time is over are given up."""
    loop = asyncio.get_running_loop()
    variants = len(wires)
    asked = 0
    over = asyncio.Event()

    def ask_next() -> None:
        nonlocal asked
        now_s = time.monotonic() - began_s
        if now_s >= seconds:
            over.set()
            return
        wire = wires[asked % variants]
        asked += 1
        pool.ask(ScheduledRequest(now_s, 0.0, wire))

    pool.on_end = ask_next  # at once; the pool only notes a request here, so this does not call itself without end
    await asyncio.sleep(max(0.0, began_s - time.monotonic()))
    for _ in range(connections):
        ask_next()
    loop.call_later(max(0.0, began_s + seconds - time.monotonic()), over.set)
    await _first_of(over, stop)
    return asked


async def _first_of(over: asyncio.Event, stop: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in (over, stop)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()
