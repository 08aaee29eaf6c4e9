"""Errors of samples, in a form that a worker can send to its owner."""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path

from flatout.base.errors import DataError
from flatout.data.files.bad import Bad, OnBad

_OURS = str(Path(__file__).parent.parent)
_NOT_THEIRS = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


class Unusable(Exception):
    """A sample that can't become a row. The message is shown after the sample's number."""


@dataclass(frozen=True)
class Failure:
    """`number`: of the sample in its dataset. `trace`: the whole traceback as text."""

    number: int
    why: str
    trace: str

    @classmethod
    def of(cls, number: int, error: Exception) -> Failure:
        trace = "".join(traceback.format_exception(error))
        if isinstance(error, Unusable):
            return cls(number, str(error), trace)
        said = " ".join(str(error).split())
        what = f"{type(error).__name__}: {said}" if said else type(error).__name__
        return cls(number, f"{what} ({own_line(traceback.extract_tb(error.__traceback__))})", trace)


class SampleFailed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.number, failure.why)
        self.failure = failure


class WorkerTraceback(Exception):
    """A traceback from a worker, used as `__cause__`, so that Python prints it with the error."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def error_of(failure: Failure, name: str, bad: Bad) -> DataError:
    """The error to raise for a failed sample of the dataset `name`. `bad` adds what to do, unless it skips bad samples."""
    where = f"sample {failure.number} of {name}"
    if bad.policy == OnBad.ERROR:
        try:
            bad.found(where, failure.why)
        except DataError as error:
            return error
    return DataError(f"{where}: {failure.why}")


def own_line(frames: traceback.StackSummary | list[traceback.FrameSummary]) -> str:
    """The innermost line that is not in a library: where a user would look first."""
    theirs = [frame for frame in frames if not frame.filename.startswith((_OURS, *_NOT_THEIRS, "<"))]
    outside = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    if not (theirs or outside):
        return "unknown line"
    frame = (theirs or outside)[-1]
    line = frame.line or linecache.getline(frame.filename, frame.lineno or 0).strip()
    code = f": {line}" if line else ""
    return f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}{code}"
