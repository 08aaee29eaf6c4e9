"""The trace of a window of steps as plain numbers: host spans, device work, marks and samples.

All times are nanoseconds of one clock. Tests make traces of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatout.doctor.called import Called
from flatout.doctor.flops import flops_of
from flatout.doctor.kinds import is_runtime
from flatout.doctor.marks import PREFIX, Mark
from flatout.measure.counts import Operation


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int
    name: str
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """A kernel or a copy on the device. `launched`: when the host launched it, if known."""

    start: int
    end: int
    name: str
    launched: int | None = None


@dataclass(frozen=True, slots=True)
class ThreadSample:
    """Where the main thread was: the innermost line of the user's code."""

    at: int
    where: str
    in_torch: bool = False  # this line was inside a call into torch
    took: int = 0  # ns that taking the sample stopped the thread
    writes: bool = False  # the line writes to a file


@dataclass(frozen=True)
class Trace:
    begin: int
    end: int
    steps: int
    host: Sequence[Span]  # of the training thread; nested or disjoint, never overlapping otherwise
    helpers: Sequence[Span] = ()  # of the threads that run the backward pass
    device: Sequence[DeviceWork] = ()
    samples: Sequence[ThreadSample] = ()
    left_out: Sequence[tuple[int, int]] = ()  # evaluations and checkpoints, which are counted separately
    flops: float = 0.0  # of products, convolutions and attention, in all steps
    counts: Mapping[str, int] = field(default_factory=dict)  # how often each operator was called
    sizes: Mapping[str, float] = field(default_factory=dict)
    operations: Sequence[Operation] = ()  # products and convolutions of all steps


def from_profiler(
    events: Iterable[Any],
    marks: Sequence[Mark],
    begin: int,
    end: int,
    steps: int,
    samples: Sequence[ThreadSample] = (),
) -> Trace:
    """`events`: kineto's, from torch.profiler."""
    host_threads: dict[int, list[Span]] = {}
    # operators and runtime calls are numbered apart, so one number may stand for one of each
    operators, calls = dict[int, int](), dict[int, int]()
    work: list[tuple[int, int, str, int, int]] = []
    flops, counts, called = 0.0, dict[str, int](), Called()
    main = None
    for event in events:
        start, name = event.start_ns(), event.name()
        stop = start + event.duration_ns()
        if stop < begin or start > end:
            continue
        if event.device_type().name != "CPU":
            if not event.is_user_annotation() and not name.startswith(PREFIX):
                work.append((start, stop, name, event.correlation_id(), event.linked_correlation_id()))
            continue
        mark = marks[int(name[len(PREFIX) :])] if name.startswith(PREFIX) else None
        thread = event.start_thread_id()
        if mark is not None:
            main = thread
        host_threads.setdefault(thread, []).append(Span(start, stop, name, mark))
        (calls if is_runtime(name) else operators)[event.correlation_id()] = start
        event_flops = flops_of(event)
        called.add(event, event_flops)
        flops += event_flops
        counts[name] = counts.get(name, 0) + 1
    if main is None and host_threads:
        main = max(host_threads, key=lambda thread: len(host_threads[thread]))
    host = host_threads.pop(main, []) if main is not None else []
    return Trace(
        begin,
        end,
        steps,
        host,
        [span for spans in host_threads.values() for span in spans],
        [DeviceWork(start, stop, name, calls.get(call, operators.get(operator))) for start, stop, name, call, operator in work],
        samples,
        flops=flops,
        counts=counts,
        operations=called.operations,
    )
