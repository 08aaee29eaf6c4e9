"""Which stages have to run, and why. Nothing here starts a process: this is all that a pipeline needs if nothing changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.pipelines.asked.stage_kinds import DeployStage, GateStage
from flatout.pipelines.identity.inputs import InputHashes
from flatout.pipelines.stages.deployed import OldModel, old_model
from flatout.pipelines.stages.due import overdue
from flatout.pipelines.stages.keys import KeyMaker, StageKey
from flatout.pipelines.stages.outcomes import NOT_RUN, UNCHANGED, PipelineOutcome, StageOutcome
from flatout.pipelines.stages.outputs import contents
from flatout.pipelines.stages.records import BROKEN, DONE, StageRecord, StageRecords
from flatout.pipelines.stages.resolved import ResolvedPipeline, ResolvedStage


@dataclass(frozen=True)
class AskedAgain:
    """`fresh`: these stages run although nothing changed. `accept`: these take their data as the version to compare with."""

    fresh: frozenset[str] = frozenset()
    accept: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Assessed:
    """A stage whose turn has come. `why` is empty if its result is there as it was made. `old`: what a gate compares with."""

    key: StageKey
    last: StageRecord | None
    why: tuple[str, ...]
    old: OldModel | None = None


class Assessor:
    """Stages are assessed in order: each after those that it waits for, which are settled in `done` and `outcomes`."""

    def __init__(self, pipeline: ResolvedPipeline, cache: Path, environment: Mapping[str, str], asked: AskedAgain) -> None:
        self.pipeline, self.environment, self.asked = pipeline, environment, asked
        self.hashes = InputHashes(cache)
        self.keys = KeyMaker(pipeline, self.hashes, environment)
        self.records = StageRecords(pipeline.state)
        self.done: dict[str, StageRecord] = {}
        self.outcomes: dict[str, StageOutcome] = {}

    def all_unchanged(self) -> bool:
        """Whether no stage has to run. Settles the ones that come before the first that has."""
        return all(self.is_blocked(stage) or self.is_unchanged(stage) for stage in self.pipeline.stages.values())

    def is_blocked(self, stage: ResolvedStage) -> bool:
        blocking = [other for other in stage.waits_for if self.outcomes[other].blocks]
        if blocking:
            words = ", ".join(f"{other} {self.outcomes[other].blocking_words}" for other in blocking)
            self.outcomes[stage.name] = StageOutcome(stage.name, stage.kind, NOT_RUN, words=words)
        return bool(blocking)

    def is_unchanged(self, stage: ResolvedStage) -> bool:
        assessed = self.assess(stage)
        if assessed.why or assessed.last is None:
            return False
        self.done[stage.name] = assessed.last
        self.outcomes[stage.name] = StageOutcome(stage.name, stage.kind, UNCHANGED, assessed.last)
        return True

    def assess(self, stage: ResolvedStage) -> Assessed:
        used = {key: self.done[other].meaning for key, other in stage.uses.items() if other in self.done}
        old = None
        if isinstance(stage.asked, GateStage) and (place := self._deployed_at(stage)) is not None:
            old = old_model(place, stage.name, used["gate"])
            used["against"] = old.identity
        key = self.keys.key(stage, used)
        last = self.records.last(stage.name)
        return Assessed(key, last, tuple(self._why(stage, key, last)), old)

    def outcome(self, seconds: float, together: tuple[float, float] = (0.0, 0.0)) -> PipelineOutcome:
        order = {name: self.outcomes[name] for name in self.pipeline.stages if name in self.outcomes}
        return PipelineOutcome(order, seconds, together, tuple(self.hashes.notes))

    def _why(self, stage: ResolvedStage, key: StageKey, last: StageRecord | None) -> Sequence[str]:
        for option, names in (("--fresh", self.asked.fresh), ("--accept", self.asked.accept)):
            if stage.name in names:
                return [f"asked for with {option}"]
        if last is None:
            return ["never ran here"]
        if last.status != DONE:
            ended = "failed last time" if last.status == BROKEN else "was not finished"
            return [ended if last.key == key.digest else f"{ended}, and changed since"]
        if last.key != key.digest:
            from flatout.pipelines.stages.changes import changes_between

            return changes_between(last.parts, key.parts) or ["flatout makes keys in another way now"]
        if (found := contents(stage, self.hashes)) != last.outputs:
            return ["its output is gone" if found is None else "its output was changed since"]
        return [] if stage.asked.when is None else overdue(stage.asked.when, last.at, self.pipeline.home)

    def _deployed_at(self, stage: ResolvedStage) -> Path | None:
        """Where the model is that a gate compares with, if a stage deploys it."""
        other = stage.uses.get("against")
        found = None if other is None else self.pipeline.asked.stages[other]
        return self.pipeline.home / found.to if isinstance(found, DeployStage) else None
