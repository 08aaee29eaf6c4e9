"""The measured speed of the data as a table of stages: rates, ceilings, and the slowest stage."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.base.units import show_bytes
from flatout.explore.survey.stages import Stages

_READS_FILES = 64  # bytes a row: fewer means that rows do not come from files


@dataclass(frozen=True)
class Speeds:
    """`threads` may read ahead of training. None: not measured."""

    unit: str
    row_bytes: float  # as read
    stored_bytes: float  # all training rows, as stored
    in_memory: bool
    on_cpu: bool
    tier: str
    cores: int
    threads: int
    stages: Stages
    opening_s: float
    wanted_rows_per_s: float | None = None  # the most that training takes
    opened_rows: int = 0  # of all parts
    file_bytes: float | None = None
    parsed: bool = False  # files are text
    disk_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    host_free_bytes: float = 0.0
    disk_free_bytes: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether rows are read from a faster place after they were read once."""
        return not self.in_memory and self.tier in ("resident", "pinned", "mapped")

    @property
    def later_rows_per_s(self) -> float | None:
        """The rate from the second epoch on, if rows are cached: as measured, else from serving, copying and transforms."""
        if self.in_memory:
            return None
        if self.kept and self.stages.loading.later_rows_per_s is not None:
            return self.stages.loading.later_rows_per_s
        rates = [row.rows_per_s for row in rows_of(self) if row.name in ("keeping", "copying", "transforms")]
        if self.stages.kept_rows_per_s is None or not rates:
            return None
        if self.on_cpu:  # the same threads do one after the other
            return self.threads / sum(1 / rate for rate in rates)
        return min(rates)


@dataclass(frozen=True)
class StageRow:
    """A stage in the table. `path`: rows of the first epoch pass it, so it can be the bottleneck."""

    name: str
    words: str
    rows_per_s: float
    ceiling_rows_per_s: float | None = None
    ceiling: str = ""
    path: bool = True
    at_once: int = 1  # threads that work in parallel

    @property
    def effective_rows_per_s(self) -> float:
        return self.rows_per_s * self.at_once


def rows_of(s: Speeds) -> list[StageRow]:
    """In the order that rows pass them, then the whole."""
    stages, found = s.stages, []
    memory = s.memory_bytes_per_s
    if stages.reading is not None and s.in_memory:
        most = None if memory is None else memory / (2 * s.row_bytes)
        found.append(StageRow("picking", "rows out of memory, one thread", stages.reading.rows_per_s, most, "memory"))
    elif stages.reading is not None:
        found.append(_reading(s))
    if stages.kept_rows_per_s is not None:
        most = None if memory is None else memory / (2 * s.row_bytes)
        words = f"rows once read, from memory: {show_bytes(s.row_bytes)} each"
        found.append(StageRow("keeping", words, stages.kept_rows_per_s, most, "memory", path=False))
    if stages.copy_bytes_per_s is not None:
        most = None if s.link_bytes_per_s is None else s.link_bytes_per_s / s.row_bytes
        words = f"to the device, {show_bytes(stages.copy_bytes_per_s)}/s"
        rate = stages.copy_bytes_per_s / s.row_bytes
        found.append(StageRow("copying", words, rate, most, "link", path=not (s.in_memory and s.tier == "resident")))
    if (transforms := stages.transform_rows_per_s) is not None:
        at_once = s.threads if s.on_cpu and not s.in_memory else 1
        found.append(StageRow("transforms", _shares(s), transforms, at_once=at_once))
    return found


def slowest(s: Speeds) -> StageRow | None:
    path = [row for row in rows_of(s) if row.path]
    return min(path, key=lambda row: row.effective_rows_per_s) if path else None


def _reading(s: Speeds) -> StageRow:
    reading = s.stages.reading
    assert reading is not None
    if reading.own_workers is not None:
        plural = "" if reading.own_workers == 1 else "s"
        return StageRow("reading", f"{reading.own_workers} worker{plural} of the dataset", reading.rows_per_s)
    spent = reading.attention
    shares = {"working": spent.working, "waiting for files": spent.waiting, "in line for a core": spent.queued}
    words = "one thread: " + ", ".join(f"{share:.0%} {what}" for what, share in shares.items() if share >= 0.05)
    most, ceiling = None, ""
    if s.disk_bytes_per_s and (reading.file_bytes_per_row or 0) > _READS_FILES:
        most, ceiling = s.disk_bytes_per_s / (reading.file_bytes_per_row or 1), "disk"
    return StageRow("reading", words, reading.rows_per_s, most, ceiling, at_once=s.threads)


def _shares(s: Speeds) -> str:
    whole = sum(step.s_per_row for step in s.stages.transforms)
    shown = sorted(s.stages.transforms, key=lambda step: -step.s_per_row)[:3]
    if len(shown) == 1:
        return "what was fitted" if shown[0].name == "table" else shown[0].name
    return ", ".join(f"{step.name} {step.s_per_row / whole:.0%}" for step in shown)
