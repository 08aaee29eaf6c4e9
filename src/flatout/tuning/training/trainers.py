"""The trials that one process trains. They stay in memory between rungs; others are read from disk or trained again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from flatout.base.errors import FlatoutError
from flatout.machine.out_of_memory import is_out_of_memory
from flatout.recipe.build import identity
from flatout.recipe.schema import Recipe
from flatout.store.checkpoints import Checkpoints
from flatout.store.tensors import encode
from flatout.tuning.training.alone import Alone
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.layout import STACKED, Layout, alone_rate, choose_layout
from flatout.tuning.training.outcomes import Stopped, never
from flatout.tuning.training.shared import Group
from flatout.tuning.training.stack import TrialStack

Make = Callable[[Sequence[str]], Recipe]  # a recipe with overrides
_CONTEXT = 600 * 2**20  # bytes of a GPU that a process takes beside its tensors
_STATE = 3  # times the weights: with what most optimizers keep of them


class Trainers:
    def __init__(self, make: Make, cache: Path | None) -> None:
        self._make, self.cache = make, cache
        self.states: Path | None = None  # where the states of trials are kept that go on in a later rung
        self._candidates: dict[tuple[int, tuple[str, ...]], TrialCandidate] = {}
        self.degraded = ""  # why the last trials were trained slower than they could be, in words
        self._groups: dict[tuple[str, int], Group] = {}
        self._read: list[Group] = []  # groups that read rows; the others are these with other threads
        self._holders: dict[int, TrialStack | Alone] = {}
        self._parked: dict[int, _Parked] = {}  # trials that may go on later

    def candidate(self, number: int, overrides: Sequence[str]) -> TrialCandidate:
        key = number, tuple(overrides)
        if key not in self._candidates:
            self._candidates[key] = TrialCandidate(number, self._make(overrides))
        return self._candidates[key]

    def about(self, candidate: TrialCandidate) -> dict[str, Any]:
        """What a study has to know of its trials before it begins."""
        group = self._group(candidate, 0)
        return {
            "total_steps": group.total_steps,
            "metric": group.measure.metric,
            "higher_is_better": group.measure.higher_is_better,
            "judged_on": group.judged_on,
            "device": str(group.device),
            "precision": group.settings.precision,
            "state_bytes": _STATE * sum(one.nbytes for one in group.job.model.parameters() if one.requires_grad),
            "identity": identity(candidate.recipe, group.job).whole,
        }

    def choose(self, candidates: Sequence[TrialCandidate], limit_s: float) -> Layout:
        return choose_layout(self._group(candidates[0], 0), candidates, limit_s)

    def rate_alone(self, candidate: TrialCandidate, seconds: float) -> float:
        """Trial-steps a second of one trial after another with one thread, as in one of several processes."""
        return alone_rate(self._group(candidate, 0), candidate, 1, seconds)

    def device_memory(self, candidate: TrialCandidate) -> tuple[int, int | None]:
        """Bytes of a GPU that this process takes, and that are free; None: no GPU."""
        device = self._group(candidate, 0).device
        if device.type != "cuda":
            return 0, None
        return torch.cuda.max_memory_reserved(device) + _CONTEXT, torch.cuda.mem_get_info(device)[0]

    def train(
        self,
        candidates: Sequence[TrialCandidate],
        start: int,
        to: int,
        layout: Layout,
        which: str,
        should_stop: Stopped = never,
    ) -> dict[int, float | str]:
        """From step `start` to step `to`: the score of each trial, or why it failed. Steps are the recipe's: a trial with
        another batch size does the same share of its own."""
        group = self._group(candidates[0], layout.threads)
        begin, end = self._own_step(group, start), self._own_step(group, to)
        try:
            trainer = self._trainer(candidates, begin, layout, should_stop)
            trainer.train(end, should_stop)
            self.degraded = trainer.degraded
        except BaseException:
            self._drop([one.number for one in candidates])
            raise
        return {number: trainer.failed[number] if score is None else score for number, score in trainer.scores(which).items()}

    def save(self, numbers: Sequence[int]) -> None:
        """Write down trials that go on later, so that a killed study goes on from here."""
        for number in numbers:
            if (parked := self._state_here(number)) is not None:
                document, tensors = encode({"layout": parked.layout, "state": parked.state})
                self._kept(number).write(parked.step, document, tensors)

    def forget(self, numbers: Sequence[int]) -> None:
        """Free the memory of trials that do not go on."""
        gone = set(numbers)
        for number in gone:
            self._parked.pop(number, None)
        for holder in self._all_holders():
            rest = [number for number in holder.alive if number not in gone]
            if len(rest) < len(holder.candidates):
                self._part(holder, rest)

    def close(self) -> None:
        for group in self._read:
            group.close()

    def _trainer(
        self, candidates: Sequence[TrialCandidate], start: int, layout: Layout, should_stop: Stopped
    ) -> TrialStack | Alone:
        """One that holds exactly these trials, at step `start`. Others that were with them wait until they go on."""
        numbers, kind = [one.number for one in candidates], TrialStack if layout.kind == STACKED else Alone
        holder = self._holders.get(numbers[0])
        if isinstance(holder, kind) and set(numbers) <= set(holder.alive) and holder.step_of(numbers[0]) == start:
            others = [number for number in holder.alive if number not in numbers]
            self._parked |= {number: _parked(holder, number) for number in others}
            self._part(holder, numbers)
            return holder
        states = {number: self._state(number, start, kind.layout) for number in numbers} if start else {}
        for other in {id(self._holders[one]): self._holders[one] for one in numbers if one in self._holders}.values():
            self._part(other, [number for number in other.alive if number not in numbers])
        group = self._group(candidates[0], layout.threads)
        made = TrialStack(group, candidates, layout.convolutions) if kind is TrialStack else Alone(group, candidates)
        known = {number: state for number, state in states.items() if state is not None}
        if start and len(known) == len(numbers):
            made.resume(start, known)
        elif start:
            made.train(start, should_stop)  # their states are lost: again from the beginning, to the same weights
        for number in numbers:
            self._parked.pop(number, None)
            self._holders[number] = made
        return made

    def _part(self, holder: TrialStack | Alone, rest: Sequence[int]) -> None:
        """A holder goes on with these trials alone."""
        for number in list(holder.candidates):
            if number not in rest:
                self._holders.pop(number, None)
        if rest and list(rest) != list(holder.candidates):
            holder.keep(rest)

    def _drop(self, numbers: Sequence[int]) -> None:
        """Their training was cut short, so that they are between two steps: next time they start from their last state."""
        for holder in self._all_holders():
            if hit := [number for number in holder.candidates if number in numbers]:
                self._part(holder, [number for number in holder.alive if number not in hit])

    def _all_holders(self) -> list[TrialStack | Alone]:
        return list({id(one): one for one in self._holders.values()}.values())

    def _state_here(self, number: int) -> _Parked | None:
        holder = self._holders.get(number)
        if holder is None:
            return self._parked.get(number)
        return None if number in holder.failed else _parked(holder, number)

    def _state(self, number: int, step: int, layout: str) -> Mapping[str, Any] | None:
        """From memory or from disk. None: it is not there, or was damaged."""
        here = self._state_here(number)
        if here is not None and here.step == step and here.layout == layout:
            return here.state
        if self.states is None or step not in (kept := self._kept(number)).steps():
            return None
        try:
            found = kept.load(step)
        except FlatoutError:
            return None
        state: Mapping[str, Any] = found["state"]
        return state if found["layout"] == layout else None

    def _own_step(self, group: Group, step: int) -> int:
        if group.job.budget.unit == "steps":
            return step
        of_recipe = math.ceil(group.total_samples / self._batch)
        return max(int(step > 0), round(step * group.total_steps / of_recipe))

    @cached_property
    def _batch(self) -> int:
        """Of the recipe as it is."""
        return self._make([]).batch

    def _kept(self, number: int) -> Checkpoints:
        assert self.states is not None
        return Checkpoints(self.states / str(number), keep=1)

    def _group(self, candidate: TrialCandidate, threads: int) -> Group:
        key = candidate.group, threads
        if key not in self._groups:
            alike = next((group for (name, _), group in self._groups.items() if name == candidate.group), None)
            if alike is None:
                self._groups[key] = Group(candidate.recipe, self.cache, threads)
                self._read.append(self._groups[key])
            else:
                self._groups[key] = alike.in_threads(threads)
        return self._groups[key]


@dataclass(frozen=True)
class _Parked:
    layout: str
    step: int
    state: Mapping[str, Any]


def _parked(holder: TrialStack | Alone, number: int) -> _Parked:
    return _Parked(holder.layout, holder.step_of(number), holder.state_of(number))


def why_it_failed(error: Exception) -> str:
    words = str(error).strip().partition("\n")[0]
    return f"out of memory: {words}" if is_out_of_memory(error) else f"{type(error).__name__}: {words}"
