"""The host parts of text and sequences: text to token ids, checked against the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.fitted.host import RawInput
from flatout.data.fitted.tensors import check_ids, to_tensor
from flatout.data.fitted.tokenizer import Tokenizer
from flatout.data.source import Batch

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TextCode:
    """Text to ids: by places in `alphabet`, by bytes, or by a tokenizer; without any of them, only ids are accepted."""

    vocabulary: int
    alphabet: str | None = None
    in_bytes: bool = False
    tokenizer: Tokenizer | None = None

    @property
    def takes_text(self) -> bool:
        return self.alphabet is not None or self.in_bytes or self.tokenizer is not None

    def encode(self, texts: Sequence[str]) -> list[Array]:
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(f"row {row}: expected text, as in the rows before it; got {type(text).__name__}")
        if self.tokenizer is not None:
            return [np.array(ids, np.int64) for ids in self.tokenizer.encode(texts)]
        if self.in_bytes:
            return [np.frombuffer(text.encode(), np.uint8).astype(np.int64) for text in texts]
        if self.alphabet is None:
            raise DataError("the model was trained on token ids, and no tokenizer came with them: give ids, not text")
        return [self._places_of(text, row) for row, text in enumerate(texts)]

    def _places_of(self, text: str, row: int) -> Array:
        try:
            return np.array([self._places[letter] for letter in text], np.int64)
        except KeyError as error:
            strange = error.args[0]
            place = text.index(strange)
            raise DataError(f"row {row}: the training text has no {strange!r} (character {place})") from None

    @cached_property
    def _places(self) -> dict[str, int]:
        return {letter: place for place, letter in enumerate(self.alphabet or "")}

    def to_json(self) -> dict[str, Any]:
        return {
            "vocabulary": self.vocabulary,
            "alphabet": self.alphabet,
            "in_bytes": self.in_bytes,
            "tokenizer": None if self.tokenizer is None else self.tokenizer.to_json(),
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> TextCode:
        known = written["tokenizer"]
        tokenizer = None if known is None else Tokenizer.from_json(known)
        return cls(written["vocabulary"], written["alphabet"], written["in_bytes"], tokenizer)


@dataclass(frozen=True)
class TextHost:
    """Windows of a stream. `tokens`: its files hold ids; `boundaries`: how documents are separated."""

    code: TextCode
    window: int
    tokens: bool = False
    boundaries: str = "none"

    kind: ClassVar[str] = "text"
    class_names: ClassVar[None] = None

    @property
    def inputs(self) -> tuple[RawInput, ...]:
        ids = RawInput("x", "tokens", "int64", (self.window,))
        return (RawInput("text", "text"),) if self.code.takes_text else (ids,)

    def rows(self, raw: Any) -> Batch:
        """Texts, or ids [rows, length]: all rows of one length, at most a window. Or {"text": texts}, {"x": ids}."""
        given, more = _apart(raw, ("documents", "positions", "y"))
        if _is_text(given):
            rows = self.code.encode([given] if isinstance(given, str) else given)
            for row, ids in enumerate(rows):
                if len(ids) != len(rows[0]):
                    came = f"row {row} has {len(ids)} tokens and row 0 has {len(rows[0])}"
                    raise DataError(f"{came}: texts of one call need one length")
            given = np.stack(rows)
        x = _checked(given, self.code.vocabulary)
        if x.shape[1] > self.window:
            raise DataError(f"a row of x is {x.shape[1]} tokens, and the model was trained on {self.window} at most")
        if self.boundaries == "attention" and "documents" not in more:  # each row is a document
            places = torch.arange(x.shape[1], device=x.device).expand_as(x).contiguous()
            more = {"documents": torch.zeros_like(x), "positions": places, **more}
        return {"x": x, **more}

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code.to_json(), "window": self.window, "tokens": self.tokens, "boundaries": self.boundaries}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> TextHost:
        return cls(TextCode.from_json(written["code"]), written["window"], written["tokens"], written["boundaries"])


@dataclass(frozen=True)
class SequenceHost:
    """Rows of up to `longest` tokens, padded with `pad`."""

    code: TextCode
    longest: int
    pad: int = 0
    class_names: tuple[str, ...] | None = None

    kind: ClassVar[str] = "sequences"

    @property
    def inputs(self) -> tuple[RawInput, ...]:
        ids = RawInput("x", "tokens", "int64", (None,))
        return (RawInput("text", "text"),) if self.code.takes_text else (ids,)

    def rows(self, raw: Any) -> Batch:
        """A list of texts, or of rows of ids; or padded ids [rows, length]."""
        given, more = _apart(raw, ("length", "y"))
        if isinstance(given, Tensor | np.ndarray) and given.ndim == 2:
            return {"x": _checked(given, self.code.vocabulary), **more}
        rows = self.ids(given)
        lengths = np.array([len(ids) for ids in rows], np.int64)
        if lengths.max() > self.longest:
            row = int(lengths.argmax())
            raise DataError(
                f"a row of x is {lengths[row]} tokens (row {row}), and the model was trained on {self.longest} at most"
            )
        x = np.full((len(rows), self.longest), self.pad, np.int64)
        for line, ids in zip(x, rows, strict=True):
            line[: len(ids)] = ids
        return {**more, "x": torch.from_numpy(x), "length": torch.from_numpy(lengths)}

    def ids(self, given: Any) -> list[Array]:
        """Each row as int64, of its own length."""
        if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray | Tensor):
            raise DataError(f"expected a list of rows, each of token ids or text; got {type(given).__name__}")
        if not len(given):
            raise DataError("the data has no rows")
        rows = self.code.encode(list(given)) if isinstance(given[0], str) else list(given)
        found = []
        for number, row in enumerate(rows):
            ids, wrong = row_ids(row)
            if wrong:
                raise DataError(f"row {number}: {wrong}")
            if ids.min() < 0 or ids.max() >= self.code.vocabulary:
                place = int(((ids < 0) | (ids >= self.code.vocabulary)).argmax())
                most = self.code.vocabulary - 1
                raise DataError(f"row {number}, token {place}: token ids are 0 to {most}, got {ids[place]}")
            found.append(ids)
        return found

    def to_json(self) -> dict[str, Any]:
        names = None if self.class_names is None else list(self.class_names)
        return {"code": self.code.to_json(), "longest": self.longest, "pad": self.pad, "class_names": names}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> SequenceHost:
        names = None if written["class_names"] is None else tuple(written["class_names"])
        return cls(TextCode.from_json(written["code"]), written["longest"], written["pad"], names)


def row_ids(row: Any) -> tuple[Array, str | None]:
    """A row as int64, and an error message or None."""
    try:
        ids = np.asarray(row.detach().cpu() if isinstance(row, Tensor) else row)
    except ValueError as error:
        return np.empty(0, np.int64), f"not a sequence of token ids ({error})"
    if ids.size == 0:
        return np.empty(0, np.int64), "no tokens in it: every row needs 1 or more"
    if ids.ndim != 1 or ids.dtype.kind not in "ui":
        return np.empty(0, np.int64), f"expected a sequence of token ids, got {ids.dtype} of shape {list(ids.shape)}"
    return ids.astype(np.int64), None


def _apart(raw: Any, others: Sequence[str]) -> tuple[Any, Batch]:
    """Text or ids, and the other columns."""
    if not isinstance(raw, Mapping):
        return raw, {}
    main = next((name for name in ("x", "text") if name in raw), None)
    if main is None:
        raise DataError(f"expected token ids as x, or text, by name; got {', '.join(map(str, raw)) or 'nothing'}")
    return raw[main], {name: to_tensor(raw[name], name) for name in others if name in raw}


def _is_text(given: Any) -> bool:
    return isinstance(given, str) or (isinstance(given, Sequence) and len(given) > 0 and isinstance(given[0], str))


def _checked(given: Any, vocabulary: int) -> Tensor:
    x = given if isinstance(given, Tensor) else to_tensor(given, "x")
    if x.dim() != 2 or not x.numel():
        raise DataError(f"expected token ids as [rows, length], got {list(x.shape)}")
    check_ids(x, vocabulary, "x")
    return x.to(torch.int64)
