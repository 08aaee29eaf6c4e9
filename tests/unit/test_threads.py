"""How many threads a run computes with: chosen, pinned, kept by a resume, and watched while others use the cores."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import flatout as fo
from flatout.base.events import EventLog
from flatout.engine import shared_cores
from flatout.engine.settings import Settings
from flatout.engine.shared_cores import SharedCores
from flatout.machine import host, others_work
from flatout.machine import threads as counting
from flatout.machine.advice import advise
from flatout.machine.ceilings import Ceilings
from flatout.machine.facts import read_facts
from flatout.machine.others_work import CpuUse, OthersWork, others_now
from flatout.machine.threads import ThreadTimes, counts_to_try, cpu_threads, most_threads, time_counts, time_small_step
from flatout.plan import thread_times
from flatout.plan.thread_times import choose_threads
from flatout.recipe.build import build_job


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine where nobody has set OMP_NUM_THREADS."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(counting, "usable_cores", lambda: 2)
    with cpu_threads(2):
        yield


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def recipe(**given: Any) -> fo.Recipe:
    return fo.Recipe(**{"data": "digits", "model": network, "batch": 32, "lr": 1e-3, "budget": "20 steps", **given})


def trained(tmp_path: Path, **given: Any) -> fo.Run:
    return fo.run(recipe(**given), runs=tmp_path, cache=None, planning="off", quiet=True)


def times(monkeypatch: pytest.MonkeyPatch, one: float, two: float) -> None:
    monkeypatch.setattr(thread_times, "time_counts", lambda step, counts, limit_s: ThreadTimes({1: [one] * 5, 2: [two] * 5}))


# ---- which number is fastest ----


def test_counts_are_powers_of_two_and_the_most() -> None:
    assert [counts_to_try(most) for most in (1, 2, 6, 8)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8)]


def test_a_smaller_number_must_be_clearly_faster() -> None:
    assert ThreadTimes({1: [0.98] * 5, 2: [1.0] * 5}).fastest() == 2
    assert ThreadTimes({1: [0.5] * 5, 2: [1.0] * 5}).fastest() == 1
    assert ThreadTimes({1: [0.5, 2, 2, 0.5, 2], 2: [1.0] * 5}).fastest() == 2
    assert ThreadTimes({1: [0.9] * 5, 2: [0.4] * 5, 4: [1.0] * 5}).fastest() == 2


def test_on_busy_cores_pauses_count() -> None:
    lucky = ThreadTimes({1: [1.0] * 5, 2: [0.7, 0.7, 0.7, 9.0, 9.0]})
    assert lucky.fastest(busy=True) == 1 and ThreadTimes({1: [0.99] * 5, 2: [1.0] * 5}).fastest(busy=True) == 1


def test_a_step_is_timed_with_each_number_which_is_put_back() -> None:
    seen: list[int] = []
    found = time_counts(lambda: seen.append(torch.get_num_threads()), (1, 2), 0.01)
    assert set(seen) == {1, 2} and len(found.step_s[1]) == len(found.step_s[2]) >= 2
    state = torch.get_rng_state()
    assert set(time_small_step((1, 2), 0.01).step_s) == {1, 2}
    assert torch.get_num_threads() == 2 and torch.equal(state, torch.get_rng_state())


def test_a_containers_quota_limits_threads(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000")
    assert host.cgroup_cores(tmp_path) == 1.5
    with cpu_threads(64):
        assert most_threads() == 2 and choose_threads(build_job(recipe()), None, None, OthersWork()).count <= 2


# ---- what the plan chooses, and why ----


@pytest.mark.parametrize(("one", "two", "count"), [(0.1, 1.0, 1), (1.0, 0.6, 2)])
def test_the_plan_takes_the_fastest_and_the_run_computes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: float, two: float, count: int
) -> None:
    times(monkeypatch, one, two)
    monkeypatch.setattr(thread_times, "nothing_else_runs", lambda: False)
    used: list[int] = []

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            used.append(torch.get_num_threads())
            return self.head(x.flatten(1))

    run = trained(tmp_path, model=Counts)
    (choice,) = [choice for choice in run.plan.choices if choice.name == "threads"]
    assert (choice.value, choice.source, run.plan.settings.threads) == (count, "measured", count)
    assert ("10.0x as fast as with 2" if count == 1 else "1.67x as fast as with 1") in choice.why
    assert set(used[-20:]) == {count} and torch.get_num_threads() == 2
    used.clear()
    fo.evaluate(run, part="train", cache=None)
    assert set(used) == {count} and torch.get_num_threads() == 2


def test_really_timed_without_changing_what_is_learned(tmp_path: Path) -> None:
    job = build_job(recipe())
    before = {name: weights.clone() for name, weights in job.model.state_dict().items()}
    random = torch.get_rng_state()
    chosen = choose_threads(job, 1e-4, 1000.0, OthersWork())
    assert chosen.count in (1, 2) and chosen.gain is not None and "x as fast as with" in chosen.why
    assert all(torch.equal(weights, before[name]) for name, weights in job.model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


def test_what_the_environment_fixes_is_pinned_by_you(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (choice,) = [choice for choice in trained(tmp_path).plan.choices if choice.name == "threads"]
    assert (choice.value, choice.source) == (2, "pinned") and "OMP_NUM_THREADS=2" in choice.why


def test_a_model_that_cannot_be_timed_gets_one_thread_for_each_free_core() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("x")

    busy: Any = SimpleNamespace(use=lambda: CpuUse(1.2, 2))
    chosen = choose_threads(build_job(recipe(model=Wrong)), None, None, busy)
    assert (chosen.count, chosen.gain) == (1, None) and "KeyError" in chosen.why and "60% of 2 cores" in chosen.why


def test_a_resume_keeps_the_number_unless_it_is_pinned_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.engine.loop import Loop

    finish = Loop.finish
    used: list[int] = []

    def fails(loop: Loop) -> Any:
        used.append(torch.get_num_threads())
        if len(used) < 3:
            raise RuntimeError("killed")
        return finish(loop)

    monkeypatch.setattr(Loop, "finish", fails)
    times(monkeypatch, 0.1, 1.0)
    with pytest.raises(RuntimeError, match="killed"):
        trained(tmp_path)
    times(monkeypatch, 1.0, 0.1)
    with pytest.raises(RuntimeError, match="killed"):
        trained(tmp_path)
    run = trained(tmp_path, settings={"threads": 2})
    assert used == [1, 1, 2] and len(list(tmp_path.glob("*/plan.json"))) == 1
    assert ["threads" in event["why"] for event in run.events() if event["kind"] == "degraded"] == [True]


# ---- other processes ----


@pytest.fixture
def busy() -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(2)]
    ours, waiting = [one.pid for one in spinning], others_work._children
    try:
        with pytest.MonkeyPatch.context() as patch:  # started by this process, they would count as its own work
            patch.setattr(others_work, "_children", lambda own: [one for one in waiting(own) if one.pid not in ours])
            yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()


def test_what_other_processes_use_is_seen(busy: None) -> None:
    time.sleep(0.1)
    used = others_now(0.3)
    assert used is not None and used.others >= 0.5
    assert others_work.busy_words(CpuUse(1.9, 2)) is not None and "95% of 2 cores" in str(
        others_work.busy_words(CpuUse(1.9, 2))
    )
    assert others_work.busy_words(CpuUse(0.1, 2)) is None and others_work.busy_words(None) is None
    assert (waited := others_work.waited_s()) is None or waited >= 0


def test_own_children_are_no_other_process() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        import psutil

        assert child.pid in [one.pid for one in others_work._children(psutil.Process())]
        child.communicate(b"\n")


@pytest.mark.parametrize(("cores", "said"), [(1.9, True), (0.2, False), (None, False)])
def test_probe_says_that_the_machine_is_busy(cores: float | None, said: bool) -> None:
    from dataclasses import replace

    facts = replace(read_facts(), others_cores=cores)
    facts = replace(facts, cpu=replace(facts.cpu, affinity_cores=2))
    assert ("busy machine" in [one.name for one in advise(facts, Ceilings("cpu", {}))]) is said


class Watched:
    """Looks of a run one after another, with these readings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gain: float = 8.0, **settings: Any) -> None:
        self.said: list[dict[str, Any]] = []
        self.now, self.others, self.waited = 0.0, 0.0, 0.0
        found = ThreadTimes({1: [1.0] * 5, 2: [gain] * 5})
        monkeypatch.setattr(shared_cores, "OthersWork", lambda: SimpleNamespace(use=lambda: CpuUse(self.others, 2)))
        monkeypatch.setattr(shared_cores, "waited_s", lambda: self.waited)
        monkeypatch.setattr(shared_cores, "time_small_step", lambda counts: found)
        log = EventLog(None, (self.said.append,))
        self.cores = SharedCores(Settings(**{"device": "cpu", **settings}), log, clock=lambda: self.now)

    def looks(self, count: int, *, others: float, waiting: float = 0.5) -> list[dict[str, Any]]:
        self.others = others
        for _ in range(count):
            self.now += 4.0
            self.waited += 4.0 * waiting
            self.cores.look()
        return self.said


