"""Messages of the watch. `words()` is for people, `to_dict()` for events; `mine` means that this rank prints it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flatout.base.units import show_seconds
from flatout.world.watch.verdict import Sight, Verdict


@dataclass(frozen=True)
class Hang:
    """No rank has moved for `for_s` seconds."""

    kind: ClassVar[str] = "hang"
    verdict: Verdict
    size: int
    for_s: float
    mine: bool = True

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that cause the hang; empty if no rank is to blame."""
        return tuple(sight.rank for sight in self.verdict.odd)

    def words(self) -> str:
        odd, others, reason = self.verdict.odd, self.verdict.others, self.verdict.reason
        if reason == "all wait":
            return (
                f"all {self.size} ranks have been waiting for {show_seconds(self.for_s)}: {_together(others)}. All wait at the "
                "same place, so the cause is the network, a device, or a collective in another thread"
            )
        if not odd:
            return f"no rank has moved for {show_seconds(self.for_s)}, and none waits for another: {_together(others)}"
        if reason == "split":
            return f"ranks have been waiting for different things for {show_seconds(self.for_s)}: {_together(odd)}"
        told = "; ".join(_alone(sight, self.size) for sight in odd)
        return f"{told}; {_together(others, for_it=reason != 'none waits')}" if others else told

    def to_dict(self) -> dict[str, Any]:
        return {
            "ranks": list(self.ranks),
            "reason": self.verdict.reason,
            "seconds": round(self.for_s, 1),
            "words": self.words(),
            "sights": [_sight(sight) for sight in (*self.verdict.odd, *self.verdict.others)],
        }


@dataclass(frozen=True)
class Moving:
    """A reported hang is over."""

    kind: ClassVar[str] = "moving"
    after_s: float
    mine: bool = True

    def words(self) -> str:
        return f"the ranks move again after {show_seconds(self.after_s)}"

    def to_dict(self) -> dict[str, Any]:
        return {"seconds": round(self.after_s, 1), "words": self.words()}


@dataclass(frozen=True)
class Straggler:
    """Ranks whose own work takes longer than that of the others, so that all wait for them in every step."""

    kind: ClassVar[str] = "straggler"
    own_s: dict[int, float]  # seconds of own work per step, by straggler
    usual_s: float  # median of the other ranks
    phase: str  # the phase with most of the difference
    step_s: float
    cost_s: float  # seconds per step that all ranks would save
    size: int
    mine: bool = True

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.own_s))

    @property
    def slower(self) -> float:
        """0.3: the whole run takes 30% longer than without the straggler."""
        return self.cost_s / max(self.step_s - self.cost_s, 1e-9)

    def words(self) -> str:
        slow = " and ".join(f"rank {rank} takes {show_seconds(self.own_s[rank])} per step" for rank in self.ranks)
        return (
            f"{slow} for its own work, the other {self.size - len(self.ranks)} ranks {show_seconds(self.usual_s)}; most of the "
            f"difference is in {self.phase}. All ranks wait for it: a step takes {show_seconds(self.step_s)} instead of "
            f"{show_seconds(self.step_s - self.cost_s)}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "ranks": list(self.ranks),
            "own_s": {str(rank): value for rank, value in self.own_s.items()},
            "usual_s": self.usual_s,
            "phase": self.phase,
            "step_s": self.step_s,
            "slower": round(self.slower, 4),
            "words": self.words(),
        }


@dataclass(frozen=True)
class Failed:
    """The first exception on any rank: all ranks stop with its traceback."""

    kind: ClassVar[str] = "failed"
    rank: int
    error: str  # last line of the error
    traceback: str  # "" for an error written for users
    mine: bool = True

    def words(self) -> str:
        return f"rank {self.rank} failed, so all ranks stop: {self.error}\n{self.traceback}".rstrip()

    def short(self) -> str:
        return f"rank {self.rank}: {self.error}"

    def to_dict(self) -> dict[str, Any]:
        return {"rank": self.rank, "error": self.error, "traceback": self.traceback}


