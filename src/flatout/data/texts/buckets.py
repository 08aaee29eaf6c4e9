"""Rows of differing lengths: batches of rows of like length, as many rows each as a budget of tokens allows, padded.

Rows sorted by length are cut into buckets of a few batches each. An epoch shuffles the rows within each bucket (and those of
equal padded length across buckets), cuts the buckets into batches, and shuffles the batches. So what is in a batch changes from
epoch to epoch, while the number of batches and their shapes never do: a place in the run is a number, and every shape that a
compiler or a graph will meet is known before the first step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.bad import Bad
from flatout.data.checks import check_labels
from flatout.data.data import Data
from flatout.data.files import Array, to_tensor
from flatout.data.keyed import hash32, keyed
from flatout.data.order import Order
from flatout.data.source import Batch, Column, Schema, Source, hash_tensors
from flatout.data.split import hash_strings, held_out
from flatout.data.texts.packing import IGNORED, Stream, as_tensor, widen
from flatout.data.texts.tokenizer import Tokenizer
from flatout.data.texts.tokens import Part, check_vocabulary, find_files, json_rows, kind_of, text_field

_LEAST_MIX, _MOST_MIX, _BUCKETS = 2, 16, 64
_MULTIPLE = 8  # of tokens: what matrix units like


@dataclass(frozen=True)
class Planned:
    """One batch: its rows, and the length that they are padded to."""

    rows: Tensor
    length: int


class Buckets:
    """A plan of batches of at most `tokens` tokens each, padding included; a pure function of (seed, epoch, lengths).

    Padded lengths are multiples of `multiple`. `mix` is how many batches a bucket holds: more is a better shuffle and more
    padding; by default 2 to 16, as many as leave 64 buckets. `rows` is the most rows of a batch. `padding` is the share of the
    tokens that is padding.
    """

    def __init__(
        self,
        lengths: Tensor | Array | Sequence[int],
        tokens: int,
        seed: int = 0,
        *,
        multiple: int = _MULTIPLE,
        mix: int | None = None,
        rows: int | None = None,
    ) -> None:
        if tokens < 1 or multiple < 1 or (mix is not None and mix < 1) or (rows is not None and rows < 1):
            raise UsageError(f"tokens, multiple, mix and rows are 1 or more, got {tokens}, {multiple}, {mix}, {rows}")
        sizes = np.asarray(lengths, np.int64)
        _check_lengths(sizes, tokens, multiple)
        self._seed = seed
        self._classes = -(-sizes // multiple)
        ranked = np.sort(self._classes)[::-1] * multiple  # the padded length of each rank is the same in every epoch
        mix = mix or min(max(int(ranked.sum()) // tokens // _BUCKETS, _LEAST_MIX), _MOST_MIX)
        self._buckets = list(_cut(ranked, tokens, mix, rows))
        self._bucket_of_rank = np.repeat(np.arange(len(self._buckets)), [bucket.rows for bucket in self._buckets])
        self.epoch_batches = sum(-(-bucket.rows // bucket.batch) for bucket in self._buckets)
        padded = sum(bucket.rows * bucket.length for bucket in self._buckets)
        self.padding = 1 - int(sizes.sum()) / padded

    @property
    def epoch_rows(self) -> int:
        return len(self._classes)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Every (rows, length) that a batch can have, longest first."""
        found = {}
        for bucket in self._buckets:
            for count in (bucket.batch, bucket.rows % bucket.batch):
                if count and count <= bucket.rows:
                    found[count, bucket.length] = True
        return tuple(found)

    def batches(self, epoch: int) -> list[Tensor]:
        """The rows of each batch, int64, in the order of training."""
        return [planned.rows for planned in self.plan(epoch)]

    def plan(self, epoch: int) -> list[Planned]:
        """The same with the length that each batch is padded to."""
        ranked = np.argsort(self._keys(-self._classes, "rank", epoch))
        rows = ranked[np.argsort(self._keys(self._bucket_of_rank, "bucket", epoch, ranked))]
        made: list[Planned] = []
        first = 0
        for bucket in self._buckets:
            here = torch.from_numpy(rows[first : first + bucket.rows])
            made += [Planned(batch, bucket.length) for batch in here.split(bucket.batch)]
            first += bucket.rows
        count = self.epoch_batches
        order = Order(keyed(self._seed, "batches"), (count,)).rows(epoch * count, (epoch + 1) * count)
        return [made[place] for place in order.tolist()]

    def _keys(self, major: Array, purpose: str, epoch: int, rows: Array | None = None) -> Array:
        """Sort keys: by `major`, then by a hash of the row, which no two rows share."""
        numbers = np.arange(len(major)) if rows is None else rows
        hashed = hash32(torch.from_numpy(numbers), keyed(self._seed, purpose, epoch)).numpy()
        return np.asarray((major << 32) + hashed)


