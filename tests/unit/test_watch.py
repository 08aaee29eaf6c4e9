"""The decisions of the watch over many ranks, on stacks and records as ranks send them: no process, no store, no clock."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from flatout.world.watch import SPLIT_FORWARD, NoWatch
from flatout.world.watch.blame import from_exchange
from flatout.world.watch.inquiry import Answer, Neighbour, Question, answer
from flatout.world.watch.limits import LEAST_S, PATIENT_S, UNKNOWN_S, StepTimeLimits
from flatout.world.watch.lookout import Lookout
from flatout.world.watch.news import Failed, Hang, Lost, Moving, News, StoreLost, Straggler
from flatout.world.watch.process import ProcessIdentity, state_of, this_process
from flatout.world.watch.pulse import Pulse
from flatout.world.watch.records import Record, record_of
from flatout.world.watch.roster import Roster
from flatout.world.watch.stacks import Stack, StackFrame, parse_dump, stack_of
from flatout.world.watch.stragglers import BLOCKS, StepTimes, Stragglers, find_stragglers
from flatout.world.watch.verdict import Sight, judge
from flatout.world.watch.watch import RankWatch

TORCH = "/env/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"


def stack(*frames: tuple[str, int, str, str, str]) -> Stack:
    return Stack.from_list([list(frame) for frame in frames])


LOOP = ("/home/me/train.py", 30, "main", "step(batch)", "own")
ALL_REDUCE = stack(
    (C10D, 3252, "all_reduce", "work.wait()", "distributed"),
    (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper", "return func(*args, **kwargs)", "distributed"),
    ("/home/me/engine/step.py", 240, "exchange", "dist.all_reduce(grad)", "own"),
    LOOP,
)
GATHER_OBJECT = stack(
    (C10D, 4300, "all_gather", "work.wait()", "distributed"),
    (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper", "return func(*args, **kwargs)", "distributed"),
    (C10D, 3400, "all_gather_object", "all_gather(tensors, mine)", "distributed"),
    ("/home/me/metrics.py", 12, "gather", "dist.all_gather_object(all, mine)", "own"),
    LOOP,
)
BACKWARD = stack(
    (f"{TORCH}/autograd/graph.py", 900, "_engine_run_backward", "return Variable._execution_engine.run_backward(", "torch"),
    (f"{TORCH}/_tensor.py", 600, "backward", "torch.autograd.backward(", "torch"),
    ("/home/me/engine/step.py", 231, "step", "loss.backward()", "own"),
    LOOP,
)
WORK_WAIT = stack(("/home/me/engine/step.py", 244, "exchange", "work.wait()", "own"), LOOP)
LOADER = stack(
    ("/usr/lib/python3.11/socket.py", 705, "readinto", "return self._sock.recv_into(b)", "python"),
    ("/home/me/data/loader.py", 88, "next", "row = reply.read(4096)", "own"),
    LOOP,
)
SLEEPER = stack(("/home/me/data/loader.py", 90, "next", "time.sleep(60)", "own"), LOOP)


def at(rank: int, found: Stack | None, phase: str = "step", step: int = 118, condition: Any = "answers") -> Sight:
    return Sight(rank, condition, step, phase, 21.0, "node7", 4711 + rank, found)


# ---- stacks ----


@pytest.mark.parametrize(
    ("found", "waits_in", "place"),
    [
        (ALL_REDUCE, "all_reduce", "engine/step.py:240"),
        (GATHER_OBJECT, "all_gather_object", "me/metrics.py:12"),
        (BACKWARD, "backward", "engine/step.py:231"),
        (WORK_WAIT, "wait", "engine/step.py:244"),
        (LOADER, "", "data/loader.py:88"),
        (SLEEPER, "", "data/loader.py:90"),
    ],
)
def test_a_stack_tells_its_own_line_and_its_collective(found: Stack, waits_in: str, place: str) -> None:
    own = found.own
    assert own is not None and own.place == place
    assert found.waits_in == waits_in


def test_the_stack_of_a_thread_is_read_where_it_is() -> None:
    there, go = threading.Event(), threading.Event()

    def work() -> None:
        there.set()
        go.wait()

    thread = threading.Thread(target=work)
    thread.start()
    there.wait()
    try:
        assert thread.ident is not None
        found = stack_of(thread.ident)
    finally:
        go.set()
        thread.join()
    assert found is not None and found.own is not None
    assert (found.own.function, found.own.text) in {("work", "go.wait()"), ("work", "there.set()")}
    assert Stack.from_list(json.loads(json.dumps(found.to_list()))) == found
    assert stack_of(-1) is None


def test_what_a_stuck_process_wrote_is_read_by_thread_and_the_last_dump_counts() -> None:
    dump = """Timeout (0:00:04)!
