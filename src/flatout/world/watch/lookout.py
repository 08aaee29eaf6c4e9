"""The leading rank's check at every heartbeat: who is gone, who hangs, who is slow. Does not access the store.

It asks a question, waits a few heartbeats for answers, and reports each finding once.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

from flatout.base.units import show_seconds
from flatout.world.watch.inquiry import Answer, Question
from flatout.world.watch.limits import StepTimeLimits
from flatout.world.watch.news import Hang, Lost, Moving, News
from flatout.world.watch.records import RankSeen, Record
from flatout.world.watch.roster import Roster
from flatout.world.watch.stacks import Stack
from flatout.world.watch.stragglers import Stragglers
from flatout.world.watch.verdict import Condition, Sight, judge

ANSWER_S = 3.0  # a running thread answers within two heartbeats


class Lookout:
    def __init__(self, roster: Roster, limits: StepTimeLimits, lost_s: float) -> None:
        self._roster, self._limits, self._lost_s = roster, limits, lost_s
        self._stragglers = Stragglers(roster.size)
        self.lost: dict[int, Lost] = {}
        self.question: Question | None = None
        self._asked_s = 0.0
        self._answers: dict[int, Answer] = {}
        self._told_s: float | None = None  # when the ranks last moved before the reported hang
        self._asked_of: set[int] = set()  # silent ranks that a question was asked about

    def learn(self, record: Record) -> None:
        self._limits.learn(record)
        self._stragglers.learn(record)

    def hear(self, answers: Iterable[Answer]) -> None:
        if self.question is not None:
            self._answers.update({answer.rank: answer for answer in answers if answer.name == self.question.name})

    def look(self, now_s: float) -> list[News]:
        conditions = {rank: self._roster.condition(rank, now_s) for rank in range(self._roster.size)}
        news: list[News] = []
        if self.question is not None:
            self._weigh(conditions, now_s)
        news += self._gone(conditions, now_s)
        news += self._hang(conditions, now_s)
        if self.question is None:
            silent = {rank for rank, condition in conditions.items() if condition == "silent"}
            if silent - self._asked_of:
                self._ask(silent, now_s)
            self._asked_of &= silent
        return [*news, *self._stragglers.news()]

    # ---- questions ----

    def _ask(self, about: set[int], now_s: float) -> None:
        silent = tuple(self._roster.seen[rank].record for rank in sorted(about))
        self.question, self._asked_s, self._answers = Question(uuid4().hex, silent), now_s, {}
        self._asked_of |= about

    def _weigh(self, conditions: dict[int, Condition], now_s: float) -> None:
        """Use what processes report about silent ranks on their host."""
        translate: dict[str, Condition] = {"gone": "gone", "stopped": "stopped", "running": "silent"}
        for answer in self._answers.values():
            for rank, known in answer.neighbours.items():
                if conditions.get(rank) == "silent" and known.state in translate:
                    conditions[rank] = translate[known.state]
                    self._roster.told(rank, conditions[rank])

    def _answered(self, conditions: dict[int, Condition], now_s: float) -> bool:
        awaited = {rank for rank, condition in conditions.items() if condition == "answers"}
        return awaited <= self._answers.keys() or now_s - self._asked_s > ANSWER_S

    def _drop_answered(self, conditions: dict[int, Condition], now_s: float) -> None:
        if self.question is not None and self._answered(conditions, now_s):
            self.question = None

    # ---- who is gone ----

    def _gone(self, conditions: dict[int, Condition], now_s: float) -> list[News]:
        news: list[News] = []
        for rank, condition in conditions.items():
            if rank in self.lost or rank not in self._roster.seen:
                continue
            seen = self._roster.seen[rank]
            process, silent_s = seen.record.process, seen.silent_for(now_s)
            if condition == "gone":
                why = f"process {process.pid} on {process.host} no longer exists"
            elif condition == "silent" and not self._known(rank) and silent_s > self._lost_s:
                why = f"no heartbeat for {show_seconds(silent_s)}, and no process on {process.host} can report its state"
            else:
                continue
            self.lost[rank] = Lost(rank, why, seen.record.step, seen.record.phase)
            news.append(self.lost[rank])
        return news

    def _known(self, rank: int) -> bool:
        """Whether a process on its host reported its state."""
        return self._roster.is_local(rank) or self._roster.was_told(rank)

    # ---- who hangs ----

    def _hang(self, conditions: dict[int, Condition], now_s: float) -> list[News]:
        there = [rank for rank, condition in conditions.items() if condition not in ("ended", "absent")]
        seen = [self._roster.seen[rank] for rank in there if rank in self._roster.seen]
        if not seen or self.lost:  # a lost rank explains why nobody moves, and was reported
            self.question = None
            return []
        moved_s = max(one.moved_s for one in seen)
        if self._told_s is not None:
            self._drop_answered(conditions, now_s)
            if moved_s <= self._told_s:
                return []
            news: list[News] = [Moving(moved_s - self._told_s)]
            self._told_s = None
            return news
        if now_s - moved_s <= self._limits.limit_s(self._phases(conditions, seen)):
            self._drop_answered(conditions, now_s)
            return []
        if self.question is None:
            self._ask({rank for rank in there if self._roster.is_late(rank, now_s)}, now_s)
        if not self._answered(conditions, now_s):
            return []
        sights = [self._sight(rank, condition, now_s) for rank, condition in conditions.items()]
        self.question, self._told_s = None, moved_s
        return [Hang(judge(sights), self._roster.size, now_s - moved_s)]

    def _phases(self, conditions: dict[int, Condition], seen: list[RankSeen]) -> set[str]:
        """Phases that ranks may be in now. A silent rank may have left its last reported phase if others are ahead."""
        if "stopped" in conditions.values():
            return set()  # no slow phase excuses this any longer
        ahead = max(one.record.step for one in seen)
        return {one.record.phase for one in seen if conditions[one.record.rank] == "answers" or one.record.step == ahead}

    def _sight(self, rank: int, condition: Condition, now_s: float) -> Sight:
        seen, answer = self._roster.seen.get(rank), self._answers.get(rank)
        if seen is None:
            return Sight(rank, condition)
        record = seen.record
        if condition == "answers" and answer is not None:
            for_s, stack = seen.in_phase_s(now_s), answer.stack
        else:
            condition = "silent" if condition == "answers" else condition
            for_s, stack = seen.silent_for(now_s), self._dumped(rank)
        return Sight(rank, condition, record.step, record.phase, for_s, record.process.host, record.process.pid, stack)

    def _dumped(self, rank: int) -> Stack | None:
        known = [answer.neighbours[rank] for answer in self._answers.values() if rank in answer.neighbours]
        return next((neighbour.stack for neighbour in known if neighbour.stack is not None), None)
