"""The rows that a shrink needs: some to calibrate, some to tune by, and held-out ones, used for nothing else, to judge by.

A row that is among the held-out ones does not calibrate or tune, even if the data has it twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.data import Data
from flatout.data.source import Batch, Source
from flatout.packaging.answering import Preparation
from flatout.packaging.package import Package
from flatout.store.tensors import write_tensors

CALIBRATING, TUNING, JUDGING = "calibrating", "tuning", "judging"
_MOST = {CALIBRATING: 2048, TUNING: 20_000, JUDGING: 200_000}
_MOST_BYTES = 512 << 20
_AT_ONCE = 4096
_SEED = 7
_LEAK = 0.5  # of the rows that calibrate and tune: if so many are held out too, the parts were not split


@dataclass(frozen=True)
class RowSets:
    """Prepared rows, inputs of the program and `y`. `origin` says where the judging rows come from; `repeated` how many rows
    were taken out of the others because they are among them."""

    sets: dict[str, Batch]
    origin: str
    repeated: int = 0

    def count(self, name: str) -> int:
        return len(self.sets[name]["y"])

    def write(self, folder: Path) -> None:
        for name, rows in self.sets.items():
            write_tensors(folder / f"{name}.safetensors", {key: column.contiguous() for key, column in rows.items()})


def rows_of_run(package: Package, data: Data) -> RowSets:
    """Judged on the test part, else on the validation part; calibrated and tuned on training rows."""
    parts = data.parts()
    held_out = next((name for name in ("test", "validation") if name in parts), None)
    if held_out is None:
        raise UsageError(
            f"{package.card['run']['name']} has no held-out rows, so no change can be proven as accurate: set holdout: 0.2 or "
            "validation: FILE under data in the recipe and train again, or give labelled rows with --data"
        )
    some = _shuffled(len(parts["train"]), _MOST[CALIBRATING] + _MOST[TUNING])
    few = min(len(some) // 2, _MOST[CALIBRATING])
    sets = {
        CALIBRATING: prepared_rows(package, parts["train"], some[:few]),
        TUNING: prepared_rows(package, parts["train"], some[few:]),
        JUDGING: prepared_rows(package, parts[held_out], _shuffled(len(parts[held_out]), _MOST[JUDGING])),
    }
    return _apart(sets, f"the {held_out} part of the run's data")


def rows_of_file(package: Package, source: Source, name: str) -> RowSets:
    """Of other labelled rows: an eighth calibrates, an eighth tunes, the rest judges."""
    some = _shuffled(len(source), sum(_MOST.values()))
    few = [min(len(some) // 8, _MOST[which]) for which in (CALIBRATING, TUNING)]
    cuts = [0, few[0], few[0] + few[1], len(some)]
    picked = [some[start:stop] for start, stop in pairwise(cuts)]
    sets = {
        which: prepared_rows(package, source, rows) for which, rows in zip((CALIBRATING, TUNING, JUDGING), picked, strict=True)
    }
    return _apart(sets, f"three quarters of {name}")


def _apart(sets: dict[str, Batch], origin: str) -> RowSets:
    """Without rows that calibrate or tune and are held out too. Where most rows have copies everywhere, because there are few
    different ones, they stay: leaving them out would leave none."""
    judged = Counter(_marks(sets[JUDGING]))
    copies = {name: torch.tensor([mark in judged for mark in _marks(sets[name])]) for name in (CALIBRATING, TUNING)}
    repeated = sum(int(one.sum()) for one in copies.values())
    total = sum(len(one) for one in copies.values())
    if repeated > _LEAK * total:
        if len(judged) > _LEAK * judged.total():
            raise DataError(
                f"{repeated / total:.0%} of the rows for calibration and choices are also in {origin}, on which nothing can be "
                "proven then: split the data anew, or give other labelled rows with --data"
            )
        return RowSets(sets, origin)
    apart = {
        name: {key: column[~copies[name]] for key, column in sets[name].items()} if name in copies else sets[name]
        for name in sets
    }
    return RowSets(apart, origin, repeated) if all(len(one["y"]) for one in apart.values()) else RowSets(sets, origin)


def _marks(rows: Batch) -> Iterator[int]:
    """A number for each row, the same for the same content."""
    columns = [column.contiguous().reshape(len(column), -1).numpy() for column in rows.values()]
    for place in range(len(rows["y"])):
        yield hash(b"".join(column[place].tobytes() for column in columns))


def _shuffled(count: int, most: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(_SEED))[:most]


def prepared_rows(package: Package, source: Source, rows: Tensor) -> Batch:
    """Inputs of the program and `y`; fewer than asked for, if they do not fit into memory."""
    if source.stream is not None:
        raise DataError("rows of a stream can't be read again: give labelled rows with --data")
    if not len(rows):
        raise DataError("there are no rows to judge by: give labelled rows with --data")
    names = [port.name for port in package.program.inputs]
    before = Preparation(package.fitted).before
    pieces: dict[str, list[Tensor]] = {}
    room = _MOST_BYTES
    for start in range(0, len(rows), _AT_ONCE):
        batch = source.read(rows[start : start + _AT_ONCE].sort().values)
        if "y" not in batch:
            raise DataError("the rows have no labels, and accuracy can't be judged without: add the label's column")
        prepared = {name: column for name, column in before(batch).items() if name in (*names, "y")}
        room -= sum(column.nbytes for column in prepared.values())
        for name, column in prepared.items():
            pieces.setdefault(name, []).append(column)
        if room < 0:
            break
    return {name: torch.cat(some) for name, some in pieces.items()}
