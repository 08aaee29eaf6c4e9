"""Works through the stages of a pipeline: what changed runs, what fits runs side by side, the rest stays as it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from flatout.base.errors import DataError, RunBusy, StoreError
from flatout.pipelines.asked.stage_kinds import DeployStage, GateStage, RunStage
from flatout.pipelines.stages.assessing import Assessed, Assessor
from flatout.pipelines.stages.changes import changes_between
from flatout.pipelines.stages.commands import begin_work, command_of, made_run
from flatout.pipelines.stages.deploying import deploy
from flatout.pipelines.stages.fitting import FreeRoom, Need, need_of
from flatout.pipelines.stages.folder_changes import MOST_FILES, FolderWatch
from flatout.pipelines.stages.forecast import budget_of
from flatout.pipelines.stages.given import given_to
from flatout.pipelines.stages.keys import KeyMaker
from flatout.pipelines.stages.lineage import lineage_of
from flatout.pipelines.stages.outcomes import MADE_NOW, PipelineOutcome, StageOutcome
from flatout.pipelines.stages.outputs import contents, meaning
from flatout.pipelines.stages.receipts import measures
from flatout.pipelines.stages.records import DONE, MADE, STARTED, StageRecord
from flatout.pipelines.stages.resolved import CURRENT, ResolvedStage
from flatout.pipelines.stages.settling import Settler
from flatout.pipelines.stages.working import WorkingStage
from flatout.store.lock import FileLock

_LOOK_S = 0.05


@dataclass
class _AtWork:
    """`alone`: nothing else worked meanwhile, so that its time says what it takes."""

    working: WorkingStage
    assessed: Assessed
    record: StageRecord
    need: Need
    watch: FolderWatch | None
    alone: bool


class PipelineDriver:
    def __init__(self, found: Assessor, results: Callable[[], Any], say: Callable[[str], None]) -> None:
        self._found, self._say = found, say
        self._pipeline = found.pipeline
        self._settler = Settler(found, results, say)
        self._at_work: list[_AtWork] = []
        self._room: FreeRoom | None = None
        self._worked: list[tuple[float, float]] = []  # from when to when each command did

    def run(self) -> PipelineOutcome:
        began_s = time.monotonic()
        self._found.records.begin()
        lock = FileLock(self._pipeline.state / "lock")
        if not lock.take():
            raise RunBusy(
                f"{self._pipeline.asked.path} is being run by process {lock.owner()}: wait for it, or stop it; both would "
                "write the same files"
            )
        with ExitStack() as until_done:
            until_done.callback(lock.release)
            try:
                self._work_through(until_done)
            except BaseException:
                for one in self._at_work:
                    self._say(f"{one.working.stage.name}: stopping")
                for one in self._at_work:
                    one.working.save_and_end()
                raise
        return self._found.outcome(time.monotonic() - began_s, self._together())

    def _work_through(self, until_done: ExitStack) -> None:
        waiting = {name: stage for name, stage in self._pipeline.stages.items() if name not in self._found.outcomes}
        assessed: dict[str, Assessed] = {}
        while waiting or self._at_work:
            outcomes = self._found.outcomes
            for stage in [one for one in waiting.values() if all(other in outcomes for other in one.waits_for)]:
                if stage.name not in assessed:
                    found = self._unless_settled(stage)
                    if found is None:
                        waiting.pop(stage.name)
                        continue
                    assessed[stage.name] = found
                if self._starts(stage, assessed[stage.name], until_done):
                    waiting.pop(stage.name)
            for one in list(self._at_work):
                if one.working.look(_LOOK_S / len(self._at_work)):
                    self._at_work.remove(one)
                    self._finish(one)

    def _unless_settled(self, stage: ResolvedStage) -> Assessed | None:
        """None: it needs no work, or can't be done."""
        if self._found.is_blocked(stage):
            self._say(self._found.outcomes[stage.name].line())
            return None
        try:
            assessed = self._found.assess(stage)
        except DataError as error:
            self._settler.fail(stage, (), str(error))
            return None
        if not assessed.why and assessed.last is not None:
            self._found.is_unchanged(stage)
            return None
        settler = self._settler
        return None if settler.finishes_what_was_made(stage, assessed) or settler.restores(stage, assessed) else assessed

    def _starts(self, stage: ResolvedStage, assessed: Assessed, until_done: ExitStack) -> bool:
        """False: it does not fit beside the stages that are at work now."""
        self._room = self._room or FreeRoom.here()
        past = self._found.records.past(stage.name)
        need = need_of(stage, past[-1] if past else None, self._room)
        if not self._room.fits(need, [one.need for one in self._at_work]):
            return False
        amount, unit = budget_of(stage)
        record = StageRecord(
            stage.name, stage.kind, assessed.key.digest, STARTED, assessed.key.parts, at=round(time.time(), 3),
            size=assessed.key.size, amount=amount, unit=unit,
        )  # fmt: skip
        if isinstance(stage.asked, DeployStage):
            self._deploy(stage, stage.asked, assessed, record)
        else:
            self._start_command(stage, assessed, record, need, until_done)
        return True

    def _start_command(
        self, stage: ResolvedStage, assessed: Assessed, record: StageRecord, need: Need, until_done: ExitStack
    ) -> None:
        work, watch = self._settler.work(stage), None
        can_go_on = stage.kind in ("train", "tune") and stage.name not in self._found.asked.fresh
        begin_work(work, record.key, keeps=can_go_on)
        if isinstance(stage.asked, RunStage):
            for note in self._settler.clear(stage, assessed.last):
                self._say(f"{stage.name}: {note}")
            watch = FolderWatch(self._pipeline.home, [self._pipeline.state, *stage.outputs])
        command = command_of(stage, self._pipeline, work, given_to(stage, assessed, self._found, self._say))
        record = record.with_status(STARTED, command=command.shown)
        self._found.records.write(record)
        if can_go_on and (made := made_run(work)) is not None:  # killed just before this was noted
            self._settler.put_in_place(stage, made, record.with_status(MADE), assessed, [])
            return
        self._say(f"{stage.name}: {command.shown}")
        log = self._pipeline.state / "logs" / f"{stage.name}.log"
        try:
            working = until_done.enter_context(WorkingStage(stage, command, self._pipeline.home, log))
        except OSError as error:
            raise StoreError(f"stage {stage.name} can't be started: {error.strerror or error}") from error
        for one in self._at_work:
            one.alone = False
        self._at_work.append(_AtWork(working, assessed, record, need, watch, alone=not self._at_work))

    def _deploy(self, stage: ResolvedStage, asked: DeployStage, assessed: Assessed, record: StageRecord) -> None:
        began_s = time.monotonic()
        gates = {}
        for name in stage.waits_for:
            if isinstance(self._pipeline.stages[name].asked, GateStage) and name in self._found.done:
                uses = self._found.done[name].parts["uses"]
                gates[name] = {"model": uses.get("gate", ""), "old": uses.get("against", "")}
        named = stage.uses.get("deploy")
        package = self._pipeline.home / asked.deploy if named is None else self._pipeline.stages[named].product
        self._found.records.write(record)
        try:
            target = deploy(package, stage.product, gates, lineage_of(stage, record, self._pipeline, self._found.done))
        except StoreError as error:
            self._settler.fail(stage, assessed.why, str(error), (), record)
            return
        outputs = contents(stage, self._found.hashes)
        assert outputs is not None
        record = record.with_status(
            DONE, outputs=outputs, meaning=meaning(stage, outputs, self._found.hashes), seconds=time.monotonic() - began_s,
            words=f"{self._pipeline.shown(stage.product / CURRENT)} is {target.name}",
        )  # fmt: skip
        self._found.records.write(record)
        self._found.records.log(record)
        self._settler.settle(StageOutcome(stage.name, stage.kind, MADE_NOW, record, assessed.why), record)

    def _finish(self, one: _AtWork) -> None:
        """Its command has ended."""
        working, stage, assessed = one.working, one.working.stage, one.assessed
        now = time.monotonic()
        self._found.keys.list_again()
        self._worked.append((now - working.seconds, now))
        notes = self._undeclared(one)
        made = self._settler.made(stage)
        failure = working.ended or self._why_unfinished(stage, made is not None, assessed)
        if failure:
            told = f"{failure} (its log: {self._pipeline.shown(working.log)})"
            self._settler.fail(stage, assessed.why, told, notes, one.record)
            return
        took, usage = measures(stage, made), working.usage
        record = one.record.with_status(
            MADE, seconds=round(working.seconds, 3), alone=one.alone, growing_s=took.growing_s,
            joules=took.joules, gpu_bytes=took.gpu_bytes,
            cpu_s=None if usage is None else usage.cpu_s, memory_bytes=None if usage is None else usage.memory_bytes,
        )  # fmt: skip
        self._found.records.write(record)
        self._settler.put_in_place(stage, made, record, assessed, notes)

    def _why_unfinished(self, stage: ResolvedStage, is_made: bool, assessed: Assessed) -> str:
        if isinstance(stage.asked, RunStage):
            missing = [self._pipeline.shown(output) for output in stage.outputs if not output.exists()]
            if missing:
                return f"ended well, but did not write {', '.join(missing)}"
        elif not is_made:
            return "ended well, but left no finished result"
        try:
            now = KeyMaker(self._pipeline, self._found.hashes, self._found.environment).key(stage, assessed.key.parts["uses"])
        except DataError as error:
            return str(error)
        if now.digest == assessed.key.digest:
            return ""
        changed = ", ".join(changes_between(assessed.key.parts, now.parts))
        return f"what it reads changed while it ran ({changed}): start the pipeline again"

    def _undeclared(self, one: _AtWork) -> list[str]:
        if one.watch is None:
            return []
        if not one.watch.is_whole:
            return [f"outputs that it does not declare are not looked for: more than {MOST_FILES:,} files here"]
        declared = [output for stage in self._pipeline.stages.values() for output in stage.outputs]
        strays = [path for path in one.watch.changed() if not any(path.is_relative_to(output) for output in declared)]
        if not strays:
            return []
        shown = ", ".join(self._pipeline.shown(path) for path in strays[:3]) + (", ..." if len(strays) > 3 else "")
        return [f"wrote {shown}, which its `outputs` do not list: a stage that reads it may get an old one"]

    def _together(self) -> tuple[float, float]:
        """Seconds of all commands, and seconds in which at least one worked."""
        whole, end = 0.0, 0.0
        for begins, ends in sorted(self._worked):
            whole += max(0.0, ends - max(begins, end))
            end = max(end, ends)
        return sum(ends - begins for begins, ends in self._worked), whole
