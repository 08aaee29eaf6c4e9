"""Observes a script's steps: warm-up, a window under the profiler, a plain window, then almost nothing.

Hooks with a cost are installed for the windows only. The rest count steps, evaluations and checkpoints until the end.
"""

from __future__ import annotations

import resource
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flatout.doctor import where
from flatout.doctor.marks import Marks
from flatout.doctor.observing.calling import Calling
from flatout.doctor.observing.compiling import compiled_so_far
from flatout.doctor.observing.growing import Growing
from flatout.doctor.observing.loading import LoaderObserver
from flatout.doctor.observing.looking import Looking
from flatout.doctor.observing.reading import HostReadObserver
from flatout.doctor.observing.sampler import StackSampler
from flatout.doctor.observing.saving import Saving
from flatout.doctor.observing.stepping import Stepping
from flatout.doctor.observing.talking import Talking
from flatout.doctor.observing.writing import Writing
from flatout.doctor.patches import Patches
from flatout.doctor.seen import ScriptRecord
from flatout.doctor.trace import Trace, from_profiler
from flatout.machine.host import affinity_cores
from flatout.measure.clock import synchronize

_WARM_UP = 3
_FEWEST = 3
_PROFILED_S, _PLAIN_S = 6.0, 12.0  # a window with slow steps ends after this time
_WEIGH_EVERY = 5


