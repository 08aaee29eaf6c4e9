"""After a stage has run: its outputs are put in their place, noted, kept in the cache, and compared with the last ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from flatout.base.errors import DataError, StoreError
from flatout.pipelines.asked.stage_kinds import RunStage, TrainStage, TuneStage
from flatout.pipelines.stages.assessing import Assessed, Assessor
from flatout.pipelines.stages.commands import begin_work, made_run
from flatout.pipelines.stages.given import keep_version
from flatout.pipelines.stages.outcomes import FAIL, FAILED, MADE_NOW, RESTORED, StageOutcome
from flatout.pipelines.stages.outputs import REPEATABLE, contents, meaning
from flatout.pipelines.stages.publishing import clear, publish
from flatout.pipelines.stages.receipts import told_of
from flatout.pipelines.stages.records import BROKEN, DONE, MADE, StageRecord
from flatout.pipelines.stages.resolved import ResolvedStage

_STORED = ("run", "train", "tune", "evaluate", "export", "shrink", "gate")


class Settler:
    """`results` opens what other folders and machines have made already, by key."""

    def __init__(self, found: Assessor, results: Callable[[], Any], say: Callable[[str], None]) -> None:
        self._found, self._open_results, self._say = found, results, say
        self._state = found.pipeline.state

    @cached_property
    def _results(self) -> Any:
        return self._open_results()

    def work(self, stage: ResolvedStage) -> Path:
        """The folder in which a stage's command works."""
        return self._state / "work" / stage.name

    def made(self, stage: ResolvedStage) -> Path | None:
        """What the stage made, if it is still in its work folder."""
        if isinstance(stage.asked, RunStage):
            return None
        if isinstance(stage.asked, TrainStage | TuneStage):
            return made_run(self.work(stage))
        made = self.work(stage) / "made"
        return made if made.is_dir() else None

    def settle(self, outcome: StageOutcome, record: StageRecord | None = None) -> None:
        self._found.outcomes[outcome.stage] = outcome
        if record is not None:
            self._found.done[outcome.stage] = record
        self._say(outcome.line())

    def fail(
        self, stage: ResolvedStage, why: Sequence[str], words: str, notes: Sequence[str] = (), record: StageRecord | None = None
    ) -> None:
        """`record`: of the try, if it came to one."""
        if record is not None:
            self._found.records.write(record.with_status(BROKEN))
        self.settle(StageOutcome(stage.name, stage.kind, FAILED, None, tuple(why), words, tuple(notes)))

    def clear(self, stage: ResolvedStage, last: StageRecord | None) -> list[str]:
        """FreeRoom for new outputs. A try that was killed may have left parts of its outputs, which are this stage's own."""
        partial = last is not None and last.status != DONE
        return clear(stage, last, self._found.hashes, self._state / "aside", working=partial)

    def finishes_what_was_made(self, stage: ResolvedStage, assessed: Assessed) -> bool:
        """After a kill between the end of the command and the note that all is done."""
        last = assessed.last
        if last is None or last.status != MADE or last.key != assessed.key.digest or stage.name in self._found.asked.fresh:
            return False
        made = self.made(stage)
        if made is None and not stage.product.exists():
            return False
        self.put_in_place(stage, made, last, assessed, [])
        return True

    def is_kept(self, stage: ResolvedStage, assessed: Assessed) -> bool:
        """Whether its result would be taken from those that are kept."""
        asks = stage.kind in _STORED and stage.name not in self._found.asked.fresh and stage.asked.when is None
        return asks and self._results.find(assessed.key.digest) is not None

    def restores(self, stage: ResolvedStage, assessed: Assessed) -> bool:
        """From the kept results, if another folder or an earlier time made it."""
        work = self.work(stage)
        try:
            if not self.is_kept(stage, assessed):
                return False
            kept = self._results.find(assessed.key.digest)
            begin_work(work, assessed.key.digest, keeps=True)
            shutil.rmtree(work / "restored", ignore_errors=True)
            self._results.restore(kept, work / "restored")
            record = StageRecord.read(dict(kept.record))
        except (StoreError, DataError, ValueError, OSError) as error:
            self._say(f"{stage.name}: its kept result can't be used: {error}")
            return False
        finally:
            if "_results" in vars(self):
                for note in self._results.notes:
                    self._say(f"{stage.name}: {note}")
                self._results.notes.clear()
        notes = self.clear(stage, assessed.last)
        for place, output in enumerate(stage.outputs):
            publish(work / "restored" / f"output-{place}", output)
        shutil.rmtree(work, ignore_errors=True)
        outputs = contents(stage, self._found.hashes)
        assert outputs is not None
        told = {"outputs": outputs, "meaning": meaning(stage, outputs, self._found.hashes)}
        record = record.with_status(DONE, stage=stage.name, **told)
        self._found.records.write(record)
        self.settle(StageOutcome(stage.name, stage.kind, RESTORED, record, assessed.why, notes=tuple(notes)), record)
        return True

    def put_in_place(
        self, stage: ResolvedStage, made: Path | None, record: StageRecord, assessed: Assessed, notes: list[str]
    ) -> None:
        if made is not None:
            notes += self.clear(stage, assessed.last)
            publish(made, stage.product)
        outputs = contents(stage, self._found.hashes)
        if outputs is None:
            self.fail(stage, assessed.why, "its output is gone", notes, record)
            return
        told = told_of(stage)
        record = record.with_status(
            DONE, outputs=outputs, meaning=meaning(stage, outputs, self._found.hashes), verdict=told.verdict, words=told.words
        )
        notes += self._unlike_before(stage, record)
        if stage.kind == "data" and told.verdict != FAIL:
            keep_version(stage, self._found)
        self._found.records.log(record)
        if stage.kind == "data" and told.verdict == FAIL:
            self.fail(stage, assessed.why, told.words, notes, record)
            return
        self._found.records.write(record)
        self._keep(stage, record, notes)
        shutil.rmtree(self.work(stage), ignore_errors=True)
        self.settle(StageOutcome(stage.name, stage.kind, MADE_NOW, record, assessed.why, "", tuple(notes)), record)

    def _unlike_before(self, stage: ResolvedStage, record: StageRecord) -> list[str]:
        earlier = next((one for one in reversed(self._found.records.past(stage.name)) if one.key == record.key), None)
        if stage.kind not in REPEATABLE or earlier is None or earlier.meaning == record.meaning:
            return []
        unlike = [output for place, output in enumerate(stage.outputs)
                  if earlier.outputs.get(str(place)) != record.outputs.get(str(place))]  # fmt: skip
        return [
            f"gave another result than before although nothing changed "
            f"({', '.join(map(self._found.pipeline.shown, unlike))}): it depends on something that it does not declare, "
            "such as the time or a seed that is not fixed"
        ]

    def _keep(self, stage: ResolvedStage, record: StageRecord, notes: list[str]) -> None:
        if stage.kind not in _STORED:
            return
        outputs = {f"output-{place}": output for place, output in enumerate(stage.outputs)}
        try:
            kept = self._results.keep(record.key, outputs, record.written(), seconds=record.seconds)
            del self._results.notes[: len(kept.unlike)]  # `_unlike_before` says it, of kinds that can be repeated at all
        except (StoreError, DataError, OSError) as error:
            notes.append(f"its result is not kept for other folders: {error}")
        if "_results" in vars(self):
            notes += self._results.notes
            self._results.notes.clear()
