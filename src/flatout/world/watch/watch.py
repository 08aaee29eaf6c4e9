"""The watch of one rank: a thread that publishes where the loop is, reads the other ranks' records, and reports news.

The loop marks its position with `beat(step, phase)`: two or three hundred nanoseconds, no lock, no store access. This is enough
to detect hangs. To detect stragglers, marks must separate a rank's own work ("data", "forward", "compute", "optimizer") from
waiting for others ("exchange", or any other name); if a phase mixes both, `waited(seconds)` subtracts the waiting.

`on_news` is called in the watch's thread, which runs while the main thread hangs: it may print and `os._exit`. Only the
leading rank reports hangs and stragglers; every rank reports failures, lost ranks and a lost store, since each must act.
"""

from __future__ import annotations

import atexit
import itertools
import json
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from flatout.world.watch.blame import from_exchange, in_words
from flatout.world.watch.cause import CAUSE_KEY, publish_cause, read_cause
from flatout.world.watch.dumps import Dumps, NoDumps
from flatout.world.watch.inquiry import Answer, answer
from flatout.world.watch.limits import StepTimeLimits
from flatout.world.watch.lookout import Lookout
from flatout.world.watch.news import Failed, Lost, News, StoreLost
from flatout.world.watch.process import this_process
from flatout.world.watch.pulse import Pulse
from flatout.world.watch.records import Record, record_of
from flatout.world.watch.roll_call import RollCall
from flatout.world.watch.roster import Roster
from flatout.world.watch.wire import StoreGone, Wire

INTERVAL_S = 0.5
SILENT_S = 5.0  # without a heartbeat; a busy machine can delay one by a second or two
DUMP_S = 4.0  # shorter, so that a stack can be read when the rank counts as silent
LOST_S = 10.0  # for a rank on another host whose state no process can report
LATE = 2.5  # heartbeats; after this its process is checked
STORE_GRACE_S = 2.0  # the rank that hosts the store may end just before the others have said goodbye
STORE_ANSWER_S = 10.0
ROLL_CALL_S = 2.5  # a living rank's record changes several times within this
_ROLL_CALL_INTERVAL_S = 0.1
_END_S = 3.0
_JOIN_S = 15.0  # a thread inside a store call when the interpreter exits would abort the process (SIGABRT)

_watches = itertools.count()  # a process may train several times with the same ranks and the same store

OnNews = Callable[[News], None]


