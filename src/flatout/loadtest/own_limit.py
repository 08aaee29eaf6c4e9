"""Was the generator, and not the server, the limit? Then latencies are upper bounds, and the server is not to blame."""

from __future__ import annotations

from flatout.base.units import show_seconds
from flatout.loadtest.crew import Recorded
from flatout.loadtest.figures import LoadFigures
from flatout.loadtest.outcomes import RequestFailure

_BUSY = 0.9  # of the time a process ran or was ready to run: above it, it is late in sending and in reading answers
_LAG_S = 1e-3  # such a lag is never worth a word
_LAG_SHARE = 0.2  # of the latency


def generator_problem(figures: LoadFigures, recorded: Recorded) -> str | None:
    """None if the generator kept up."""
    if lost := figures.failures.get(RequestFailure.NO_SOCKET):
        told = f"{lost:,} requests found no free file descriptor or port on this machine"
        return f"{told}: raise the limit of open files, or take fewer --connections"
    busiest, waits = max(zip(recorded.cpu_shares, recorded.starved_shares, strict=True), key=sum)
    if busiest > _BUSY:
        return f"a generator process used {busiest:.0%} of a core: add --processes, or run it on another machine"
    if busiest + waits > _BUSY:
        return f"a generator process used {busiest:.0%} of a core and waited for one in {waits:.0%} of the time: too few cores"
    lag_s = figures.lag_s(0.99)
    if lag_s > max(_LAG_S, _LAG_SHARE * figures.latency_s(0.99)):
        told = f"1 in 100 requests was sent {show_seconds(lag_s)} late or more"
        return f"{told}; the generator used {busiest:.0%} of a core, so other programs took the cores"
    return None