def test_a_run_on_shared_cores_says_what_helps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    assert not watched.looks(20, others=0.1) and not watched.looks(1, others=1.9), "a moment is no reason"
    watched.looks(10, others=1.9)
    (event,) = watched.said
    assert (event["kind"], event["what"], event["value"]) == ("degraded", "threads", 2)
    assert all(part in event["why"] for part in ("95% of 2 cores", "1 thread", "8.0x", "--set threads=1"))
    assert torch.get_num_threads() == 2, "other sums would round otherwise"


@pytest.mark.parametrize("settings", [{"device": "cuda:0"}, {}])
def test_no_false_alarm(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    watched = Watched(monkeypatch, **settings)
    assert not watched.looks(20, others=0.3 if not settings else 1.9), "idle, or on another device"
    assert not watched.looks(20, others=1.9, waiting=0.01), "others give way"


def test_without_determinism_it_switches_and_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, deterministic=False)
    watched.looks(3, others=1.9)
    assert torch.get_num_threads() == 1
    watched.looks(30, others=0.0)
    assert torch.get_num_threads() == 2 and [event["value"] for event in watched.said] == [1, 2]


def test_fewer_threads_are_not_advised_where_they_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    (event,) = Watched(monkeypatch, gain=1.0).looks(4, others=1.9)
    assert "95% of 2 cores" in event["why"] and "--set" not in event["why"]