@dataclass(frozen=True)
class _Bucket:
    rows: int
    length: int
    batch: int


def _cut(ranked: Array, tokens: int, mix: int, most: int | None) -> Iterator[_Bucket]:
    first = 0
    while first < len(ranked):
        length = int(ranked[first])
        batch = min(tokens // length, most or tokens)
        rows = min(mix * batch, len(ranked) - first)
        yield _Bucket(rows, length, batch)
        first += rows


def _check_lengths(sizes: Array, tokens: int, multiple: int) -> None:
    if sizes.ndim != 1 or not len(sizes):
        raise DataError(f"buckets need the length of each row, one or more; got an array of shape {list(sizes.shape)}")
    if int(sizes.min()) < 1:
        row = int(sizes.argmin())
        raise DataError(f"row {row} has {int(sizes[row])} tokens: every row needs 1 or more")
    row = int(sizes.argmax())
    padded = -(-int(sizes[row]) // multiple) * multiple
    if padded > tokens:
        what = f"row {row} has {int(sizes[row])} tokens, {padded} when padded to a multiple of {multiple}"
        raise DataError(f"{what}, and a batch may have {tokens}: raise tokens, or leave out or cut rows that long")


class SequenceSource(Source):
    """Rows of differing lengths, stored end to end. A row is padded to the longest, or with `padded` to a length of the plan.

    Columns: x, `length`, and y. Without a y of its own, the target of each token is the next one of its row.
    """

    def __init__(
        self,
        tokens: Tensor,
        lengths: Tensor,
        y: Tensor | None = None,
        pad: int = 0,
        *,
        longest: int | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        """`tokens` as `packing.as_tensor` makes them; `longest` is that of all parts of the data. With `batch_tokens` a
        training batch has no more tokens than that, padding included."""
        self.batch_tokens = batch_tokens
        self._buckets: tuple[tuple[int, ...], Buckets] | None = None  # those asked for last
        self._stored = {"tokens": tokens, "start": lengths.cumsum(0) - lengths, "length": lengths}
        if y is not None:
            self._stored["y"] = y
        self._longest, self._pad = longest or int(lengths.max()), pad

    @property
    def in_memory(self) -> bool:
        return True

    @property
    def lengths(self) -> Tensor:
        return self._stored["length"]

    @property
    def schema(self) -> dict[str, Column]:
        row, number = Column(torch.int64, (self._longest,)), Column(torch.int64, ())
        y = self._stored.get("y")
        return {"x": row, "length": number, "y": row if y is None else Column(y.dtype, tuple(y.shape[1:]))}

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def tokens_per_row(self) -> float:
        return float(self.lengths.double().mean())

    @property
    def shapes_vary(self) -> bool:
        return self.batch_tokens is not None

    def rows_per_batch(self, batch: int) -> float:
        return batch if self.batch_tokens is None else len(self) / self.buckets(batch).epoch_batches

    def stored_rows(self, batch: int) -> int:
        return batch if self.batch_tokens is None else min(batch, max(1, self.batch_tokens // self._longest))

    def typical_batch(self, batch: int) -> tuple[int, Schema]:
        if self.batch_tokens is None:
            return batch, self.schema
        buckets = self.buckets(batch)
        rows = len(self) / buckets.epoch_batches
        length = max(1, round(int(self.lengths.sum()) / (1 - buckets.padding) / len(self)))
        whole, cut = (self._longest,), (length,)
        columns = {name: Column(col.dtype, cut) if col.shape == whole else col for name, col in self.schema.items()}
        return max(1, round(rows)), columns

    def padded_to(self, longest: int) -> SequenceSource:
        """The same rows beside a model that takes so many tokens; those that are longer stay so, and don't fit."""
        tokens, lengths, y = (self._stored.get(name) for name in ("tokens", "length", "y"))
        assert tokens is not None and lengths is not None
        longest = max(longest, int(lengths.max()))
        return SequenceSource(tokens, lengths, y, self._pad, longest=longest, batch_tokens=self.batch_tokens)

    def buckets(self, batch: int, seed: int = 0, world: int = 1, tokens: int | None = None) -> Buckets:
        """Of at most `batch` rows, and `tokens` tokens if others than its own are asked for, on each of so many processes."""
        most = tokens
        if most is None:
            assert self.batch_tokens is not None
            padded = -(-int(self.lengths.max()) // _MULTIPLE) * _MULTIPLE
            most = max(self.batch_tokens, padded)  # of rows to validate on one may be longer
        asked = batch, seed, world, most
        if self._buckets is None or self._buckets[0] != asked:
            self._buckets = asked, Buckets(self.lengths, most * world, seed, rows=batch * world)
        return self._buckets[1]

    @property
    def stored_bytes(self) -> int:
        return sum(column.nbytes for column in self._stored.values())

    def read(self, rows: Tensor) -> Batch:
        return self.gather(self._stored, rows)

    def stored(self) -> dict[str, Tensor]:
        return dict(self._stored)

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> Batch:
        return self.padded(stored, rows, self._longest)

    def padded(self, stored: Mapping[str, Tensor], rows: Tensor, length: int) -> Batch:
        """Like `gather`, with x of `length` tokens: that of a plan, or any that no row of these is longer than."""
        tokens = stored["tokens"]
        start, lengths = stored["start"].index_select(0, rows).unsqueeze(1), stored["length"].index_select(0, rows)
        places = torch.arange(length + 1, device=rows.device)
        taken = tokens.take((start + places).clamp_(max=len(tokens) - 1))
        inside = places < lengths.unsqueeze(1)
        wide = widen(taken)
        x = torch.where(inside, wide, self._pad)[:, :-1].contiguous()
        if "y" in stored:
            return {"x": x, "length": lengths, "y": stored["y"].index_select(0, rows)}
        return {"x": x, "length": lengths, "y": torch.where(inside, wide, IGNORED)[:, 1:].contiguous()}

    def fingerprint(self) -> str:
        tokens = "" if self.batch_tokens is None else f"-{self.batch_tokens}"
        return f"{hash_tensors(self._stored)}-{self._pad}{tokens}"


def sequences(
    rows: Any,
    y: Any = None,
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    field: str = "text",
    label: str | None = None,
    vocabulary: int | None = None,
    classes: int | None = None,
    pad: int = 0,
    tokens: int | None = None,
    holdout: float = 0.0,
    validation: Any = None,
    draw: str | Any = "shuffle",
    seed: int = 0,
    on_bad: str = "error",
) -> Data:
    """Rows of token ids as a list of sequences; or files of JSON lines whose `field` holds ids, or text.

    Text is encoded by the `tokenizer`, or as its bytes. With `tokens`, training batches are of rows of like length, as many as
    that many tokens allow, padding included; without, every row is padded to the longest. y is one label or number a row, in
    files the field `label`; without it the target of each token is the next one. `holdout` sets a share of the rows aside, the
    same ones in whatever order they come; `validation` is other rows, files, or a pair (rows, y).
    """
    if holdout and validation is not None:
        raise DataError("holdout and validation are two ways to say the same: give one of them")
    bad = Bad(on_bad)
    reader = _Reader(field, label, None if tokenizer is None else Tokenizer.load(Path(tokenizer)), bad)
    train = reader.read(rows, y, "")
    held = None
    if validation is not None:
        others, theirs = validation if isinstance(validation, tuple) and len(validation) == 2 else (validation, None)
        held = reader.read(others, theirs, "validation ")
        if (held.y is None) != (train.y is None):
            raise DataError("y must be given for the rows to train on and for validation, or for neither")
    if holdout:
        taken = held_out(hash_strings([np.asarray(ids, "<i8").tobytes() for ids in train.rows], seed), holdout)
        train, held = train.select(np.flatnonzero(~taken)), train.select(np.flatnonzero(taken))
    both = [train] if held is None else [train, held]
    ids = [Part(part.name, part.flat()) for part in both]
    if reader.text and reader.tokenizer is None:
        vocabulary = max(vocabulary or 0, 256)
    if reader.tokenizer is not None:
        check_vocabulary(ids, reader.tokenizer.vocabulary, f" of the tokenizer {reader.tokenizer.path.name}")
        vocabulary = reader.tokenizer.allows(vocabulary)
    vocabulary = check_vocabulary(ids, vocabulary)
    if not 0 <= pad < vocabulary:
        raise DataError(f"pad is a token id, 0 to {vocabulary - 1}, got {pad}")
    if tokens is not None:
        if tokens != int(tokens) or tokens < 1:
            raise DataError(f"tokens is a number of tokens, that of a batch, 1 or more; got {tokens!r}")
        tokens = int(tokens)
        _check_lengths(train.lengths(), tokens, _MULTIPLE)
    names: list[str] = []
    targets = _targets([part.y for part in both], names)
    labelled = [{} if target is None else {"y": target} for target in targets]
    count = check_labels(labelled[0], labelled[1] if held is not None else None, classes, names)
    longest = max(int(part.lengths().max()) for part in both)
    if targets[0] is None and int(train.lengths().max()) == 1:
        raise DataError("every row has one token, and none after it to learn: give rows of more tokens, or a label")
    if tokens is not None:
        longest = -(-longest // _MULTIPLE) * _MULTIPLE  # what a plan may pad to
    sources = [
        SequenceSource(
            as_tensor(Stream([part], vocabulary).slice(0, len(part))),
            torch.from_numpy(read.lengths()),
            target,
            pad,
            longest=longest,
            batch_tokens=tokens,
        )
        for part, read, target in zip(ids, both, targets, strict=True)
    ]
    return Data(
        train=sources[0],
        validation=None if held is None else sources[1],
        notes=tuple(said for said in [bad.summary()] if said),
        draw=draw if isinstance(draw, str) else to_tensor(draw, "draw"),
        classes=count,
        vocabulary=vocabulary,
        labels=tuple(names) or None,
    )


@dataclass(frozen=True)
class _Rows:
    name: str
    rows: list[Array]
    y: Array | None

    def select(self, kept: Array) -> _Rows:
        return _Rows(self.name, [self.rows[row] for row in kept], None if self.y is None else self.y[kept])

    def lengths(self) -> Array:
        return np.fromiter(map(len, self.rows), np.int64, len(self.rows))

    def flat(self) -> Array:
        return np.concatenate(self.rows)


class _Reader:
    def __init__(self, field: str, label: str | None, tokenizer: Tokenizer | None, bad: Bad) -> None:
        self.tokenizer = tokenizer
        self.text = False  # whether any row came as text
        self._field, self._label, self._bad = field, label, bad

    def read(self, given: Any, y: Any, part: str) -> _Rows:
        paths = [given] if isinstance(given, str | os.PathLike) else given
        if isinstance(paths, Sequence) and paths and all(isinstance(path, str | os.PathLike) for path in paths):
            if y is not None:
                raise DataError(f"{part}y comes with the files: name its field with label")
            rows, found = self._from_files(find_files(paths))
            targets = np.asarray(found) if self._label is not None else None
            name = f"{part}{paths[0]}"
        else:
            rows, kept = self._from_lists(given, part)
            targets = None if y is None else np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
            if targets is not None and len(targets) != len(given):
                raise DataError(f"{part}y has {len(targets)} rows for {len(given)} sequences; give one a sequence")
            targets = None if targets is None else targets[kept]
            name = f"{part}rows"
        if not rows:
            raise DataError(
                f"{part}data is empty: there are no rows in {given if isinstance(given, str) else 'what was given'}"
            )
        return _Rows(name, rows, targets)

    def _from_lists(self, given: Any, part: str) -> tuple[list[Array], list[int]]:
        rows, kept = [], []
        for number, row in enumerate(given):
            ids, wrong = _ids(row)
            if wrong:
                self._bad.found(f"{part}row {number}", wrong)
            else:
                rows.append(ids)
                kept.append(number)
        return rows, kept

    def _from_files(self, files: Sequence[Path]) -> tuple[list[Array], list[Any]]:
        rows: list[Array] = []
        labels: list[Any] = []
        for path in files:
            if kind_of(path)[0] != "lines":
                raise DataError(f"{path}: sequences are read from JSON lines, .jsonl or .ndjson, packed or not")
            for where, row in json_rows(path, self._bad):
                ids, wrong = self._row(row)
                if wrong is None and self._label is not None:
                    wrong = _wrong_label(row, self._label)
                if wrong:
                    self._bad.found(where, wrong)
                else:
                    rows.append(ids)
                    labels.append(row[self._label] if self._label is not None else None)
        return rows, labels

    def _row(self, row: Mapping[str, Any]) -> tuple[Array, str | None]:
        if isinstance(row.get(self._field), list):
            return _ids(row[self._field])
        text, wrong = text_field(row, self._field)
        if wrong:
            return np.empty(0, np.int64), wrong
        self.text = True
        encoded = list(text.encode()) if self.tokenizer is None else self.tokenizer.encode([text])[0]
        return _ids(encoded)


def _ids(row: Any) -> tuple[Array, str | None]:
    """A row as int64, and what is wrong with it."""
    try:
        ids = np.asarray(row.detach().cpu() if isinstance(row, Tensor) else row)
    except ValueError as error:
        return np.empty(0, np.int64), f"not a sequence of token ids ({error})"
    if ids.size == 0:
        return np.empty(0, np.int64), "no tokens in it: every row needs 1 or more"
    if ids.ndim != 1 or ids.dtype.kind not in "ui":
        return np.empty(0, np.int64), f"expected a sequence of token ids, got {ids.dtype} of shape {list(ids.shape)}"
    return ids.astype(np.int64), None


def _wrong_label(row: Mapping[str, Any], label: str) -> str | None:
    if label not in row:
        return f"no field {label!r}; it has {', '.join(map(str, row))}: set label to the one that holds the target"
    if not isinstance(row[label], str | int | float):
        return f"field {label!r} is of type {type(row[label]).__name__}, expected a label or a number"
    return None


def _targets(given: Sequence[Array | None], names: list[str]) -> list[Tensor | None]:
    """Words become their place among the sorted words of the training rows, which `names` collects; whole numbers int64."""
    if given[0] is None or not any(targets is not None and targets.dtype.kind in "US" for targets in given):
        tensors = [None if targets is None else to_tensor(targets, "y") for targets in given]
        return [tensor if tensor is None or tensor.is_floating_point() else tensor.to(torch.int64) for tensor in tensors]
    names += sorted({str(word) for word in given[0]})
    place = {word: number for number, word in enumerate(names)}
    found: list[Tensor | None] = []
    for targets in given:
        words = [] if targets is None else [str(word) for word in targets]
        if unseen := [word for word in words if word not in place]:
            row = words.index(unseen[0])
            raise DataError(f"validation has the label {unseen[0]!r} in row {row}, which no training row has")
        found.append(torch.tensor([place[word] for word in words]))
    return found
