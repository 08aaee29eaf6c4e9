"""Documents packed end to end: a stream of token ids, windows of it, and the boundaries between documents.

A window has one token more than a row: x is all but its last, y all but its first. At a boundary the target is the first token
of an unrelated document. `boundaries` says what to do about that:

    none        nothing: the model learns where documents begin
    loss        no loss there: y is IGNORED
    attention   no loss there, and two more columns so that a model can keep documents apart: `documents`, the number of each
                token's document within the row, and `positions`, which start again with each document
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.data.files.array_files import Array
from flatout.data.order.keyed import Keys
from flatout.data.source import HASH_WHOLE_BYTES, PIECE_BYTES, PIECES, Batch, Column, Schema
from flatout.data.sources.texts.tokens import TokenFile

BOUNDARIES = ("none", "loss", "attention")
IGNORED = -100


class TokenStream:
    """Parts end to end, in as few bytes a token as the vocabulary allows; windows and slices are copies.

    Two bytes are uint16 here, and int16 with the same bits as tensors, since torch can't always index uint16.
    """

    def __init__(self, parts: Sequence[TokenFile], vocabulary: int) -> None:
        kind = np.uint8 if vocabulary <= 1 << 8 else np.uint16 if vocabulary <= 1 << 16 else np.int32
        self.kind: np.dtype[Any] = np.dtype(kind)
        self.vocabulary = vocabulary
        self._parts = _joined(parts, self.kind)
        self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its tensors."""
        return {1: torch.uint8, 2: torch.int16, 4: torch.int32}[self.kind.itemsize]

    @property
    def nbytes(self) -> int:
        return len(self) * self.kind.itemsize

    def cut(self, start: int, stop: int) -> TokenStream:
        """The tokens from `start` to `stop`, not copied."""
        firsts = self._ends - [len(part) for part in self._parts]
        bounds = [(max(start - first, 0), min(stop, end) - first) for first, end in zip(firsts, self._ends, strict=True)]
        kept = [part.cut(int(a), int(b)) for part, (a, b) in zip(self._parts, bounds, strict=True) if a < b]
        return TokenStream(kept, self.vocabulary)

    def windows(self, begins: Array, length: int, into: Array | None = None) -> Array:
        """[len(begins), length]: the tokens from each place on, written to an array of the caller if given."""
        found = np.empty((len(begins), length), self.kind) if into is None else into
        first = np.searchsorted(self._ends, begins, side="right")
        last = np.searchsorted(self._ends, begins + (length - 1), side="right")
        inside = first == last
        for number in np.unique(first[inside]):
            part = self._parts[number]
            here: Any = inside & (first == number)
            here = slice(None) if here.all() else here
            local = begins[here] - (self._ends[number] - len(part))
            part.expect(local, length)
            found[here] = np.lib.stride_tricks.sliding_window_view(part.ids, length)[local]
        for row in np.flatnonzero(~inside):
            found[row] = self.slice(int(begins[row]), int(begins[row]) + length)
        return found

    def slice(self, start: int, stop: int) -> Array:
        """A copy of the tokens from `start` to `stop`."""
        found = np.empty(max(stop - start, 0), self.kind)
        number = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            part, end = self._parts[number], int(self._ends[number])
            ids = part.ids[start - end + len(part) : min(stop, end) - end + len(part)]
            found[len(found) - (stop - start) :][: len(ids)] = ids
            start += len(ids)
            number += 1
        return found

    def tensor(self) -> Tensor:
        """All tokens: the memory map itself if possible, otherwise a copy."""
        if len(self._parts) == 1 and self._parts[0].ids.dtype == self.kind:
            return as_tensor(self._parts[0].ids)
        return as_tensor(self.slice(0, len(self)))

    def fingerprint(self) -> str:
        """The result of `hash_tensors({"tokens": self.tensor()})`, without making the tensor."""
        digest = hashlib.blake2b(repr(("tokens", str(self.dtype), (len(self),))).encode(), digest_size=16)
        size = self.kind.itemsize
        if self.nbytes <= HASH_WHOLE_BYTES:
            digest.update(self.slice(0, len(self)).data)
            return digest.hexdigest()
        for piece in range(PIECES):
            start = (self.nbytes - PIECE_BYTES) * piece // (PIECES - 1)
            ids = self.slice(start // size, min(-(-(start + PIECE_BYTES) // size), len(self)))
            digest.update(ids.view(np.uint8)[start % size :][:PIECE_BYTES].data)
        return digest.hexdigest()


def _joined(parts: Sequence[TokenFile], kind: np.dtype[Any]) -> list[TokenFile]:
    """Joins neighbours in memory: a corpus of many small files is then as fast as one file."""
    joined: list[TokenFile] = []
    waiting: list[TokenFile] = []
    for part in [*parts, None]:
        if part is not None and part.pages is None:
            waiting += [part] if len(part) else []
            continue
        if waiting:
            one = len(waiting) == 1 and waiting[0].ids.dtype == kind
            ids = waiting[0].ids if one else np.concatenate([held.ids.astype(kind) for held in waiting])
            joined.append(TokenFile(waiting[0].name, ids, held=waiting[0].held))
            waiting = []
        if part is not None and len(part):
            joined.append(part)
    return joined


def as_tensor(ids: Array) -> Tensor:
    """The same memory as a tensor, uint16 as int16."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a memory map is read-only, and nobody writes to it
        return torch.from_numpy(ids.view(np.int16) if ids.dtype == np.uint16 else ids)


def as_array(tokens: Tensor) -> Array:
    """The inverse of `as_tensor`."""
    ids: Array = tokens.numpy()
    return ids.view(np.uint16) if tokens.dtype == torch.int16 else ids


def widen(tokens: Tensor) -> Tensor:
    """Narrow ids from `as_tensor` as int64."""
    wide = tokens.to(torch.int64)
    return wide.bitwise_and_(0xFFFF) if tokens.dtype == torch.int16 else wide


def document_starts(lengths: Sequence[int] | Array) -> Array:
    """Where each document begins in the stream; empty documents are left out."""
    sizes = np.asarray(lengths, np.int64)
    sizes = sizes[sizes > 0]
    return np.asarray(np.cumsum(sizes) - sizes, np.int64)


def cut_starts(starts: Array, start: int, stop: int) -> Array:
    """The starts of the stream from `start` to `stop`, which begins with a document or the rest of one."""
    inner = starts[np.searchsorted(starts, start, side="right") : np.searchsorted(starts, stop)] - start
    return np.concatenate([np.zeros(1, np.int64), inner]).astype(np.int64)


def seams(starts: Array, begins: Array, length: int, into: Array | None = None) -> Array:
    """uint8 [len(begins), length]: 1 where a document begins, for windows that are read on the host."""
    marks = np.empty((len(begins), length), np.uint8) if into is None else into
    marks.fill(0)
    first, last = np.searchsorted(starts, begins), np.searchsorted(starts, begins + length)
    counts = last - first
    rows = np.repeat(np.arange(len(begins)), counts)
    inside = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    marks[rows, starts[inside] - begins[rows]] = 1
    return marks


def numbers(starts: Tensor, begins: Tensor, length: int) -> Tensor:
    """int64 [len(begins), length]: the number of each token's document in the stream, on the device of `starts`."""
    places = begins.unsqueeze(1) + torch.arange(length, device=begins.device)
    return torch.searchsorted(starts, places, right=True)


def split(windows: Tensor, documents: Tensor | None, boundaries: str) -> Batch:
    """Windows [B, length + 1] of narrow ids to the columns of a batch; `documents` increases by 1 where one begins."""
    x, y = widen(windows[:, :-1]), widen(windows[:, 1:])
    if documents is None:
        return {"x": x, "y": y}
    begun = documents[:, 1:] != documents[:, :-1]
    y = y.masked_fill_(begun, IGNORED)
    if boundaries == "loss":
        return {"x": x, "y": y}
    places = torch.arange(x.shape[1], device=x.device)
    latest = torch.zeros_like(x)
    latest[:, 1:] = torch.where(begun[:, :-1], places[1:], 0)
    own = (documents[:, :-1] - documents[:, :1]).to(torch.int64)
    return {"x": x, "y": y, "documents": own, "positions": places - latest.cummax(1).values}


def columns(length: int, boundaries: str) -> dict[str, Column]:
    """The columns of `split`, for rows of `length` tokens."""
    names = ("x", "y", "documents", "positions") if boundaries == "attention" else ("x", "y")
    return {name: Column(torch.int64, (length,)) for name in names}


class Split:
    """The same on the device, for windows from the host: `tokens` and, if boundaries matter, `seams`."""

    def __init__(self, boundaries: str = "none") -> None:
        self._boundaries = boundaries

    def describe(self, schema: Schema) -> dict[str, Column]:
        rest = {name: column for name, column in schema.items() if name not in ("tokens", "seams")}
        return {**columns(schema["tokens"].shape[0] - 1, self._boundaries), **rest}

    def __call__(self, batch: Batch, keys: Keys) -> Batch:
        rest = dict(batch)
        windows, marks = rest.pop("tokens"), rest.pop("seams", None)
        documents = None if marks is None else marks.cumsum(1)
        return {**split(windows, documents, self._boundaries), **rest}

    def written(self) -> Any:
        return {"split": self._boundaries}
