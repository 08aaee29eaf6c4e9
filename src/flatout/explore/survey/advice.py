"""Sentences about the measured stages: whether training will wait, for what, what would help, and by how much.

Nothing is measured here, so tests can replay every sentence from numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from flatout.base.units import show_bytes, show_count, show_rate, show_seconds
from flatout.explore.survey.speeds import Speeds, slowest

_OPENING_MATTERS_S = 3.0
_BUSY = 0.2
_WAITS = 0.4  # of a thread's time: then files are the limit, not decoding
_WIDER_PAYS = 1.5


def words_of(s: Speeds) -> list[str]:
    """Advice for the user: whether training will wait, for what, and what would help."""
    row = slowest(s)
    faster = None if row is None else _FASTER.get(row.name)
    return [*_verdict(s), *_slowest(s), *(() if faster is None else faster(s)), *_faster_opening(s), *_busy(s)]


def _verdict(s: Speeds) -> Iterator[str]:
    come, wanted = s.stages.loading.rows_per_s, s.wanted_rows_per_s
    if wanted is None:
        return
    if come >= wanted:
        times = f", {come / wanted:.1f} times that" if come < 100 * wanted else ""
        takes = f"it needs at most {_rate(wanted, s)}"
        yield f"Training will not wait for data: {takes}, and data can be read at {_rate(come, s)}{times}."
        return
    later = s.later_rows_per_s if s.kept else None
    when = " in the first epoch" if later is not None and later > come else ""
    yield (
        f"Training may wait for data{when}: it could use {_rate(wanted, s)}, and data can be read at {_rate(come, s)}, "
        f"{come / wanted:.0%} of that."
    )


def _slowest(s: Speeds) -> Iterator[str]:
    row = slowest(s)
    if row is None:
        return
    reading = s.stages.reading if row.name == "reading" else None
    threads = f" on {row.at_once} threads" if row.at_once > 1 else ""
    if reading is not None and row.at_once == 1:
        threads = " on one thread" if reading.own_workers is None else f" by {row.words}"
    words = f"The slowest stage is {row.name}: {_rate(row.effective_rows_per_s, s)}{threads}"
    if row.ceiling_rows_per_s is not None and row.name != "picking":
        share = min(1.0, row.effective_rows_per_s / row.ceiling_rows_per_s)
        words += f", {share:.0%} of the speed of the {row.ceiling} ({_rate(row.ceiling_rows_per_s, s)})"
    yield words + "."


def _faster_reading(s: Speeds) -> Iterator[str]:
    reading, later = s.stages.reading, s.later_rows_per_s
    assert reading is not None
    size = s.stored_bytes
    if later is not None and s.kept:
        where = {"resident": "the device", "pinned": "host memory", "mapped": "the cache on disk"}[s.tier]
        kept = f"{show_bytes(size)} are kept there"
        yield f"From the second epoch on, rows are read from {where} at about {_rate(later, s)}: {kept}."
    elif later is not None:
        tier, free = ("pinned", s.host_free_bytes) if size < 0.6 * s.host_free_bytes else ("mapped", s.disk_free_bytes)
        where = "memory" if tier == "pinned" else "disk"
        if size < free:
            yield (
                f"With --set tier={tier}, rows would be read at about {_rate(later, s)} from the second epoch on; it takes "
                f"{show_bytes(size)} of {where} ({show_bytes(free)} free)."
            )
    if reading.own_workers is not None:
        each = _rate(reading.rows_per_s / reading.own_workers, s)
        yield f"Each worker of the dataset reads {each}: set workers= to more, or do less work per sample."
    elif reading.attention.waiting > _WAITS:
        yield "Threads mostly wait for files: a faster disk, or fewer and larger files, helps more than more threads."
    elif s.wanted_rows_per_s is not None:
        needed = math.ceil(s.wanted_rows_per_s / reading.rows_per_s)
        if needed > s.threads:
            yield (
                f"Each thread reads {_rate(reading.rows_per_s, s)}: {show_count(needed)} would keep up with training, "
                f"but this machine has {s.cores} core{'' if s.cores == 1 else 's'}."
            )


def _faster_transforms(s: Speeds) -> Iterator[str]:
    steps = s.stages.transforms
    whole = sum(step.s_per_row for step in steps)
    most = max(steps, key=lambda step: step.s_per_row)
    if len(steps) > 1 and whole > most.s_per_row:
        rest = _rate(1 / (whole - most.s_per_row), s)
        yield f"{most.name} takes {most.s_per_row / whole:.0%} of the time of all transforms: without it they would do {rest}."


def _faster_copying(s: Speeds) -> Iterator[str]:
    yield f"A row is {show_bytes(s.row_bytes)}: a type or size with half of the bytes is copied twice as fast."


def _faster_picking(s: Speeds) -> Iterator[str]:
    reading = s.stages.reading
    if reading is not None and reading.wider is not None and reading.wider.rows_per_s > _WIDER_PAYS * reading.rows_per_s:
        yield (
            f"Most of the time is overhead per batch: batches of {reading.wider.batch:,} would be picked at "
            f"{_rate(reading.wider.rows_per_s, s)}."
        )


def _faster_opening(s: Speeds) -> Iterator[str]:
    if s.opening_s < _OPENING_MATTERS_S or not s.file_bytes or not s.opened_rows:
        return
    remedy = ": the text is parsed each time; a copy as Parquet avoids that" if s.parsed else ""
    yield (
        f"Reading and preparing the files takes {show_seconds(s.opening_s)} before the first step, "
        f"{_rate(s.opened_rows / s.opening_s, s)}{remedy}."
    )


def _busy(s: Speeds) -> Iterator[str]:
    reading = s.stages.reading
    if reading is not None and reading.attention.queued > _BUSY:
        yield (
            f"Other processes use the cores: the reading thread waited for a core {reading.attention.queued:.0%} of the time, "
            "so this machine is faster than the rates shown here."
        )


def _rate(value: float, s: Speeds) -> str:
    return show_rate(value, s.unit)


_FASTER: dict[str, Callable[[Speeds], Iterator[str]]] = {
    "picking": _faster_picking, "reading": _faster_reading, "transforms": _faster_transforms, "copying": _faster_copying,
}  # fmt: skip
