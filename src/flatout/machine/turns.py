"""Times calls. Alternatives are timed in turns, so that other load slows all of them equally."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from flatout.machine.capture import captured
from flatout.measure.clock import synchronize, time_repeats

BEARABLE_S = 0.1
_REPEATS, _REPEATS_OF_SEVERAL = 5, 10
_BLOCK_S, _MOST_IN_A_BLOCK = 4e-4, 64  # one repeat: long enough to time, short enough for hundreds of operators


def time_in_turns(
    ways: Sequence[Callable[[], object]], device: torch.device, *, with_host: bool = False, bearable_s: float = BEARABLE_S
) -> list[list[float]]:
    """Seconds of each repeat, for each way. On a CPU, only one or two repeats if one takes longer than `bearable_s`.

    `with_host`: on a GPU, include the host's time for launching kernels.
    """
    as_graph = device.type == "cuda" and not with_host
    firsts_s = [_once_s(way, device, as_graph) for way in ways]
    if (
        device.type == "cpu" and max(firsts_s) > bearable_s
    ):  # on a device the first call may be slow, as it searches for the best kernel
        if len(ways) == 1:
            return [firsts_s]
        turns_s = [[_once_s(way, device, as_graph) for way in ways] for _ in range(2)]
        return [list(seconds) for seconds in zip(*turns_s, strict=True)]
    in_blocks = [_in_a_block(way, device) for way in ways]
    # a GPU gets all repeats at once, so that its queue stays full; on a CPU the ways take turns, because it is shared
    repeats = _REPEATS if len(ways) == 1 else _REPEATS_OF_SEVERAL
    turns, at_once = (repeats, 1) if device.type == "cpu" else (1, repeats)
    taken_s: list[list[float]] = [[] for _ in ways]
    with ExitStack() as stack:
        blocks = [stack.enter_context(_block(way, n, device, as_graph)) for way, n in zip(ways, in_blocks, strict=True)]
        for turn in range(turns):
            for block, seconds in zip(blocks, taken_s, strict=True):
                seconds += time_repeats(block, at_once, int(turn == 0), device)
    return [[one_s / n for one_s in seconds] for seconds, n in zip(taken_s, in_blocks, strict=True)]


def _once_s(way: Callable[[], object], device: torch.device, as_graph: bool) -> float:
    began_s = time.monotonic()
    with _no_waiting(as_graph):
        way()
    synchronize(device)
    return time.monotonic() - began_s


def _in_a_block(way: Callable[[], object], device: torch.device) -> int:
    once_s = max(min(time_repeats(way, 2, 0, device)), 1e-7)
    return max(1, min(_MOST_IN_A_BLOCK, math.ceil(_BLOCK_S / once_s)))


@contextmanager
def _no_waiting(as_graph: bool) -> Iterator[None]:
    """Make waiting for the device an error: a graph can't contain it, and a failed capture would break the process."""
    if not as_graph:
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _block(way: Callable[[], object], times: int, device: torch.device, as_graph: bool) -> Iterator[Callable[[], None]]:
    """`times` calls in a row; as a CUDA graph, without the host in between."""

    def block() -> None:
        for _ in range(times):
            way()

    if not as_graph:
        yield block
        return
    with captured(device) as graph:
        block()
    try:
        yield graph.replay
    finally:
        graph.reset()
