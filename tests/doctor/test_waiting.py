"""How long steps wait for data is taken from steps that nobody looked at."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from flatout.boost.remedies.resident import Resident
from flatout.doctor import marks
from flatout.doctor.account import DATA
from flatout.doctor.case import Case, make_case
from flatout.doctor.diagnosis import Diagnosis
from flatout.doctor.finding import Finding
from flatout.doctor.findings import costly_line, no_workers, sample_by_sample
from flatout.doctor.marks import Mark
from flatout.doctor.observing.sampler import StackSampler
from flatout.doctor.seen import Fetched, Period, ScriptLoader, ScriptRecord
from flatout.doctor.trace import DeviceWork, Span, ThreadSample, Trace
from flatout.machine.gains import Gains
from flatout.machine.hand_over import hand_over_key

MS = 1_000_000
STEPS = 10


def loader(workers: int, waited_ms: float, fetch_ms: float) -> tuple[ScriptLoader, list[Fetched]]:
    one = ScriptLoader("train.py:9", "train.py:3", workers, 64, True, True, "Digits", iterable=False, in_steps=STEPS)
    one.waited = [(k * 100 * MS, k * 100 * MS + int(waited_ms * MS)) for k in range(STEPS)]
    told = Fetched(0, 0, STEPS, STEPS * fetch_ms / 1e3, 0.0, {}, "", own_generators=False, drew=False, first_batch="")
    return one, [told] if workers else []


def case(workers: int, waited_ms: float, step_ms: float, fetch_ms: float = 0.0, busy_ms: float = 1.0) -> Case:
    """Under the profiler a step takes 20 ms and never waits."""
    one, told = loader(workers, waited_ms, fetch_ms)
    seen = ScriptRecord("cuda", 100, [one], told, cores=16, window_steps=STEPS, window_s=STEPS * step_ms / 1e3)
    forward = Span(0, 20 * MS, "flatout#forward", Mark(marks.FORWARD, "train.py:10"))
    work = [DeviceWork(MS, MS + int(busy_ms * MS), "gemm", MS)]
    return make_case(seen, Trace(0, 20 * MS, 1, [forward], device=work), None, 1e-6)


def found(case: Case) -> list[Finding]:
    return list(no_workers.look(case))


def test_a_worker_keeps_up_with_the_profiler_but_not_with_the_script() -> None:
    told = case(workers=1, waited_ms=4.0, step_ms=6.0, fetch_ms=6.0)
    assert told.rows[DATA] == pytest.approx(4.0)
    assert told.step_ms == pytest.approx(6.0)
    (finding,) = found(told)
    assert "one worker" in finding.what and finding.where == "train.py:3" and finding.cost_ms == pytest.approx(3.0)


def test_what_the_device_still_computes_while_the_host_waits_is_no_waiting() -> None:
    assert case(1, waited_ms=4.0, step_ms=6.0, busy_ms=5.0).rows[DATA] == pytest.approx(1.0)
    assert case(1, waited_ms=4.0, step_ms=6.0, busy_ms=6.0).rows[DATA] == pytest.approx(0.0)
    assert case(1, waited_ms=4.0, step_ms=6.0, busy_ms=2.0).rows[DATA] == pytest.approx(4.0)


def test_operators_of_the_dataset_are_no_launches_of_the_step() -> None:
    """Samples that are made of many small tensors, in the process that trains, on a machine where to call takes long."""
    one, _ = loader(0, 4.0, 0.0)
    seen = ScriptRecord("cpu", 100, [one], [], cores=2, window_steps=STEPS, window_s=STEPS * 6.0 / 1e3)
    reading = Span(0, 8 * MS, "flatout#data", Mark(marks.DATA, "train.py:9"))
    made = [Span(k * MS // 50, k * MS // 50 + MS // 100, "aten::copy_") for k in range(400)]
    forward = Span(8 * MS, 12 * MS, "flatout#forward", Mark(marks.FORWARD, "train.py:10"))
    inside = [Span(8 * MS + k * MS // 10, 8 * MS + k * MS // 10 + MS // 20, "aten::mm") for k in range(40)]
    told = make_case(seen, Trace(0, 12 * MS, 1, [reading, *made, forward, *inside]), None, 100e-6)
    assert told.rows[DATA] == pytest.approx(4.0) and told.step_ms == pytest.approx(6.0)


def test_waits_of_an_evaluation_are_its_own() -> None:
    one, told = loader(1, 4.0, 6.0)
    evaluated = Period(0, 500 * MS, "train.py:20")
    seen = ScriptRecord("cuda", 100, [one], told, evaluations=[evaluated], cores=16, window_steps=STEPS, window_s=0.06)
    work = [DeviceWork(MS, 2 * MS, "gemm", MS)]
    assert make_case(seen, Trace(0, 20 * MS, 1, [], device=work), None, 1e-6).rows[DATA] == pytest.approx(2.0)


def test_workers_that_keep_up_are_enough_and_so_are_as_many_as_cores() -> None:
    assert not found(case(workers=1, waited_ms=0.5, step_ms=6.0, fetch_ms=5.0))
    assert not found(case(workers=16, waited_ms=4.0, step_ms=6.0, fetch_ms=90.0))
    assert not found(case(workers=2, waited_ms=4.0, step_ms=6.0, fetch_ms=3.0))  # they wait for a core, not for reading


def test_more_workers_are_asked_for_than_the_script_has_and_no_more_than_it_needs() -> None:
    (few,) = found(case(workers=2, waited_ms=6.0, step_ms=10.0, fetch_ms=20.0))
    assert "num_workers=6" in few.remedy
    (none,) = found(case(workers=0, waited_ms=6.0, step_ms=10.0))
    assert "num_workers=8" in none.remedy and "no workers" in none.what


def test_where_steps_are_too_short_for_workers_whole_batches_are_the_remedy() -> None:
    short = case(workers=0, waited_ms=1.8, step_ms=6.0)
    (finding,) = sample_by_sample.look(short)
    assert not found(short)
    assert finding.where == "train.py:3" and finding.cost_ms == pytest.approx(0.65 * 1.8)
    assert "64 single samples" in finding.what and "batch_size=None" in finding.remedy
    alone = replace(case(workers=0, waited_ms=4.0, step_ms=6.0), seen=replace(short.seen, cores=1))  # no core for a worker
    assert not found(alone) and list(sample_by_sample.look(alone))


def test_what_workers_remedy_or_made_or_a_dataset_that_has_whole_batches_is_not_called_sample_by_sample() -> None:
    assert not list(sample_by_sample.look(case(workers=0, waited_ms=4.0, step_ms=6.0)))
    assert not list(sample_by_sample.look(case(workers=1, waited_ms=1.8, step_ms=6.0, fetch_ms=6.0)))
    short = case(workers=0, waited_ms=1.8, step_ms=6.0)
    whole = replace(short.seen, loaders=[replace(short.seen.loaders[0], batch=None, batched=False)])
    assert not list(sample_by_sample.look(replace(short, seen=whole)))


def test_workers_are_weighed_by_what_a_hand_over_was_measured_to_take() -> None:
    plain = case(workers=0, waited_ms=6.0, step_ms=10.0)
    (cheap,) = found(plain)
    slow = replace(plain, gains=Gains({hand_over_key(0): 2.5e-3}))
    (dear,) = found(slow)
    assert dear.cost_ms == pytest.approx(cheap.cost_ms - 1.5)  # 2.5 ms instead of the usual 1 ms
    never = replace(plain, gains=Gains({hand_over_key(0): 4e-3}))
    assert not found(never) and list(sample_by_sample.look(never))


def test_data_is_kept_on_the_device_where_short_steps_wait_for_it_though_no_worker_would_help() -> None:
    short = case(workers=0, waited_ms=0.5, step_ms=3.0)
    assert not found(short)
    (offer,) = Resident().offers(Diagnosis(short, ()))
    assert offer.predicted == pytest.approx(3.0 / 2.5)
    never = replace(short.seen, loaders=[replace(short.seen.loaders[0], waited=[])])
    assert not Resident().offers(Diagnosis(make_case(never, short.trace, None, 1e-6), ()))


def test_waiting_for_the_device_at_the_end_of_the_window_is_no_cost_of_a_line() -> None:
    """The host queues steps quickly; the observer then waits until they are computed. Of 40 samples, 9 are the script's."""

    def look(own: int, waiting: int) -> list[Finding]:
        samples = [ThreadSample(k * MS, "train.py:18", in_torch=True) for k in range(own)]
        samples += [ThreadSample((own + k) * MS, "") for k in range(waiting)]
        seen = ScriptRecord("cuda", 100, [], [], cores=16, window_steps=STEPS, window_s=0.4)
        return list(costly_line.look(make_case(seen, Trace(0, 40 * MS, STEPS, [], samples=samples), None, 1e-6)))

    assert [one.where for one in look(9, 0)] == ["train.py:18"]
    assert look(9, 31) == []


def test_a_sampler_names_no_line_while_the_observer_waits() -> None:
    sampler = StackSampler(threading.get_ident(), period_s=0.001)
    sampler.start()
    for waiting in (False, True):
        before, sampler.waiting = len(sampler.samples), waiting
        while len(sampler.samples) < before + 4:
            time.sleep(0.001)
        last = sampler.samples[-1]
        assert bool(last.where) is not waiting
    sampler.stop()
