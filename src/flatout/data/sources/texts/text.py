"""Data from text: one long stream of tokens, cut into windows. y is x shifted by one token."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError, did_you_mean
from flatout.data.data import Data
from flatout.data.files.array_files import Array
from flatout.data.files.bad import Bad, OnBad
from flatout.data.fitted.fitted import Fitted
from flatout.data.fitted.token_rows import TextCode, TextHost
from flatout.data.fitted.tokenizer import Tokenizer
from flatout.data.source import Batch, Column, Source, Transform, hash_tensors
from flatout.data.sources.texts import packing
from flatout.data.sources.texts.packing import BOUNDARIES, Split, TokenStream
from flatout.data.sources.texts.tokenizer import check_made_with, encoded, load_tokenizer
from flatout.data.sources.texts.tokens import (
    TOKEN_SUFFIXES,
    Paths,
    TokenFile,
    after_each,
    by_alphabet,
    byte_parts,
    char_parts,
    check_vocabulary,
    find_files,
    placed,
    read_sidecar,
    token_parts,
)

ENCODINGS = ("chars", "bytes", "tokens")


class TextSource(Source):
    """Row r is the window at r * stride: cut on the device out of the stored stream, or read from the stream."""

    def __init__(
        self, stream: TokenStream, window: int, stride: int, boundaries: str = "none", starts: Array | None = None
    ) -> None:
        """`starts` are the places where documents begin, the first at 0; not used if boundaries are "none"."""
        self._narrow = NarrowText(stream, window, stride, None if boundaries == "none" else starts)
        self._split = Split(boundaries)
        self._boundaries = boundaries
        self._window, self._stride = window, stride

    @property
    def schema(self) -> dict[str, Column]:
        return packing.columns(self._window, self._boundaries)

    def __len__(self) -> int:
        return len(self._narrow)

    @property
    def in_memory(self) -> bool:
        return True

    @property
    def tokens_per_row(self) -> float:
        return self._window

    @property
    def stored_bytes(self) -> int:
        return self._narrow.stored_bytes

    def read(self, rows: Tensor) -> Batch:
        batch = self._narrow.read(rows)
        marks = batch.get("seams")
        return packing.split(batch["tokens"], None if marks is None else marks.cumsum(1), self._boundaries)

    def compact(self) -> tuple[Source, tuple[Transform, ...]]:
        """The same rows as stored bytes, and the transform that makes columns of them on the device."""
        return self._narrow, (self._split,)

    def stored(self) -> dict[str, Tensor]:
        return self._narrow.stored()

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> Batch:
        length = self._window + 1
        windows = stored["tokens"].unfold(0, length, self._stride).index_select(0, rows)
        starts = stored.get("starts")
        documents = None if starts is None else packing.numbers(starts, rows * self._stride, length)
        return packing.split(windows, documents, self._boundaries)

    def fingerprint(self) -> str:
        return self._narrow.fingerprint() + ("" if self._boundaries == "none" else f"-{self._boundaries}")


class NarrowText(Source):
    """Windows of the stream, one token longer than a row: 2 bytes a token, where x and y take 16."""

    def __init__(self, stream: TokenStream, window: int, stride: int, starts: Array | None) -> None:
        self._stream, self._starts = stream, starts
        self._length, self._stride = window + 1, stride

    @property
    def schema(self) -> dict[str, Column]:
        tokens = {"tokens": Column(self._stream.dtype, (self._length,))}
        return tokens if self._starts is None else {**tokens, "seams": Column(torch.uint8, (self._length,))}

    def __len__(self) -> int:
        return (len(self._stream) - self._length) // self._stride + 1

    @property
    def in_memory(self) -> bool:
        """Large files are memory-mapped: reading them only copies."""
        return True

    @property
    def tokens_per_row(self) -> float:
        return self._length - 1

    @property
    def stored_bytes(self) -> int:
        return self._stream.nbytes + (0 if self._starts is None else self._starts.nbytes)

    def read(self, rows: Tensor) -> Batch:
        batch = {name: torch.empty((len(rows), *column.shape), dtype=column.dtype) for name, column in self.schema.items()}
        self.read_into(rows, batch)
        return batch

    def read_into(self, rows: Tensor, batch: Batch) -> None:
        begins = rows.numpy() * self._stride
        self._stream.windows(begins, self._length, packing.as_array(batch["tokens"]))
        if self._starts is not None:
            packing.seams(self._starts, begins, self._length, batch["seams"].numpy())

    def stored(self) -> dict[str, Tensor]:
        tokens = {"tokens": self._stream.tensor()}
        return tokens if self._starts is None else {**tokens, "starts": torch.from_numpy(self._starts)}

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> Batch:
        batch = {"tokens": stored["tokens"].unfold(0, self._length, self._stride).index_select(0, rows)}
        if "starts" in stored:
            documents = packing.numbers(stored["starts"], rows * self._stride, self._length)
            before = packing.numbers(stored["starts"], rows * self._stride - 1, 1)
            batch["seams"] = documents.diff(dim=1, prepend=before).to(torch.uint8)
        return batch

    def fingerprint(self) -> str:
        starts = "" if self._starts is None else "-" + hash_tensors({"starts": torch.from_numpy(self._starts)})
        return f"{self._stream.fingerprint()}-{self._length - 1}-{self._stride}{starts}"


def text(
    paths: Paths,
    *,
    window: int,
    encoding: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    field: str = "text",
    eot: str | int | None = "auto",
    boundaries: str = "none",
    holdout: float = 0.1,
    validation: Paths | None = None,
    dtype: str | None = None,
    vocabulary: int | None = None,
    stride: int | None = None,
    draw: str | Tensor = "shuffle",
    on_bad: str = "error",
    cache: str | os.PathLike[str] | None = None,
) -> Data:
    """Files, globs, or "module:NAME" (the source files of an installed Python module), sorted and concatenated.

    A text file is one document; in JSON lines (.jsonl), the `field` of each line is one; .gz, .xz and .zst are unpacked.
    `tokenizer` is a Hugging Face tokenizer.json: the text is encoded once and kept in the folder `cache`, with the token `eot`
    after each document ("auto": that of the tokenizer, None: nothing). `encoding` is "chars", "bytes", or "tokens" for files of
    raw token ids of type `dtype` (default uint16); by default .bin and .npy files are tokens, others are chars.

    The last `holdout` of the stream is for validation, unless `validation` names other files. Windows start every `stride`
    tokens, by default every `window`. `boundaries` keeps documents apart: "none", in the "loss", or also in the "attention".
    """
    _check(window, stride, holdout, boundaries)
    bad = Bad(OnBad(on_bad))
    files = find_files(paths)
    held_files = None if validation is None else find_files(validation)
    told, encoding = encoding, _encoding(encoding, tokenizer, [*files, *(held_files or [])])
    reading = _Reading(
        encoding=encoding,
        tokenizer=None if tokenizer is None else load_tokenizer(Path(tokenizer)),
        field=field,
        eot=eot,
        dtype=dtype,
        seams=boundaries != "none",
        bad=bad,
        cache=_cache(cache),
    )
    read = [reading.read(files)] if held_files is None else [reading.read(files), reading.read(held_files)]
    groups = [part.parts for part in read]
    alphabet = None
    if encoding == "chars":
        alphabet, groups = by_alphabet(groups)
        vocabulary = len(alphabet)
    elif encoding == "bytes":
        vocabulary = 256
    everything = [part for parts in groups for part in parts]
    if reading.tokenizer is not None:
        check_vocabulary(everything, reading.tokenizer.vocabulary, f" of the tokenizer {reading.tokenizer.path.name}")
        vocabulary = reading.tokenizer.allows(vocabulary)
    else:
        vocabulary = check_vocabulary(everything, vocabulary)
    streams = [TokenStream(parts, vocabulary) for parts in groups]
    train, starts = streams[0], read[0].starts
    cut = len(train) if held_files is not None else len(train) - int(len(train) * holdout)
    rows = _Rows(window, boundaries)
    held = None
    if held_files is not None:
        held = rows.of(streams[1], read[1].starts, (0, len(streams[1])), window, "validation", held_files)
    elif cut < len(train):
        held = rows.of(train, starts, (cut, len(train)), window, "validation", files)
    return Data(
        train=rows.of(train, starts, (0, cut), stride or window, "training", files),
        validation=held,
        inputs=("x", "documents", "positions") if boundaries == "attention" else ("x",),
        notes=tuple(said for said in [bad.summary()] if said),
        bad=(bad,),
        draw=draw,
        vocabulary=vocabulary,
        alphabet=alphabet,
        host=TextHost(
            TextCode(vocabulary, alphabet, encoding == "bytes", reading.tokenizer), window, encoding == "tokens", boundaries
        ),
        reading={"encoding": told, "field": field, "eot": eot, "dtype": dtype, "on_bad": on_bad},
    )


def other_text(fitted: Fitted, paths: Paths, cache: Path | None) -> TextSource:
    """Windows of other files, with the ids of the training text."""
    host = fitted.host
    assert isinstance(host, TextHost)
    code, how = host.code, fitted.reading
    files = find_files(paths)
    encoding = _encoding(how["encoding"], code.tokenizer, files)
    if (encoding == "tokens") != host.tokens:
        kinds = ("token ids", "text") if encoding == "tokens" else ("text", "token ids")
        raise DataError(f"{files[0]} holds {kinds[0]}; the model was trained on files of {kinds[1]}")
    reading = _Reading(
        encoding=encoding,
        tokenizer=code.tokenizer,
        field=how["field"],
        eot=how["eot"],
        dtype=how["dtype"],
        seams=host.boundaries != "none",
        bad=Bad(OnBad(how["on_bad"])),
        cache=_cache(cache),
    )
    read = reading.read(files)
    parts = read.parts if code.alphabet is None else placed(read.parts, code.alphabet, str(files[0]))
    check_vocabulary(parts, code.vocabulary)
    stream = TokenStream(parts, code.vocabulary)
    rows = _Rows(host.window, host.boundaries)
    return rows.of(stream, read.starts, (0, len(stream)), host.window, "other", files)


def _cache(folder: str | os.PathLike[str] | None) -> Path:
    return Path.home() / ".cache" / "flatout" if folder is None else Path(folder)


@dataclass(frozen=True)
class _Read:
    parts: list[TokenFile]
    starts: Array | None


@dataclass(frozen=True)
class _Reading:
    """Files to token ids and the places where documents begin."""

    encoding: str
    tokenizer: Tokenizer | None
    field: str
    eot: str | int | None
    dtype: str | None
    seams: bool
    bad: Bad
    cache: Path

    def read(self, files: Sequence[Path]) -> _Read:
        if self.encoding == "tokens":
            return self._tokens(files)
        if self.encoding == "tokenizer":
            assert self.tokenizer is not None
            part, starts = encoded(files, self.tokenizer, self.field, self.eot, self.bad, self.cache)
            return _Read([part], starts)
        parts, lengths = (char_parts if self.encoding == "chars" else byte_parts)(files, self.field, self.bad)
        return _Read(parts, packing.document_starts(lengths))

    def _tokens(self, files: Sequence[Path]) -> _Read:
        known = [side for path in files if path.suffix != ".npy" and (side := read_sidecar(path))]
        parts = token_parts(files, self.dtype)
        if self.tokenizer is not None:
            for path in files:
                check_made_with(self.tokenizer, path)
        if not self.seams:
            return _Read(parts, None)
        eot = self.eot if isinstance(self.eot, int) else None
        if eot is None and self.tokenizer is not None:
            eot = self.tokenizer.end_of_text(self.eot)
        if eot is None and known:
            eot = known[0].eot
        if eot is None:
            raise DataError(f"boundaries: where documents end in {files[0]} is not known: set eot to the id of the token there")
        ends = after_each(parts, eot)
        # each file also begins a document, whether or not the one before ended with eot
        firsts = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
        starts = np.union1d(ends, firsts)
        return _Read(parts, starts[starts < firsts[-1]])


@dataclass(frozen=True)
class _Rows:
    window: int
    boundaries: str

    def of(
        self, stream: TokenStream, starts: Array | None, span: tuple[int, int], stride: int, part: str, files: Sequence[Path]
    ) -> TextSource:
        tokens = span[1] - span[0]
        if not tokens:
            others = f" and {len(files) - 1} others" if len(files) > 1 else ""
            raise DataError(f"the {part} text is empty: there is nothing to read in {files[0]}{others}")
        if tokens < self.window + 1:
            need = f"window={self.window} needs {self.window + 1}: use a smaller window, or more text"
            raise DataError(f"the {part} text has {tokens} tokens, and {need}")
        own = None if starts is None or self.boundaries == "none" else packing.cut_starts(starts, *span)
        return TextSource(stream.cut(*span), self.window, stride, self.boundaries, own)


def _check(window: int, stride: int | None, holdout: float, boundaries: str) -> None:
    if window < 1 or (stride is not None and stride < 1):
        raise DataError(f"window and stride are 1 token or more, got window={window}, stride={stride}")
    if not 0 <= holdout < 1:
        raise DataError(f"holdout is the last share of the text, from 0 to below 1, got {holdout}")
    if boundaries not in BOUNDARIES:
        near = did_you_mean(str(boundaries), BOUNDARIES)
        raise DataError(f"boundaries is 'none', 'loss' or 'attention', got {boundaries!r}; {near}")


def _encoding(told: str | None, tokenizer: object, files: Sequence[Path]) -> str:
    if told is not None:
        if told not in ENCODINGS:
            raise DataError(f"encoding is 'chars', 'bytes' or 'tokens', got {told!r}")
        if tokenizer is not None and told != "tokens":
            raise DataError(f"tokenizer and encoding={told!r} both say how to encode text: give one of them")
        return told
    tokens = [path.suffix.lower() in TOKEN_SUFFIXES for path in files]
    if all(tokens):
        return "tokens"
    if any(tokens):
        text_file, token_file = files[tokens.index(False)], files[tokens.index(True)]
        raise DataError(f"{token_file} holds tokens and {text_file} text: give files of one kind, or set encoding")
    return "chars" if tokenizer is None else "tokenizer"