@dataclass(frozen=True)
class ObservedSteps:
    """How many steps to observe: `profiled` under the profiler, `plain` to time them without it."""

    profiled: int = 10
    plain: int = 20

    @classmethod
    def of(cls, steps: int) -> ObservedSteps:
        return cls(max(_FEWEST, steps // 3), max(_FEWEST, steps - steps // 3))


class Observer:
    def __init__(
        self,
        folder: Path,
        window: ObservedSteps | None = None,
        when_done: Callable[[], None] = lambda: None,
        afterwards: Callable[[], None] = lambda: None,
    ) -> None:
        """`when_done` is called when the last window ends, `afterwards` at each later step."""
        self.seen = ScriptRecord()
        self.trace: Trace | None = None
        self._window, self._when_done, self._afterwards = window or ObservedSteps(), when_done, afterwards
        self._plain_s = 0.0
        self._compiled_earlier = self._compiled_warm = 0
        self._marks = Marks()
        self._always, self._in_window = Patches(), Patches()
        self._stepping = Stepping(self._marks, self.seen, self._step_over)
        self._stepping.looking = self._looking = Looking(self.seen, self._stepping.made)
        self._calling = Calling(self._marks, self.seen, self._stepping)
        self._loading = LoaderObserver(self._marks, self.seen, folder)
        self._saving = Saving(self._marks, self.seen)
        self._reading, self._talking = HostReadObserver(self._marks, self.seen), Talking(self._marks, self.seen)
        self._writing = Writing(self._marks, self.seen)
        self._growing = Growing(self.seen)
        self._main = threading.get_ident()
        self._phase: Callable[[], None] = self._warming_up
        self._phase_steps = 0
        self._began_ns = self._ended_ns = 0
        self._began_s = time.perf_counter()
        self._first_step_s: float | None = None
        self._last_step_s: float | None = None
        self._profiler: Any = None
        self._events: Any = None
        self._sampler: StackSampler | None = None
        self._device = torch.device("cpu")
        self.complete = False

    def start(self) -> None:
        self._compiled_earlier = compiled_so_far().compiles  # in a notebook something else may have been compiled
        self._stepping.install(self._always)
        self._calling.install(self._always)
        self._loading.install(self._always)
        self._saving.install(self._always)

        def noting(original: Any) -> Any:
            def set_num_threads(count: int) -> None:
                self.seen.threads_set = where.caller()
                original(count)

            return set_num_threads

        self._always.wrap(torch, "set_num_threads", noting)

    def stop(self) -> None:
        """Removes all hooks and completes the record."""
        self._looking.end()
        if self._phase == self._profiling:
            self._close_profile()
        if self._phase == self._timing and self._phase_steps:
            self._close_timing()
        self._phase = self._resting
        self._stepping.note_gradients()
        self._in_window.restore()
        self._calling.remove()
        self._stepping.remove()
        self._always.restore()
        self.sum_up()

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self._stepping.optimizers()

    # steps

    def _step_over(self) -> None:
        if threading.get_ident() != self._main:
            return
        now_s = time.perf_counter()
        self.seen.steps += 1
        if self._first_step_s is None:
            self._first_step_s = now_s
            self.seen.started_s = now_s - self._began_s
        self._last_step_s = now_s
        self._calling.step_over()
        self._phase_steps += 1
        self._phase()

    def _warming_up(self) -> None:
        if self._looking.open:
            self._looking.step_over()
        elif self._phase_steps < _WARM_UP and compiled_so_far().compiles == self._compiled_earlier:
            self._looking.begin()
        if self._phase_steps < _WARM_UP:
            return
        self._looking.end()
        if self._phase_steps == _WARM_UP:
            self._stepping.settle()
            self._compiled_warm = compiled_so_far().compiles
            self._find_device()
        self._open_profile()

    def _find_device(self) -> None:
        kinds = {optimizer.on for optimizer in self.seen.optimizers} or {call.device for call in self._calling.calls()}
        kind = next((kind for kind in kinds if kind != "cpu"), "cpu")
        self._device, self.seen.device = torch.device(kind), kind

    def _open_profile(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        synchronize(self._device)
        self._saving.install_late(self._always)
        self._reading.install(self._in_window)
        self._talking.install(self._in_window)
        self._writing.install(self._in_window)
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        # kineto's events suffice; torch.profiler's own are slow to build
        self._profiler = profile(activities=activities, record_shapes=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch may warn that it drops the events of an earlier profiler
            self._profiler.__enter__()
        self._sampler = StackSampler(self._main)
        self._sampler.start()
        self._marks.recording = True
        self._phase, self._phase_steps = self._profiling, 0
        self._note_memory(-1)
        self._began_ns, self._phase_began_s = time.time_ns(), time.perf_counter()

    def _profiling(self) -> None:
        self._growing.look()
        self.seen.anomaly = torch.is_anomaly_enabled()
        slow = time.perf_counter() - self._phase_began_s > _PROFILED_S and self._phase_steps >= _FEWEST
        if self._phase_steps >= self._window.profiled or slow:
            self._close_profile()
            self._phase, self._phase_steps, self._phase_began_s = self._draining, 0, time.perf_counter()
            if not self._loading.ahead:
                self._open_timing()

    def _close_profile(self) -> None:
        assert self._sampler is not None
        self._sampler.waiting = True
        synchronize(self._device)
        self._ended_ns = time.time_ns()
        self._marks.recording = False
        self._sampler.stop()
        self._profiler.__exit__(None, None, None)
        self._in_window.restore()
        self._calling.narrow()
        self._profiled_steps = self._phase_steps
        self._events = self._profiler.profiler.kineto_results
        self._profiler = None
        self._note_memory(1)

    def _draining(self) -> None:
        """Skips steps whose batches workers prefetched during the slow steps under the profiler."""
        slow = time.perf_counter() - self._phase_began_s > _PROFILED_S
        if self._phase_steps >= min(self._loading.ahead, self._window.plain) or slow:
            self._open_timing()

    def _open_timing(self) -> None:
        self._phase, self._phase_steps = self._timing, 0
        self._loading.counting = True
        self._compiled_before_s = compiled_so_far().seconds
        synchronize(self._device)
        self._note_pages(-1)
        self._plain_began_ns, self._phase_began_s = time.time_ns(), time.perf_counter()

    def _timing(self) -> None:
        if self._phase_steps % _WEIGH_EVERY == 0:
            self._growing.weigh(self.seen.steps)
        slow = time.perf_counter() - self._phase_began_s > _PLAIN_S and self._phase_steps >= _FEWEST
        if self._phase_steps >= self._window.plain or slow:
            self._close_timing()
            self.complete = True
            self._phase, self._phase_steps = self._resting, 0
            self._when_done()

    def _close_timing(self) -> None:
        synchronize(self._device)
        self._plain_s = time.perf_counter() - self._phase_began_s
        self.seen.window_steps = self._phase_steps
        self._plain_ended_ns = time.time_ns()
        self._note_pages(1)
        self._loading.counting = False
        self.seen.compiles.in_windows_s = compiled_so_far().seconds - self._compiled_before_s
        self._growing.weigh(self.seen.steps)
        self._stepping.note_gradients()

    def _resting(self) -> None:
        if self._phase_steps % 50 == 0 and not self._phase_steps > 5000:
            self._growing.weigh(self.seen.steps)
        self._afterwards()

    def _note_memory(self, sign: int) -> None:
        if self._device.type == "cuda":
            stats = torch.cuda.memory_stats()
            self.seen.memory.device_allocations += sign * int(stats.get("num_device_alloc", 0))
            self.seen.memory.retries += sign * int(stats.get("num_alloc_retries", 0))

    def _note_pages(self, sign: int) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.seen.memory.page_faults += sign * used.ru_minflt
        self.seen.memory.system_s += sign * used.ru_stime

    # the end

    def sum_up(self) -> None:
        """Completes the record of what was observed so far."""
        seen = self.seen
        self._loading.collect()
        seen.calls = self._calling.calls()
        seen.evaluations = self._calling.periods()
        in_windows_s = seen.compiles.in_windows_s
        seen.compiles = replace(compiled_so_far(self._compiled_warm), in_windows_s=in_windows_s)
        seen.threads, seen.cores = torch.get_num_threads(), affinity_cores()
        seen.matmul_precision = torch.get_float32_matmul_precision()
        seen.cudnn_benchmark = torch.backends.cudnn.benchmark
        if self._first_step_s is not None:
            seen.run_s = time.perf_counter() - self._first_step_s
        self._leave_out_other_work()
        if self._events is not None:
            left_out = [(p.start, p.end) for p in (*seen.evaluations, *seen.checkpoints)]
            assert self._sampler is not None
            trace = from_profiler(
                self._events.events(),
                self._marks.known,
                self._began_ns,
                self._ended_ns,
                self._profiled_steps,
                self._sampler.samples,
            )
            self.trace = replace(trace, left_out=left_out)

    def _leave_out_other_work(self) -> None:
        """The window's time without the evaluations and checkpoints in it."""
        if not self.seen.window_steps:
            return
        self.seen.window_s = self._plain_s
        for period in (*self.seen.evaluations, *self.seen.checkpoints):
            start, end = max(period.start, self._plain_began_ns), min(period.end, self._plain_ended_ns)
            self.seen.window_s -= max(0, end - start) / 1e9
