"""What a pipeline knows of its stages from earlier: a file for each stage, and a log of all that ever ran."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError
from flatout.base.files import read_json, write_json
from flatout.base.sealed import append, read_lines, sealed

FORMAT = 1
STARTED, BROKEN, MADE, DONE = "started", "failed", "made", "done"


@dataclass(frozen=True)
class StageRecord:
    """One making of a stage's result.

    `status`: started, failed, made (the command ended well, its result may still lie in the work folder), done.
    `outputs`: the content of each output. `meaning`: the content that stages which use it depend on. `seconds` and what it took
    are of its command alone; `growing_s` of them grow with the rows and the budget.
    """

    stage: str
    kind: str
    key: str
    status: str
    parts: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    meaning: str = ""
    verdict: str = ""
    words: str = ""
    command: str = ""
    at: float = 0.0
    seconds: float = 0.0
    cpu_s: float | None = None
    memory_bytes: int | None = None
    gpu_bytes: int | None = None
    growing_s: float | None = None
    joules: float | None = None
    alone: bool = True
    size: float = 0.0
    amount: float | None = None
    unit: str = ""

    @property
    def cores(self) -> float | None:
        return None if self.cpu_s is None or self.seconds <= 0 else self.cpu_s / self.seconds

    def written(self) -> dict[str, Any]:
        return {"flatout_stage": FORMAT, **asdict(self)}

    def with_status(self, status: str, **more: Any) -> StageRecord:
        return replace(self, status=status, **more)

    @classmethod
    def read(cls, written: Any) -> StageRecord:
        """ValueError if it is of another format or not a record."""
        if not isinstance(written, dict) or written.get("flatout_stage") != FORMAT:
            raise ValueError("it has another format")
        known = {one.name for one in fields(cls)}
        try:
            return cls(**{name: value for name, value in written.items() if name in known})
        except TypeError as error:
            raise ValueError("it is incomplete") from error


class StageRecords:
    """The folder with the state of a pipeline. A file that can't be read counts as none: the stage then runs again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "history.jsonl"
        self._past: dict[str, list[StageRecord]] | None = None

    def begin(self) -> None:
        try:
            (self.folder / "stages").mkdir(parents=True, exist_ok=True)
            ignore = self.folder / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            raise StoreError(f"{self.folder} can't be written: {error.strerror}") from error

    def last(self, stage: str) -> StageRecord | None:
        try:
            return StageRecord.read(read_json(self._file(stage)))
        except (OSError, ValueError):
            return None

    def write(self, record: StageRecord) -> None:
        try:
            write_json(self._file(record.stage), record.written())
        except OSError as error:
            raise StoreError(f"the state of stage {record.stage} can't be written: {error.strerror}: {self.folder}") from error

    def log(self, record: StageRecord) -> None:
        """Nothing is decided by the log alone, so a full disk does not end a pipeline here."""
        try:
            file = os.open(self._log, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            return
        try:
            append(file, sealed(record.written()))
        except OSError:
            pass
        finally:
            os.close(file)
        if self._past is not None:
            self._past.setdefault(record.stage, []).append(record)

    def past(self, stage: str) -> list[StageRecord]:
        """All makings of this stage's result, the oldest first."""
        if self._past is None:
            self._past = {}
            for record in self._logged():
                self._past.setdefault(record.stage, []).append(record)
        return self._past.get(stage, [])

    def _logged(self) -> Iterator[StageRecord]:
        for line in read_lines(self._log, unsealed=False):
            try:
                yield StageRecord.read(line.fields)
            except ValueError:
                continue

    def _file(self, stage: str) -> Path:
        assert re.fullmatch(r"[\w.-]+", stage), stage
        return self.folder / "stages" / f"{stage}.json"