Thread 0x00007f01 (most recent call first):
  File "/home/me/old.py", line 1 in before
Timeout (0:00:04)!
Thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Thread 0x00007f01 (most recent call first):
  File "/home/me/data/native.py", line 33 in decode
  File "/home/me/train.py", line 30 in <module>
"""
    found = parse_dump(dump, 0x7F01)
    assert found == Stack(
        (
            StackFrame("/home/me/data/native.py", 33, "decode", "", "own"),
            StackFrame("/home/me/train.py", 30, "<module>", "", "own"),
        )
    )
    assert parse_dump(dump, 5) is None and parse_dump("", 5) is None


# ---- who is the odd one out ----


def words(*sights: Sight) -> str:
    return Hang(judge(sights), len(sights), 22.0).words()


def test_the_one_that_is_elsewhere_is_named_with_its_line() -> None:
    verdict = judge([at(0, ALL_REDUCE), at(1, ALL_REDUCE), at(2, LOADER, "data"), at(3, ALL_REDUCE)])
    assert [sight.rank for sight in verdict.odd] == [2] and verdict.reason == "elsewhere"
    assert Hang(verdict, 4, 22.0).words() == (
        "rank 2 of 4 has been in data/loader.py:88 next() `row = reply.read(4096)`, inside readinto() of "
        "python3.11/socket.py:705 for 21 s (data), at step 118; ranks 0, 1, 3 wait for it in all_reduce "
        "(engine/step.py:240), step 118"
    )


def test_two_odd_ones_are_both_named() -> None:
    verdict = judge([at(0, SLEEPER, "data"), at(1, BACKWARD), at(2, LOADER, "data"), at(3, BACKWARD)])
    assert [sight.rank for sight in verdict.odd] == [0, 2]


def test_even_most_ranks_can_be_the_odd_ones() -> None:
    verdict = judge([at(0, ALL_REDUCE), at(1, SLEEPER), at(2, SLEEPER), at(3, SLEEPER)])
    assert [sight.rank for sight in verdict.odd] == [1, 2, 3]


def test_of_two_ranks_the_one_that_does_not_wait_is_odd() -> None:
    assert [sight.rank for sight in judge([at(0, SLEEPER, "data"), at(1, ALL_REDUCE)]).odd] == [0]


def test_who_waits_for_something_else_than_most_is_odd() -> None:
    verdict = judge([at(0, ALL_REDUCE), at(1, GATHER_OBJECT), at(2, ALL_REDUCE), at(3, ALL_REDUCE)])
    assert verdict.reason == "another collective" and [sight.rank for sight in verdict.odd] == [1]
    assert "at step 118, waiting in all_gather_object; ranks 0, 2, 3 wait for it" in Hang(verdict, 4, 22.0).words()


def test_the_same_line_in_another_step_is_another_place() -> None:
    verdict = judge([at(0, ALL_REDUCE), at(1, ALL_REDUCE, step=119), at(2, ALL_REDUCE)])
    assert [sight.rank for sight in verdict.odd] == [1]


def test_where_all_wait_in_one_place_no_rank_is_blamed() -> None:
    verdict = judge([at(rank, ALL_REDUCE) for rank in range(4)])
    assert verdict.odd == () and verdict.reason == "all wait"
    assert "All wait at the same place, so the cause is the network" in Hang(verdict, 4, 22.0).words()


def test_halves_that_wait_for_different_things_are_told_as_such() -> None:
    told = words(at(0, ALL_REDUCE), at(1, ALL_REDUCE), at(2, GATHER_OBJECT), at(3, GATHER_OBJECT))
    assert told == (
        "ranks have been waiting for different things for 22 s: ranks 0, 1 wait in all_reduce (engine/step.py:240), step 118; "
        "ranks 2, 3 wait in all_gather_object (me/metrics.py:12), step 118"
    )


def test_where_nobody_waits_nobody_is_said_to() -> None:
    told = words(at(0, LOADER, "data"), at(1, LOADER, "data"))
    assert told == "no rank has moved for 22 s, and none waits for another: ranks 0, 1 are at data/loader.py:88, step 118"


@pytest.mark.parametrize(
    ("sight", "expected"),
    [
        (at(2, None, condition="gone"), "is gone: process 4713 on node7 no longer exists"),
        (
            at(2, None, condition="stopped"),
            "is stopped (SIGSTOP or a debugger), process 4713 on node7: last heartbeat 21 s ago",
        ),
        (at(2, None, condition="silent"), "has been silent for 21 s, last heartbeat at step 118 in step"),
        (at(2, SLEEPER, condition="silent"), "has been stuck in data/loader.py:90 next() `time.sleep(60)` for 21 s"),
        (at(2, None, condition="ended"), "ended normally after step 118"),
        (Sight(2, "absent"), "has not joined yet"),
    ],
)
def test_who_cannot_answer_is_odd(sight: Sight, expected: str) -> None:
    verdict = judge([at(0, ALL_REDUCE), at(1, ALL_REDUCE), sight])
    assert [odd.rank for odd in verdict.odd] == [2] and expected in Hang(verdict, 3, 22.0).words()


def test_who_has_ended_is_not_blamed_while_the_last_one_works() -> None:
    verdict = judge([at(0, SLEEPER, "checkpoint"), at(1, None, condition="ended")])
    assert verdict.odd == ()


# ---- records, ages and limits ----

HERE = ProcessIdentity(1, 1.0, "node7", "node7 pid:1")
AWAY = ProcessIdentity(2, 1.0, "node8", "node8 pid:1")


def record(rank: int, serial: int, *, step: int = 0, phase: str = "step", phase_s: float = 0.1, **fields: Any) -> Record:
    spent: dict[str, float] = fields.pop("spent", {})
    clock_s = fields.pop("clock_s", 0.0)
    whole = {
        "process": AWAY, "step_s": phase_s, "count": 5 * step, "at_step": (step, clock_s, spent),
        "thread": 7, "dump_file": None,
    }  # fmt: skip
    return Record(rank=rank, serial=serial, step=step, phase=phase, phase_s=phase_s, **{**whole, **fields})


def test_a_record_comes_back_as_it_was_sent() -> None:
    pulse = Pulse()
    pulse.beat(1, "data")
    pulse.beat(2, "forward")
    sent = record_of(pulse, 3, this_process(), 9, 5, "stage 1")
    assert Record.from_bytes(sent.to_bytes()) == sent
    assert sent.step == 2 and sent.at_step[0] == 2 and set(sent.at_step[2]) == {"setup", "data"}


def test_waiting_is_taken_out_of_the_phase_it_was_in() -> None:
    pulse = Pulse()
    pulse.beat(1, "backward")
    pulse.waited(0.5)
    pulse.beat(2, "data")
    assert pulse.at_step[2]["exchange"] == 0.5
    assert pulse.at_step[2]["backward"] < 0


def test_limits_follow_the_usual_step_and_the_phases_that_take_long() -> None:
    limits = StepTimeLimits()
    assert limits.limit_s({"data"}) == UNKNOWN_S
    for step in range(1, 9):
        limits.learn(record(0, step, step=step, clock_s=0.2 * step))
    assert limits.limit_s({"data", "exchange"}) == LEAST_S
    assert limits.limit_s({"evaluation", "exchange"}) == PATIENT_S["evaluation"]
    limits.learn(record(0, 9, step=8, clock_s=1.6, phase="evaluation", phase_s=80.0, count=41))
    limits.learn(record(0, 10, step=8, clock_s=1.6, phase="data", count=42))
    assert limits.limit_s({"evaluation"}) == 160.0  # it has taken 80 s before, and was well
    slow = StepTimeLimits()
    for step in range(1, 9):
        slow.learn(record(0, step, step=step, clock_s=30.0 * step))
    assert slow.limit_s({"step"}) == 150.0


# ---- the leading rank, heartbeat by heartbeat ----


class Desk:
    """A lookout of rank 0, told what ranks say; ranks are on another host, so nothing is asked of this one's processes."""

    def __init__(self, size: int) -> None:
        self.size, self.now_s, self.serial = size, 100.0, 0
        self.roster = Roster(0, size, HERE, 1.25, 5.0)
        self.lookout = Lookout(self.roster, StepTimeLimits(), 10.0)

    def beat(self, *, silent: tuple[int, ...] = (), stacks: dict[int, Stack] | None = None, **fields: Any) -> list[News]:
        """Half a second passes, and all but the silent ranks are heard; those with a stack answer what was asked."""
        self.now_s += 0.5
        self.serial += 1
        for rank in range(self.size):
            if rank not in silent:
                said = record(rank, self.serial, **fields)
                self.roster.see(said, self.now_s)
                self.lookout.learn(said)
        question = self.lookout.question
        if question is not None and stacks is not None:
            self.lookout.hear(Answer(question.name, rank, 0, "step", 1.0, found) for rank, found in stacks.items())
        return self.lookout.look(self.now_s)