class RankWatch:
    """Created by the training thread on every rank; call `close` or `goodbye` at the end.

    `alike` names what a rank does (its pipeline stage): only ranks with the same value are compared for speed. `hang_s`
    replaces the limit that adapts to the steps. `stacks=False` does not use `faulthandler`'s timer.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        on_news: OnNews,
        *,
        interval_s: float = INTERVAL_S,
        hang_s: float | None = None,
        alike: str = "",
        stacks: bool = True,
    ) -> None:
        self.rank, self.size, self.trouble = rank, size, ""
        self._on_news, self._interval_s, self._alike = on_news, interval_s, alike
        self._pulse = Pulse()
        self.beat, self.waited = self._pulse.beat, self._pulse.waited
        self._here = this_process()
        self._roster = Roster(rank, size, self._here, LATE * interval_s, SILENT_S)
        self._lookout = Lookout(self._roster, StepTimeLimits(hang_s), LOST_S)
        self._wire = Wire(store, f"watch/{next(_watches)}")
        self._dumps = Dumps(DUMP_S) if stacks else NoDumps()
        self._serial, self._answered, self._board = 0, "", b""
        self._lost: dict[int, Lost] = {}
        self._failure: Failed | None = None  # of this rank, not yet published
        self._failure_from_exchange = self._heard_failure = False
        self._cause: Failed | Lost | StoreLost | None = None  # the first failure on any rank
        self._roll = RollCall()
        self._closing = self._ending = self._store_lost = False
        self._wake, self._settled, self._closed = threading.Event(), threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="flatout-watch", daemon=True)
        self._guard = threading.Thread(target=self._guard_store, name="flatout-watch-guard", daemon=True)
        self._thread.start()
        self._guard.start()
        atexit.register(self.close)  # a thread inside a store call must not outlive the interpreter

    # ---- for the main thread ----

    def fail(self, error: BaseException) -> Failed | Lost | StoreLost:
        """Publish this rank's error; returns what ended the run, which may be another rank's failure.

        A broken exchange is usually a consequence of another rank's end: the others are checked first, for up to 2.5 s.
        """
        own = Failed(self.rank, *in_words(error))
        with self._settled:
            self._failure_from_exchange = from_exchange(error)
            if self._failure_from_exchange:
                self._roll = RollCall(time.monotonic())
            self._failure = own
            self._wake.set()
            self._settled.wait_for(lambda: self._cause is not None or self._is_over(), ROLL_CALL_S + _END_S)
            return self._cause or own

    def missing(self, within_s: float = ROLL_CALL_S) -> tuple[int, ...]:
        """Ranks that a collective would wait for forever, found by a roll call. It takes two heartbeats if all are alive.

        Used after SIGTERM: an agent sends it 0.1 s after a worker's death, before the worker counts as silent.
        """
        others = frozenset(range(self.size)) - {self.rank}
        with self._settled:
            self._roll = RollCall(time.monotonic())
            self._wake.set()
            self._settled.wait_for(lambda: others <= self._roll.present or bool(self._lost) or self._is_over(), within_s)
            present, self._roll = self._roll.present, RollCall()
            return tuple(sorted(self._lost.keys() or others - present))

    def lost(self) -> tuple[int, ...]:
        """Ranks known to be gone, without asking; a rank that died a moment ago may be missing."""
        return tuple(sorted(self._lost))

    @property
    def cause(self) -> Failed | Lost | StoreLost | None:
        """The first failure on any rank that this rank knows of. It is the reason with which every rank ends."""
        return self._cause

    def goodbye(self) -> None:
        """A normal end: the other ranks must not report this rank as lost."""
        self._ending = True
        self.close()

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closing = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)
        self._closed.set()
        self._dumps.close()
        atexit.unregister(self.close)

    # ---- the thread ----

    def _is_over(self) -> bool:
        return self._store_lost or not self._thread.is_alive()

    def _run(self) -> None:
        failing_since_s: float | None = None
        while not self._closing:
            try:
                self._dumps.put_off()
                self._turn()
                failing_since_s = None
            except StoreGone as gone:
                failing_since_s = failing_since_s or time.monotonic()
                if time.monotonic() - failing_since_s > STORE_GRACE_S:
                    self._lose_store(str(gone))
                    return
            except Exception:  # an error in the watch must not end the run; it is kept for an event
                self.trouble = traceback.format_exc()
            self._wake.wait(self._interval_s if self._roll.began_s is None else _ROLL_CALL_INTERVAL_S)
            self._wake.clear()
        if self._ending:
            with suppress(StoreGone):  # the rank that hosted it has ended, and nobody is left to read this
                self._wire.set(f"beat/{self.rank}", self._record(ended=True).to_bytes())

    def _turn(self) -> None:
        """One heartbeat: publish this rank's position, read the others, and decide if this rank leads."""
        mine = self._record()
        self._wire.set(f"beat/{self.rank}", mine.to_bytes())
        now_s = time.monotonic()
        roll_call = self._roll.began_s is not None
        leads = self._roster.leader(now_s) == self.rank
        ranks = range(self.size) if roll_call else self._roster.to_read(now_s)
        self._roster.notice_gone(ranks, now_s, late_or_not=roll_call)
        found = self._wire.read([CAUSE_KEY, "board", *(f"beat/{rank}" for rank in ranks)])
        now_s = time.monotonic()
        for rank in ranks:
            if (data := found.get(f"beat/{rank}")) is not None:
                self._see(Record.from_bytes(data), now_s, leads)
        if (data := found.get(CAUSE_KEY)) is not None:
            self._hear_cause(read_cause(data))
        self._read_board(found.get("board"), mine)
        if roll_call:
            self._call_roll()
        if self._failure is not None and self._cause is None:
            self._publish_failure(now_s)
        if leads:
            self._lead(now_s)

    def _record(self, ended: bool = False) -> Record:
        self._serial += 1
        return record_of(self._pulse, self.rank, self._here, self._serial, self._dumps.file, self._alike, ended)

    def _see(self, record: Record, now_s: float, leads: bool) -> None:
        self._roster.see(record, now_s)
        if leads:
            self._lookout.learn(record)

    # ---- failures ----

    def _publish_failure(self, now_s: float) -> None:
        assert self._failure is not None
        called_s = self._roll.began_s
        if self._failure_from_exchange and called_s is not None:
            if now_s - called_s < ROLL_CALL_S:
                return  # another rank's end may still become visible
            absent = set(range(self.size)) - self._roll.present - {self.rank}
            for rank in sorted(absent & self._roster.seen.keys()):
                record = self._roster.seen[rank].record
                if not record.ended:
                    why = f"no heartbeat for {now_s - called_s:.1f} s after an exchange broke ({self._failure.error[:200]})"
                    self._lose(Lost(rank, why, record.step, record.phase))
            if self._cause is not None:
                return
        self._hear_cause(publish_cause(self._wire, self._failure))

    def _hear_cause(self, first: Failed | Lost) -> None:
        if isinstance(first, Lost):
            self._note_lost(first)
        elif not self._heard_failure:
            self._heard_failure = True
            self._settle(first)
            if first.rank != self.rank:
                self._tell(replace(first, mine=self._speaks(but=first.rank)))

    def _settle(self, cause: Failed | Lost | StoreLost) -> None:
        with self._settled:
            self._cause = self._cause or cause
            self._settled.notify_all()

    # ---- who is there ----

    def _call_roll(self) -> None:
        seen = self._roster.seen
        for rank in self._roster.lost():
            record = seen[rank].record
            why = f"process {record.process.pid} on {record.process.host} no longer exists"
            self._lose(Lost(rank, why, record.step, record.phase))
        with self._settled:
            self._roll.hear(one.record for rank, one in seen.items() if rank not in self._lost)
            self._settled.notify_all()

    def _lose(self, lost: Lost) -> None:
        if lost.rank not in self._lost and lost.rank != self.rank:
            self._hear_cause(publish_cause(self._wire, lost))  # first: an observer may leave at once
            self._note_lost(lost)

    def _note_lost(self, lost: Lost) -> None:
        if lost.rank not in self._lost and lost.rank != self.rank:
            with self._settled:
                self._lost[lost.rank] = lost
            self._settle(lost)
            self._tell(replace(lost, mine=self._speaks(but=lost.rank)))

    def _speaks(self, but: int | None = None) -> bool:
        return self._roster.leader(time.monotonic(), but) == self.rank

    # ---- what the leader writes and all ranks read ----

    def _lead(self, now_s: float) -> None:
        asked = self._lookout.question
        if asked is not None:
            found = self._wire.read([f"answer/{rank}" for rank in range(self.size)])
            self._lookout.hear(Answer.from_bytes(data) for data in found.values())
        self._lookout.lost.update(self._lost)
        news = self._lookout.look(now_s)
        self._write_board()
        for one in news:
            if isinstance(one, Lost):
                self._lose(one)
            else:
                self._tell(one)

    def _write_board(self) -> None:
        question = self._lookout.question
        board = json.dumps(
            {
                "question": question.to_dict() if question is not None else None,
                "lost": [{**asdict(lost), "mine": False} for lost in self._lookout.lost.values()],
            }
        ).encode()
        if board != self._board:
            self._board = board
            self._wire.set("board", board)
            if question is not None:
                self._wake.set()  # this rank answers at once, without waiting for its next heartbeat

    def _read_board(self, data: bytes | None, mine: Record) -> None:
        if data is None:
            return
        board: dict[str, Any] = json.loads(data)
        for fields in board["lost"]:
            self._lose(Lost(**fields))
        question = board["question"]
        if question is not None and question["name"] != self._answered:
            self._answered = question["name"]
            self._wire.set(f"answer/{self.rank}", answer(question, mine).to_bytes())

    # ---- the store itself ----

    def _guard_store(self) -> None:
        """A call to a store whose process is stopped never returns, so this is checked from another thread."""
        while not self._closed.wait(1.0):
            since_s = self._wire.busy_since_s
            if since_s is not None and time.monotonic() - since_s > STORE_ANSWER_S:
                self._lose_store(f"no answer for {STORE_ANSWER_S:g} s")
                return
            if not self._thread.is_alive():
                return

    def _lose_store(self, why: str) -> None:
        if self._closing or self._store_lost:
            return
        now_s = time.monotonic()
        self._roster.notice_gone(self._roster.seen, now_s, late_or_not=True)  # records can no longer be read
        conditions = {rank: self._roster.condition(rank, now_s) for rank in sorted(self._roster.seen)}
        if conditions.get(0) == "ended":
            return  # the run is over, and the rank that hosted the store has ended
        conditions |= dict.fromkeys(self._roster.lost(), "gone")
        odd = "".join(f"; rank {rank} is {what}" for rank, what in conditions.items() if what in ("gone", "stopped"))
        news = StoreLost(self._wire.where, why + odd, mine=self._speaks())
        self._store_lost = True
        self._settle(news)
        self._tell(news)

    def _tell(self, news: News) -> None:
        if self._closing:
            return
        try:
            self._on_news(news)
        except Exception:
            self.trouble = traceback.format_exc()
