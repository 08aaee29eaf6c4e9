"""Reads the log of a run for its curves: a million log points in seconds.

The values of `step` lines are read in bulk, roughly, and only to choose which lines a curve needs. The chosen lines, and all
other lines, are then read as everywhere else: as JSON, with their checksums.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.base.errors import StoreError
from flatout.base.events import Event
from flatout.base.sealed import is_sealed, read_line

FIELDS = ("step", "loss", "lr", "grad_norm", "samples_per_s", "tokens_per_s", "memory_bytes", "power_w")
_BLOCK = 1 << 20
_STEP = np.frombuffer(b'{"kind": "step"', dtype=np.uint8)
_DIGITS = 12  # of a number that are read in bulk
_COMMA, _DOT, _COLON, _ZERO = (ord(letter) for letter in ",.:0")
# What a digit is worth at each place of a number, by the place of its decimal point.
_WORTH = np.array(
    [[10.0 ** (dot - place - (place < dot)) * (place != dot) for dot in range(_DIGITS + 1)] for place in range(_DIGITS)]
)

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass
class LogScan:
    """`numbers`: a value of every step line for each field; NaN: none was logged, infinite: it was not finite.

    `others`: all other events, each with the number of step lines before it. `end`: where the last whole line ends.
    """

    path: Path
    numbers: dict[str, Numbers]
    offsets: Places
    sizes: Places
    lines: Places  # their line numbers
    others: list[tuple[int, Event]]
    end: int = 0

    @property
    def count(self) -> int:
        return len(self.offsets)

    def exact(self, chosen: Sequence[int] | Places) -> dict[int, Event]:
        """These step lines as events; a damaged line is an event of kind `damaged`."""
        if not len(chosen):
            return {}
        try:
            return self._exact(chosen)
        except OSError as error:
            why = error.strerror or error
            raise StoreError(f"{self.path} can't be read any more: {why}; was the run moved or deleted?") from error

    def _exact(self, chosen: Sequence[int] | Places) -> dict[int, Event]:
        found: dict[int, Event] = {}
        with self.path.open("rb") as log:
            for place in chosen:
                log.seek(int(self.offsets[place]))
                line = read_line(int(self.lines[place]), log.read(int(self.sizes[place])) + b"\n", unsealed=True)
                if line is not None:
                    found[int(place)] = line.fields or _damaged(line.number, line.damage)
        return found


def scan_log(path: Path) -> LogScan:
    """An empty scan if there is no log yet."""
    reading = _Reading()
    try:
        log = path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        return reading.done(path)
    with log:
        size = os.fstat(log.fileno()).st_size  # a run that is still being written can grow faster than it is read
        rest = b""
        while size > 0 and (read := log.read(min(_BLOCK, size))):
            size -= len(read)
            block = rest + read
            cut = block.rfind(b"\n") + 1
            rest = block[cut:]
            reading.block(block[:cut])
        end = reading.offset
        reading.block(rest)
    return reading.done(path, end)


@dataclass
class _Reading:
    """The state of one scan. `keys`: of the newest step line that was read as JSON; most lines have the same."""

    keys: tuple[str, ...] = ()
    offset: int = 0
    line: int = 0
    count: int = 0
    unsealed: bool = True
    numbers: dict[str, list[Numbers]] = field(default_factory=lambda: {name: [] for name in FIELDS})
    offsets: list[Places] = field(default_factory=list)
    sizes: list[Places] = field(default_factory=list)
    lines: list[Places] = field(default_factory=list)
    others: list[tuple[int, Event]] = field(default_factory=list)

    def block(self, block: bytes) -> None:
        if not block:
            return
        letters = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero(letters == ord("\n"))
        if not block.endswith(b"\n"):
            ends = np.append(ends, len(block))
        starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1] + 1))
        if not self.keys:
            self.keys = _keys_of_a_step(block)
        quick, columns = _columns(letters, starts, ends, self.keys)
        is_step = quick.copy()
        slow: dict[int, Event] = {}
        before = self.count + np.cumsum(quick) - quick  # step lines before each line, so far without the slow ones
        for place in np.flatnonzero(~quick).tolist():
            event = self._event(block, int(starts[place]), int(ends[place]), self.line + place + 1)
            if event is None:
                continue
            if event.get("kind") == "step":
                self.keys = tuple(event)
                is_step[place] = True
                slow[place] = event
            else:
                self.others.append((int(before[place]) + len(slow), event))
        self._keep(starts, ends, is_step, quick, columns, slow)
        self.offset += len(block)
        self.line += len(starts)

    def _event(self, block: bytes, start: int, end: int, number: int) -> Event | None:
        content = block[start : end + 1]
        line = read_line(number, content, unsealed=self.unsealed)
        self.unsealed = self.unsealed and not is_sealed(content.removesuffix(b"\n"))
        if line is None:
            return None
        return line.fields or _damaged(number, line.damage)

    def _keep(
        self, starts: Places, ends: Places, is_step: NDArray[np.bool_], quick: NDArray[np.bool_],
        columns: dict[str, Numbers], slow: dict[int, Event],
    ) -> None:  # fmt: skip
        for name, parts in self.numbers.items():
            values = np.full(len(starts), np.nan)
            values[quick] = columns.get(name, np.nan)
            for place, event in slow.items():
                values[place] = number_of(event.get(name))
            parts.append(values[is_step])
        self.offsets.append(self.offset + starts[is_step])
        self.sizes.append((ends - starts)[is_step])
        self.lines.append(self.line + 1 + np.flatnonzero(is_step))
        self.count += int(is_step.sum())

    def done(self, path: Path, end: int = 0) -> LogScan:
        def whole(parts: list[Any], kind: Any) -> Any:
            return np.concatenate(parts) if parts else np.zeros(0, dtype=kind)

        numbers = {name: whole(parts, np.float64) for name, parts in self.numbers.items()}
        offsets, sizes, lines = (whole(parts, np.int64) for parts in (self.offsets, self.sizes, self.lines))
        return LogScan(path, numbers, offsets, sizes, lines, self.others, end)


def number_of(value: Any) -> float:
    """NaN: there is none. Infinite: there is one, and it is not finite."""
    if not isinstance(value, int | float):
        return float("nan")
    return float(value) if value - value == 0 else float("inf")


def _damaged(number: int, why: str) -> Event:
    why = f"line {number} {why}: its content is missing here"
    return {"kind": "damaged", "line": number, "what": "events.jsonl", "why": why}


def _keys_of_a_step(block: bytes) -> tuple[str, ...]:
    """Of the first step line with a checksum; empty if there is none."""
    start = block.find(b'{"kind": "step"')
    line = block[start : block.find(b"\n", start)] if start >= 0 else b""
    if not is_sealed(line):
        return ()
    try:
        return tuple(json.loads(line))
    except ValueError:
        return ()


def _columns(
    letters: Bytes, starts: Places, ends: Places, keys: tuple[str, ...]
) -> tuple[NDArray[np.bool_], dict[str, Numbers]]:
    """Which lines are step lines with exactly these keys, and their values."""
    quick = np.zeros(len(starts), dtype=bool)
    if not keys or keys[-1] != "crc":
        return quick, {}
    commas = np.flatnonzero(letters == _COMMA)
    first = np.searchsorted(commas, starts)
    likely = np.flatnonzero(np.diff(np.append(first, len(commas))) == len(keys) - 1)
    likely = likely[ends[likely] - starts[likely] > len(_STEP)]
    likely = likely[(letters[starts[likely, None] + np.arange(len(_STEP))] == _STEP).all(axis=1)]
    likely = likely[letters[ends[likely] - 1] == ord("}")]
    table = commas[first[likely, None] + np.arange(len(keys) - 1)]
    same = np.ones(len(likely), dtype=bool)
    begins = {}
    for place, name in enumerate(keys):
        if name in FIELDS:
            begins[place] = table[:, place - 1] + len(f', "{name}": ')
            same &= (letters[begins[place] - 2] == _COLON) & (letters[table[:, place - 1] + 3] == ord(name[0]))
    columns = {}
    for place, begin in begins.items():
        columns[keys[place]], sure = _numbers(letters, begin, table[:, place])
        same &= sure
    quick[likely[same]] = True
    return quick, {name: values[same] for name, values in columns.items()}


def _numbers(letters: Bytes, begin: Places, end: Places) -> tuple[Numbers, NDArray[np.bool_]]:
    """Numbers of JSON to about 7 digits, which is enough to find the highest and the lowest; and which of them are certain."""
    first = letters[begin]
    if (first == ord("n")).all():  # a field that this run does not log
        return np.full(len(begin), np.nan), np.ones(len(begin), dtype=bool)
    negative = first == ord("-")
    exponent = letters[np.maximum(end - 4, begin)] == ord("e")
    long_exponent = letters[np.maximum(end - 5, begin)] == ord("e")  # three digits: 1e-100
    at = begin + negative
    length = end - at - 4 * exponent
    places = np.arange(_DIGITS)[:, None]  # a row for each place: sums over them are quick
    window = letters.take(at + places, mode="clip")
    inside = places < length
    digits = ((window - _ZERO) * inside).astype(np.float64)
    is_dot = (window == _DOT) & inside
    common = int(is_dot[:, 0].argmax())
    value: Numbers
    if is_dot[common].all():  # the point is at the same place in all lines, as in losses below 10
        has_dot = is_dot[common]
        value = _WORTH[:, common] @ digits
    else:
        has_dot = is_dot.any(axis=0)
        dot = np.where(has_dot, is_dot.argmax(axis=0), np.clip(length, 0, _DIGITS))
        value = np.einsum("ij,ij->j", digits, _WORTH[:, dot])
    if exponent.any():
        here = np.flatnonzero(exponent)
        tens = (letters[end[here] - 2] - _ZERO) * 10.0 + (letters[end[here] - 1] - _ZERO)
        value[here] *= 10.0 ** np.where(letters[end[here] - 3] == ord("-"), -tens, tens)
    value = np.where(negative, -value, value)
    value[first == ord("n")] = np.nan
    second = letters[np.minimum(begin + 1, len(letters) - 1)]
    value[(first == ord("N")) | (first == ord("I")) | (negative & (second == ord("I")))] = np.inf
    return value, (has_dot | (length <= _DIGITS)) & ~long_exponent