def test_a_hang_is_asked_about_told_once_and_told_to_be_over() -> None:
    desk, stacks = Desk(3), {0: ALL_REDUCE, 1: SLEEPER, 2: ALL_REDUCE}
    for step in range(1, 10):
        assert desk.beat(step=step, clock_s=0.5 * step) == []
    still = [desk.beat(step=9, clock_s=4.5, phase_s=0.5 * n, stacks=stacks) for n in range(1, 60)]
    news = [one for each in still for one in each]
    assert len(news) == 1 and isinstance(news[0], Hang)
    assert news[0].ranks == (1,) and LEAST_S < news[0].for_s < LEAST_S + 2
    moving = desk.beat(step=10, clock_s=40.0)
    assert len(moving) == 1 and isinstance(moving[0], Moving)


def test_a_long_evaluation_that_moves_is_no_hang() -> None:
    desk = Desk(3)
    for step in range(1, 5):
        desk.beat(step=step, clock_s=0.5 * step)
    for batch in range(200):
        assert desk.beat(step=4, clock_s=2.0, phase="evaluation", count=100 + batch // 10, stacks={}) == []


def test_a_rank_of_which_its_host_says_that_it_runs_is_not_lost() -> None:
    desk, stacks = Desk(3), {0: ALL_REDUCE, 1: ALL_REDUCE}
    for step in range(1, 5):
        desk.beat(step=step, clock_s=0.5 * step)
    news: list[News] = []
    for n in range(40):
        question = desk.lookout.question
        if question is not None:
            known = {2: Neighbour("running", SLEEPER)} if question.silent else {}
            desk.lookout.hear([Answer(question.name, 1, 4, "exchange", 1.0, ALL_REDUCE, known)])
        news += desk.beat(silent=(2,), step=4, clock_s=2.0, phase_s=0.5 * n, stacks={0: stacks[0]})
    assert [one.kind for one in news] == ["hang"]
    assert "rank 2 of 3 has been stuck in data/loader.py:90 next()" in news[0].words()


def test_a_rank_of_which_nobody_can_tell_is_lost_in_the_end() -> None:
    desk = Desk(3)
    for step in range(1, 5):
        desk.beat(step=step, clock_s=0.5 * step)
    news = [one for n in range(40) for one in desk.beat(silent=(2,), step=4, clock_s=2.0, phase_s=0.5 * n, stacks={})]
    assert [one.kind for one in news] == ["lost"] and "no process on node8 can report" in news[0].words()


def test_the_lowest_rank_that_answers_leads() -> None:
    roster = Roster(2, 4, HERE, 1.25, 5.0)
    assert roster.leader(0.0) == 0 and list(roster.to_read(0.0)) == [0]  # rank 0 has not come yet, but will
    roster.see(record(0, 1), 0.0)
    assert roster.leader(4.0) == 0
    roster.see(record(1, 1, ended=True), 6.0)
    assert roster.leader(6.0) == 2 and list(roster.to_read(6.0)) == [0, 1, 2, 3]
    roster.see(record(0, 2), 6.5)
    assert roster.leader(6.5) == 0 and roster.leader(6.5, but=0) == 2


@pytest.mark.parametrize("ended", [True, False])
def test_a_rank_that_says_its_last_word_as_it_is_looked_for_is_not_lost(ended: bool) -> None:
    roster = Roster(0, 2, this_process(), 1.25, 5.0)
    dead = replace(this_process(), born=1.0)
    roster.see(record(1, 1, process=dead), 0.0)
    roster.notice_gone([1], 1.0)
    assert roster.condition(1, 4.0) == roster.condition(1, 9.0) == "answers"  # gone, but who knows what it has said meanwhile
    roster.notice_gone([1], 4.0)
    roster.see(record(1, 2, process=dead, ended=ended), 4.0)
    assert roster.condition(1, 9.0) == ("ended" if ended else "gone")
    assert roster.lost() == ([] if ended else [1])


def test_an_answer_tells_of_this_process_and_of_a_neighbour_that_is_gone() -> None:
    mine = record_of(Pulse(), 0, this_process(), 1, None, "")
    dead = replace(this_process(), born=1.0)  # its number was given to another process since
    assert state_of(dead, mine.process) == "gone" and state_of(mine.process, mine.process) == "running"
    asked = Question("q", (record(1, 1, process=dead), record(2, 1)))
    said = Answer.from_bytes(answer(json.loads(json.dumps(asked.to_dict())), mine).to_bytes())
    assert said.neighbours == {1: Neighbour("gone", None)}  # rank 2 is on another host
    assert said.stack is not None and said.stack.own is not None and said.stack.own.function == "stack_of"


# ---- stragglers ----


def blocks(own_s: float, noise: tuple[float, ...] = (0.0,), step_s: float = 0.1, phase: str = "forward") -> list[StepTimes]:
    return [StepTimes(step_s, {phase: own_s + noise[number % len(noise)], "exchange": 0.01}) for number in range(BLOCKS)]


def test_a_rank_that_is_always_slower_is_a_straggler_with_its_cost() -> None:
    noise = (0.0, 0.002, -0.002)
    found = find_stragglers({0: blocks(0.05, noise), 1: blocks(0.08), 2: blocks(0.051, noise), 3: blocks(0.05)}, 4)
    assert found is not None and found.ranks == (1,) and found.phase == "forward"
    assert found.cost_s == pytest.approx(0.03, abs=0.003)
    assert found.slower == pytest.approx(0.03 / 0.07, rel=0.1)
    assert "80 ms per step for its own work, the other 3 ranks 50 ms; most of the difference is in forward" in found.words()


def test_two_stragglers_are_found_together_and_of_two_ranks_one() -> None:
    found = find_stragglers({0: blocks(0.05), 1: blocks(0.08), 2: blocks(0.05), 3: blocks(0.08)}, 4)
    assert found is not None and found.ranks == (1, 3)
    found = find_stragglers({0: blocks(0.05), 1: blocks(0.08)}, 2)
    assert found is not None and found.ranks == (1,)


def test_who_is_late_with_data_where_weights_are_split_is_found_though_the_others_wait_in_their_forward() -> None:
    late = [StepTimes(0.1, {"data": 0.05, SPLIT_FORWARD: 0.02}) for _ in range(BLOCKS)]
    waits = [StepTimes(0.1, {"data": 0.001, SPLIT_FORWARD: 0.069}) for _ in range(BLOCKS)]
    found = find_stragglers({0: waits, 1: late, 2: waits}, 3)
    assert found is not None and found.ranks == (1,) and found.phase == "data"
    assert found.cost_s == pytest.approx(0.049)
    own = [
        StepTimes(0.1, {"data": 0.001, "forward": 0.069}) for _ in range(BLOCKS)
    ]  # which is work, of whoever has all weights
    assert find_stragglers({0: own, 1: [StepTimes(0.1, {"data": 0.05, "forward": 0.02})] * BLOCKS, 2: own}, 3) is None


def test_a_slow_moment_or_a_small_difference_is_nobodys_fault() -> None:
    moment = [*blocks(0.05)[:-2], *blocks(0.5)[:2]]
    assert find_stragglers({0: moment, 1: blocks(0.05), 2: blocks(0.05)}, 3) is None
    assert find_stragglers({0: blocks(0.055), 1: blocks(0.05), 2: blocks(0.05)}, 3) is None
    assert find_stragglers({0: blocks(0.003), 1: blocks(0.001), 2: blocks(0.001)}, 3) is None  # of a step of 100 ms
    assert find_stragglers({0: blocks(0.08)[1:], 1: blocks(0.05)}, 2) is None  # too few to tell


def test_a_straggler_is_told_once_and_stages_are_not_compared() -> None:
    told: list[Straggler] = []
    apart: list[Straggler] = []
    alike, stages = Stragglers(3), Stragglers(3)
    for step in range(1, 60):
        for rank in range(3):
            own_s = (0.4 if rank == 2 else 0.2) * step
            said = record(rank, step, step=step, clock_s=0.5 * step, spent={"forward": own_s})
            alike.learn(said)
            stages.learn(replace(said, alike="last" if rank == 2 else "first"))
        told += alike.news()
        apart += stages.news()
    assert [one.ranks for one in told] == [(2,)] and apart == []


# ---- the rest ----


def test_news_are_words_and_plain_data() -> None:
    everything: list[News] = [
        Hang(judge([at(0, ALL_REDUCE), at(1, LOADER)]), 2, 12.0),
        Moving(30.0),
        Straggler({1: 0.08}, 0.05, "data", 0.1, 0.03, 4),
        Failed(1, "ValueError: x", "Traceback ..."),
        Lost(1, "process 1 on a is no more", 3, "data"),
        StoreLost("at a:1", "refused"),
    ]
    for news in everything:
        assert news.words() and json.loads(json.dumps(news.to_dict())) == news.to_dict()
    assert len({news.kind for news in everything}) == len(everything)


def test_an_exchange_that_broke_is_an_echo_and_a_bad_value_is_not() -> None:
    assert from_exchange(RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2"))
    assert not from_exchange(RuntimeError("shape '[3]' is invalid for input of size 4"))
    assert not from_exchange(ValueError("Connection closed by peer"))


def test_one_process_has_the_same_face() -> None:
    public = {name for name in vars(RankWatch) if not name.startswith("_")} | {"beat", "waited", "rank", "size", "trouble"}
    assert public == {name for name in vars(NoWatch) if not name.startswith("_")}
    watch = NoWatch()
    watch.beat(1, "data")
    assert watch.missing() == watch.lost() == () and watch.fail(ValueError("x")).error == "ValueError: x"
