"""What became of each stage in one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flatout.base.units import show_seconds
from flatout.pipelines.stages.records import StageRecord

UNCHANGED, RESTORED, MADE_NOW, FAILED, NOT_RUN = "unchanged", "restored", "ran", "failed", "not run"
FAIL, NO_VERDICT = "fail", "no verdict"


@dataclass(frozen=True)
class StageOutcome:
    """`why` it ran; `words`: why it failed or was not run; `notes`: what the user should know besides."""

    stage: str
    kind: str
    status: str
    record: StageRecord | None = None
    why: tuple[str, ...] = ()
    words: str = ""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return "" if self.record is None else self.record.verdict

    @property
    def blocks(self) -> bool:
        """Whether stages that wait for it can't run."""
        return self.status in (FAILED, NOT_RUN) or self.verdict in (FAIL, NO_VERDICT)

    @property
    def blocking_words(self) -> str:
        if self.status in (FAILED, NOT_RUN):
            return "failed" if self.status == FAILED else "did not run"
        return "has no verdict" if self.verdict == NO_VERDICT else "says fail"

    @property
    def shown(self) -> str:
        if self.status == MADE_NOW and self.record is not None:
            return f"ran {show_seconds(self.record.seconds)}"
        return self.status

    def line(self) -> str:
        """For the progress of a call."""
        words = self.words or (self.record.words if self.record is not None else "")
        return "\n".join(
            [f"{self.stage}: {self.shown}{f': {words}' if words else ''}", *(f"  note: {note}" for note in self.notes)]
        )


@dataclass(frozen=True)
class PipelineOutcome:
    """`together`: seconds of all commands, and seconds in which at least one of them worked."""

    stages: Mapping[str, StageOutcome]
    seconds: float
    together: tuple[float, float] = (0.0, 0.0)
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: all is done; 1: a stage failed, or a gate says fail; 3: a gate has no verdict."""
        if any(one.status == FAILED or one.verdict == FAIL for one in self.stages.values()):
            return 1
        return 3 if any(one.verdict == NO_VERDICT for one in self.stages.values()) else 0
