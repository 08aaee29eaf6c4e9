"""The rows of one table as parts to train on, to validate on and to test on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.data import PARTS
from flatout.data.order.keyed import keyed
from flatout.data.order.split import hash_batch, held_out
from flatout.data.source import Source
from flatout.data.sources.tables.arrow import ArrowValues
from flatout.data.sources.tables.encoded import Gathering, kept_rows
from flatout.data.sources.tables.encoding import TableEncoder
from flatout.data.sources.tables.rows import RowPlace, UsableRows

Array = np.ndarray[Any, Any]

_NAMES = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2, "testing": 2}
_NO_PART = 255

PartOf = Callable[[Any, int], Array]


def part_rows(rows: UsableRows, holdout: float, split: str | None, seed: int) -> PartOf:
    """Of a batch, and the number of its first row: the part (a place in PARTS) that each of its rows belongs to."""
    if holdout:
        key = keyed(seed, "holdout")
        hashes = np.concatenate([hash_batch(batch, key) for batch, _ in rows.batches()])
        held = held_out(hashes, holdout).astype(np.uint8)
        return lambda batch, start: held[start : start + batch.num_rows]
    if split is not None:
        for batch, place in rows.batches():
            wrong = _by_column(batch, split) == _NO_PART
            if wrong.any():
                row = int(wrong.argmax())
                value = batch.column(batch.schema.names.index(split))[row].as_py()
                raise DataError(
                    f"{place.of(row)}: column {split!r} is {value!r}; expected {', '.join(PARTS[:2])} or {PARTS[2]}"
                )
        return lambda batch, start: _by_column(batch, split)
    return lambda batch, start: np.zeros(batch.num_rows, dtype=np.uint8)


def _by_column(batch: Any, split: str) -> Array:
    codes, texts = ArrowValues(batch).texts(split)
    return np.array([_NAMES.get((text or "").strip().lower(), _NO_PART) for text in texts], dtype=np.uint8)[codes]


def encode_parts(
    rows: UsableRows,
    encoder: TableEncoder,
    part_of: PartOf,
    folders: Mapping[str, Path],
    training_rows: int,
    weights: str | None,
    others_of: Callable[[Any], Any],
) -> tuple[list[Source | None], Array | None, Counter[str]]:
    """The parts, the weights of training rows, and how many values of the other parts were unknown."""
    import pyarrow as pa

    counts = (training_rows, (rows.count or 0) - training_rows, 0)
    gathering = [Gathering(folders.get(part), count) for part, count in zip(PARTS, counts, strict=True)]
    kept = {PARTS.index(part): kept_rows(folder) for part, folder in folders.items()}
    ready = {part: source for part, source in kept.items() if source is not None}
    drawn: list[Array] = []
    unseen: Counter[str] = Counter()
    start = 0
    try:
        for batch, place in rows.batches():
            parts = part_of(batch, start)
            start += batch.num_rows
            for part in np.unique(parts).tolist():
                mask = parts == part
                mine = batch if mask.all() else batch.filter(pa.array(mask))
                training, here = part == 0, place.among(mask)
                if part not in ready:
                    others = others_of(mine) if training else None
                    gathering[part].add(encoder.encoded(mine, here, True, None if training else unseen, others))
                if training and weights is not None:
                    drawn.append(_weights(mine, weights, here))
        sources = [ready.get(part) or one.finish() for part, one in enumerate(gathering)]
        return sources, np.concatenate(drawn) if drawn else None, unseen
    finally:
        for one in gathering:
            one.discard()


def _weights(batch: Any, name: str, place: RowPlace) -> Array:
    weights = ArrowValues(batch).numbers(name)
    with np.errstate(invalid="ignore"):
        wrong = ~((weights >= 0) & (weights < np.inf))
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{place.of(row)}: column {name!r} holds weights, 0 or more; this row has {weights[row]:g}")
    return weights
