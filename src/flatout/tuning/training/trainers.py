"""The trials that one process trains. They stay in memory between rungs; others are read from disk or trained again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError
from flatout.machine.out_of_memory import is_out_of_memory
from flatout.recipe.build import identity
from flatout.recipe.schema import Recipe
from flatout.store.checkpoints import Checkpoints
from flatout.store.tensors import encode
from flatout.tuning.training.alone import Alone
from flatout.tuning.training.candidate import Candidate
from flatout.tuning.training.layout import STACKED, Layout, alone_rate, choose_layout
from flatout.tuning.training.outcomes import Stopped
from flatout.tuning.training.shared import Group
from flatout.tuning.training.stack import Stack

Make = Callable[[Sequence[str]], Recipe]  # a recipe with overrides


class Trainers:
    def __init__(self, make: Make, cache: Path | None) -> None:
        self._make, self.cache = make, cache
        self.states: Path | None = None  # where the states of trials are kept that go on in a later rung
        self._candidates: dict[int, Candidate] = {}
        self._groups: dict[tuple[str, int], Group] = {}
        self._holders: dict[int, Stack | Alone] = {}

    def candidate(self, number: int, overrides: Sequence[str]) -> Candidate:
        if number not in self._candidates:
            self._candidates[number] = Candidate(number, self._make(overrides))
        return self._candidates[number]

    def about(self, candidate: Candidate) -> dict[str, Any]:
        """What a study has to know of its trials before it begins."""
        group = self._group(candidate, 0)
        return {
            "total_steps": group.total_steps,
            "metric": group.measure.metric,
            "higher_is_better": group.measure.higher_is_better,
            "judged_on": group.judged_on,
            "device": str(group.device),
            "precision": group.settings.precision,
            "identity": identity(candidate.recipe, group.job).whole,
        }

    def choose(self, candidates: Sequence[Candidate], limit_s: float) -> Layout:
        return choose_layout(self._group(candidates[0], 0), candidates, limit_s)

    def rate_alone(self, candidate: Candidate, seconds: float) -> float:
        """Trial-steps a second of one trial after another with one thread, as in one of several processes."""
        return alone_rate(self._group(candidate, 0), candidate, 1, seconds)

    def train(
        self,
        candidates: Sequence[Candidate],
        start: int,
        to: int,
        layout: Layout,
        which: str,
        should_stop: Stopped = lambda: False,
    ) -> dict[int, float | str]:
        """From step `start` to step `to`: the score of each trial, or why it failed."""
        trainer = self._trainer(candidates, start, layout, should_stop)
        trainer.train(to, should_stop)
        scores = trainer.scores(which)
        found: dict[int, float | str] = {}
        for number, score in scores.items():
            found[number] = trainer.failed[number] if score is None else score
        return found

    def save(self, numbers: Sequence[int]) -> None:
        """Write down trials that go on, so that a killed study goes on from here."""
        for number in numbers:
            holder = self._holders.get(number)
            if holder is not None and number not in holder.failed:
                document, tensors = encode({"layout": holder.layout, "state": holder.state_of(number)})
                self._kept(number).write(holder.step_of(number), document, tensors)

    def forget(self, numbers: Sequence[int]) -> None:
        """Free the memory of trials that do not go on."""
        gone = set(numbers)
        for trainer in {id(one): one for number in gone if (one := self._holders.pop(number, None)) is not None}.values():
            rest = [number for number in trainer.candidates if number not in gone and number not in trainer.failed]
            if rest:
                trainer.keep(rest)

    def close(self) -> None:
        for group in self._groups.values():
            group.close()

    def _trainer(self, candidates: Sequence[Candidate], start: int, layout: Layout, should_stop: Stopped) -> Stack | Alone:
        """The trainer that holds exactly these trials at step `start`."""
        numbers = [one.number for one in candidates]
        holders = {id(self._holders[number]): self._holders[number] for number in numbers if number in self._holders}
        kind = Stack if layout.kind == STACKED else Alone
        if len(holders) == 1 and all(number in self._holders for number in numbers):
            (holder,) = holders.values()
            if isinstance(holder, kind) and all(holder.step_of(number) == start for number in numbers):
                if list(holder.candidates) != numbers:
                    holder.keep(numbers)
                return holder
        group = self._group(candidates[0], layout.threads)
        states = {number: self._state(number, start, kind.layout) for number in numbers} if start else {}
        made = kind(group, candidates)
        if start and all(state is not None for state in states.values()):
            known: dict[int, Mapping[str, Any]] = {number: state for number, state in states.items() if state is not None}
            if isinstance(made, Stack):
                made.resume(start, known)
            else:
                for number, state in known.items():
                    made.resume(number, state)
        elif start:
            made.train(start, should_stop)  # their states are lost: again from the beginning, to the same weights
        self._holders |= dict.fromkeys(numbers, made)
        return made

    def _state(self, number: int, step: int, kind: str) -> Mapping[str, Any] | None:
        holder = self._holders.get(number)
        if holder is not None and holder.layout == kind and holder.step_of(number) == step:
            return holder.state_of(number)
        if self.states is None or step not in (kept := self._kept(number)).steps():
            return None
        try:
            found = kept.load(step)
        except FlatoutError:
            return None  # damaged: it is trained again
        state: Mapping[str, Any] = found["state"]
        return state if found["layout"] == kind else None

    def _kept(self, number: int) -> Checkpoints:
        assert self.states is not None
        return Checkpoints(self.states / str(number), keep=1)

    def _group(self, candidate: Candidate, threads: int) -> Group:
        key = candidate.group, threads
        if key not in self._groups:
            self._groups[key] = Group(candidate.recipe, self.cache, threads)
        return self._groups[key]


def why_it_failed(error: Exception) -> str:
    words = str(error).strip().partition("\n")[0]
    return f"out of memory: {words}" if is_out_of_memory(error) else f"{type(error).__name__}: {words}"
