"""Was the generator, and not the server, the limit? Then latencies are upper bounds, and the server is not to blame."""

from __future__ import annotations

from flatout.base.units import show_seconds
from flatout.loadtest.crew import Recorded
from flatout.loadtest.figures import LoadFigures
from flatout.loadtest.outcomes import Failure

_BUSY = 0.9  # of a core: above it a process is late in sending and in reading answers
_LAG_S = 1e-3  # such a lag is never worth a word
_LAG_SHARE = 0.2  # of the latency


def generator_problem(figures: LoadFigures, recorded: Recorded) -> str | None:
    """None if the generator kept up."""
    if lost := figures.failures.get(Failure.NO_SOCKET):
        told = f"{lost:,} requests found no free file descriptor or port on this machine"
        return f"{told}: raise the limit of open files, or take fewer --connections"
    busiest = max(recorded.cpu_shares)
    if busiest > _BUSY:
        return f"a generator process used {busiest:.0%} of a core: add --processes, or run it on another machine"
    lag_s = figures.lag_s(0.99)
    if lag_s > max(_LAG_S, _LAG_SHARE * figures.latency_s(0.99)):
        told = f"1 in 100 requests was sent {show_seconds(lag_s)} late or more"
        return f"{told}, although the generator used only {busiest:.0%} of a core: other programs took the cores"
    return None