@dataclass(frozen=True)
class Lost:
    """A rank that disappeared without saying goodbye."""

    kind: ClassVar[str] = "lost"
    rank: int
    why: str
    step: int
    phase: str
    mine: bool = True

    def words(self) -> str:
        return f"rank {self.rank} is lost: {self.why}; its last heartbeat was at step {self.step}, in {self.phase}"

    def short(self) -> str:
        return self.words()

    def to_dict(self) -> dict[str, Any]:
        return {"rank": self.rank, "why": self.why, "step": self.step, "phase": self.phase, "words": self.words()}


@dataclass(frozen=True)
class StoreLost:
    """The store no longer answers: this rank knows nothing about the others from now on."""

    kind: ClassVar[str] = "store_lost"
    where: str
    why: str
    mine: bool = True

    def words(self) -> str:
        return f"the store {self.where} is gone: {self.why}. The state of other ranks is unknown from now on"

    def short(self) -> str:
        return self.words()

    def to_dict(self) -> dict[str, Any]:
        return {"where": self.where, "why": self.why, "words": self.words()}


News = Hang | Moving | Straggler | Failed | Lost | StoreLost


# ---- text of a hang ----


def list_ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _alone(sight: Sight, size: int) -> str:
    """One rank that causes the hang: "rank 2 of 4 has been in data/loader.py:88 next() for 21 s (data), at step 118"."""
    who, for_s, then = f"rank {sight.rank} of {size}", show_seconds(sight.for_s), f"step {sight.step} in {sight.phase}"
    process = f"process {sight.pid} on {sight.host}"
    match sight.condition:
        case "absent":
            return f"{who} has not joined yet"
        case "ended":
            return f"{who} ended normally after step {sight.step}"
        case "gone":
            return f"{who} is gone: {process} no longer exists; last heartbeat {for_s} ago at {then}"
        case "stopped":
            stopped = f"{who} is stopped (SIGSTOP or a debugger), {process}"
            return f"{stopped}: last heartbeat {for_s} ago at {then}; its stack can't be read"
        case "silent" if sight.stack is None:
            return f"{who} has been silent for {for_s}, last heartbeat at {then}, {process}; its stack could not be read"
        case "silent":
            return f"{who} has been stuck in {_line(sight)} for {for_s}, last heartbeat at {then}: {process} holds the GIL"
    waits = f", waiting in {sight.waits_in}" if sight.waits_in else ""
    return f"{who} has been in {_line(sight)} for {for_s} ({sight.phase}), at step {sight.step}{waits}"


def _line(sight: Sight) -> str:
    own = sight.stack.own if sight.stack is not None else None
    if own is None:
        return f"{sight.phase} (its stack could not be read)"
    called = sight.stack.called if sight.stack is not None else ()
    inside = f", inside {called[0].function}() of {called[0].place}" if called and not sight.waits_in else ""
    text = f" `{own.text}`" if own.text else ""
    return f"{own.place} {own.function}(){text}{inside}"


def _together(sights: Sequence[Sight], *, for_it: bool = False) -> str:
    """Ranks at the same place in one clause: "ranks 0, 1, 3 wait for it in all_reduce (engine/step.py:240)"."""
    groups: dict[tuple[str, str, int], list[Sight]] = {}
    for sight in sights:
        groups.setdefault(sight.whereabouts, []).append(sight)
    clauses = []
    for (waits_in, place, step), members in groups.items():
        many = len(members) > 1
        who = list_ranks(sight.rank for sight in members)
        if waits_in:
            clauses.append(f"{who} wait{'' if many else 's'}{' for it' if for_it else ''} in {waits_in} ({place}), step {step}")
        else:
            clauses.append(f"{who} {'are' if many else 'is'} at {place}, step {step}")
    return "; ".join(clauses)


_SHOWN = 40  # stack frames in an event


def _sight(sight: Sight) -> dict[str, Any]:
    own = sight.stack.own if sight.stack is not None else None
    return {
        "rank": sight.rank,
        "condition": sight.condition,
        "step": sight.step,
        "phase": sight.phase,
        "seconds": round(sight.for_s, 1),
        "host": sight.host,
        "pid": sight.pid,
        "waits_in": sight.waits_in,
        "place": own.place if own else None,
        "function": own.function if own else None,
        "text": own.text if own else None,
        "stack": [f"{frame.place} {frame.function}" for frame in sight.stack.frames[:_SHOWN]] if sight.stack else None,
    }
