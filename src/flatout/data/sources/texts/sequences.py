"""Sequences of token ids: from lists, or from JSON lines files with ids or text."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.checks import check_labels
from flatout.data.data import Data
from flatout.data.files.allowance import Allowance
from flatout.data.files.array_files import Array
from flatout.data.files.bad import Bad, OnBad
from flatout.data.fitted.array_rows import targets_of
from flatout.data.fitted.fitted import Fitted
from flatout.data.fitted.tensors import to_tensor
from flatout.data.fitted.token_rows import SequenceHost, TextCode, row_ids
from flatout.data.fitted.tokenizer import Tokenizer
from flatout.data.order.split import hash_strings, held_out
from flatout.data.sources.texts.buckets import MULTIPLE, check_lengths
from flatout.data.sources.texts.packing import TokenStream, as_tensor
from flatout.data.sources.texts.sequence_source import SequenceSource
from flatout.data.sources.texts.tokenizer import load_tokenizer
from flatout.data.sources.texts.tokens import TokenFile, check_vocabulary, find_files, json_rows, kind_of, text_field

_BYTES_PER_TOKEN = 16  # of a single row, and of all rows concatenated


def sequences(
    rows: Any,
    y: Any = None,
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    special_tokens: bool = False,
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
    """Rows of token ids as a list of sequences; or JSON lines files whose `field` has ids or text.

    Text is encoded by the `tokenizer`, or as bytes; `special_tokens`: with those that the tokenizer puts around a text. With
    `tokens`, training batches have rows of similar length and at most so many tokens with padding; without, every row is padded
    to the longest. y is one label or number a row, in files the field `label`; without it, the target of each token is the next
    one. `holdout` sets a share of the rows aside, the same ones in any order; `validation` is other rows, files, or a pair
    (rows, y).
    """
    if holdout and validation is not None:
        raise DataError("holdout and validation are two ways to get validation rows: give one of them")
    bad = Bad(OnBad(on_bad))
    reader = _Reader(field, label, None if tokenizer is None else load_tokenizer(Path(tokenizer), special_tokens), bad)
    train = reader.read(rows, y, "")
    held = None if validation is None else _validation(reader, validation, with_y=train.y is not None)
    if holdout:
        taken = held_out(hash_strings([np.asarray(ids, "<i8").tobytes() for ids in train.rows], seed), holdout)
        train, held = train.select(np.flatnonzero(~taken)), train.select(np.flatnonzero(taken))
    both = [train] if held is None else [train, held]
    ids = [TokenFile(part.name, part.flat()) for part in both]
    vocabulary = _vocabulary(ids, reader, vocabulary)
    if not 0 <= pad < vocabulary:
        raise DataError(f"pad is a token id, 0 to {vocabulary - 1}, got {pad}")
    if tokens is not None:
        tokens = _checked_tokens(tokens, train)
    names: list[str] = []
    targets = _targets([part.y for part in both], names)
    labelled = [{} if target is None else {"y": target} for target in targets]
    count = check_labels(labelled[0], labelled[1] if held is not None else None, classes, names)
    longest = max(int(part.lengths().max()) for part in both)
    if targets[0] is None and int(train.lengths().max()) == 1:
        raise DataError("every row has one token, and none after it to learn: give rows of more tokens, or a label")
    if tokens is not None:
        longest = -(-longest // MULTIPLE) * MULTIPLE  # the lengths that a plan may pad to
    sources = [
        SequenceSource(
            as_tensor(TokenStream([part], vocabulary).slice(0, len(part))),
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
        bad=(bad,),
        draw=draw if isinstance(draw, str) else to_tensor(draw, "draw"),
        classes=count,
        vocabulary=vocabulary,
        labels=tuple(names) or None,
        host=SequenceHost(
            TextCode(vocabulary, in_bytes=reader.text and reader.tokenizer is None, tokenizer=reader.tokenizer),
            longest,
            pad,
            tuple(names) or None,
        ),
        reading={"field": field, "label": label, "tokens": tokens, "on_bad": on_bad},
    )


def _validation(reader: _Reader, given: Any, *, with_y: bool) -> _Rows:
    others, theirs = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    held = reader.read(others, theirs, "validation ")
    if (held.y is not None) != with_y:
        raise DataError("y must be given for the rows to train on and for validation, or for neither")
    return held


def _vocabulary(ids: Sequence[TokenFile], reader: _Reader, told: int | None) -> int:
    if reader.text and reader.tokenizer is None:
        told = max(told or 0, 256)
    if reader.tokenizer is not None:
        check_vocabulary(ids, reader.tokenizer.vocabulary, f" of the tokenizer {reader.tokenizer.path.name}")
        told = reader.tokenizer.allows(told)
    return check_vocabulary(ids, told)


def _checked_tokens(tokens: Any, train: _Rows) -> int:
    if tokens != int(tokens) or tokens < 1:
        raise DataError(f"tokens is a number of tokens, that of a batch, 1 or more; got {tokens!r}")
    check_lengths(train.lengths(), int(tokens), MULTIPLE)
    return int(tokens)


def other_sequences(fitted: Fitted, given: Any, targets: bool) -> SequenceSource:
    """Other rows, from files or in memory, padded like the training rows. `targets`: with their label as y."""
    host, how = fitted.host, fitted.reading
    assert isinstance(host, SequenceHost)
    y = None
    if isinstance(given, str | os.PathLike):
        reader = _Reader(how["field"], how["label"] if targets else None, host.code.tokenizer, Bad(OnBad(how["on_bad"])))
        read = reader.read(given, None, "")
        check_vocabulary([TokenFile(read.name, read.flat())], host.code.vocabulary)
        if read.y is not None:
            names = host.class_names
            y = targets_of(read.y if names is None else read.y.astype(str), names or ())
    else:
        read = _Rows("rows", host.ids(given), None)
    lengths = torch.from_numpy(read.lengths())
    stream = TokenStream([TokenFile(read.name, read.flat())], host.code.vocabulary)
    longest = max(host.longest, int(lengths.max()))  # a longer row does not fit the model, and is reported
    tokens = as_tensor(stream.slice(0, len(stream)))
    return SequenceSource(tokens, lengths, y, host.pad, longest=longest, batch_tokens=how["tokens"])


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
        self.text = False  # whether any row is text
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
            ids, wrong = row_ids(row)
            if wrong:
                self._bad.found(f"{part}row {number}", wrong)
            else:
                rows.append(ids)
                kept.append(number)
        return rows, kept

    def _from_files(self, files: Sequence[Path]) -> tuple[list[Array], list[Any]]:
        rows: list[Array] = []
        labels: list[Any] = []
        room = Allowance()
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
                    room.take(_BYTES_PER_TOKEN * len(ids), str(path))
                    rows.append(ids)
                    labels.append(row[self._label] if self._label is not None else None)
        return rows, labels

    def _row(self, row: Mapping[str, Any]) -> tuple[Array, str | None]:
        if isinstance(row.get(self._field), list):
            return row_ids(row[self._field])
        text, wrong = text_field(row, self._field)
        if wrong:
            return np.empty(0, np.int64), wrong
        self.text = True
        encoded = list(text.encode()) if self.tokenizer is None else self.tokenizer.encode([text])[0]
        return row_ids(encoded)


def _wrong_label(row: Mapping[str, Any], label: str) -> str | None:
    if label not in row:
        return f"no field {label!r}; it has {', '.join(map(str, row))}: set label to the one that holds the target"
    if not isinstance(row[label], str | int | float):
        return f"field {label!r} is of type {type(row[label]).__name__}, expected a label or a number"
    if isinstance(row[label], float) and not math.isfinite(row[label]):
        return f"field {label!r} is {row[label]}, expected a label or a finite number"
    return None


def _targets(given: Sequence[Array | None], names: list[str]) -> list[Tensor | None]:
    """Words become their place among the sorted words of the training rows, which `names` collects; integers become int64."""
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
