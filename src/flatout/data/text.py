"""Data from text: one long stream of tokens, cut into windows. y is x one token further on."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.data import Data
from flatout.data.source import Batch, Column, Source, hash_tensors
from flatout.data.tokens import Paths, by_alphabet, check_vocabulary, find_files, narrow, read_codes

ENCODINGS = ("chars", "bytes", "tokens")


class TextSource(Source):
    """Row r is tokens[r * stride : r * stride + window + 1], cut on the device out of the stream that is stored there."""

    def __init__(self, tokens: Tensor, window: int, stride: int) -> None:
        """`tokens` as `narrow` makes them."""
        self._tokens = tokens
        self._window, self._stride = window, stride

    @property
    def schema(self) -> dict[str, Column]:
        column = Column(torch.int64, (self._window,))
        return {"x": column, "y": column}

    def __len__(self) -> int:
        return (len(self._tokens) - self._window - 1) // self._stride + 1

    @property
    def tokens_per_row(self) -> int:
        return self._window

    @property
    def stored_bytes(self) -> int:
        return self._tokens.numel() * self._tokens.element_size()

    def read(self, rows: Tensor) -> Batch:
        return self.gather(self.stored(), rows)

    def stored(self) -> dict[str, Tensor]:
        return {"tokens": self._tokens}

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> Batch:
        windows = stored["tokens"].unfold(0, self._window + 1, self._stride).index_select(0, rows)
        return {"x": _widen(windows[:, :-1]), "y": _widen(windows[:, 1:])}

    def fingerprint(self) -> str:
        return f"{hash_tensors(self.stored())}-{self._window}-{self._stride}"


def text(
    paths: Paths,
    *,
    window: int,
    encoding: str = "chars",
    holdout: float = 0.1,
    validation: Paths | None = None,
    dtype: str = "uint16",
    vocabulary: int | None = None,
    stride: int | None = None,
    draw: str | Tensor = "shuffle",
) -> Data:
    """Files, globs, or "module:NAME": the source files of an installed Python module, sorted, end to end.

    `encoding="tokens"` reads files of raw token ids of type `dtype`. The last `holdout` of the stream is for validation,
    unless `validation` names other files. Windows start every `stride` tokens, by default every `window`.
    """
    if encoding not in ENCODINGS:
        raise DataError(f"encoding is 'chars', 'bytes' or 'tokens', got {encoding!r}")
    if window < 1 or (stride is not None and stride < 1):
        raise DataError(f"window and stride are 1 token or more, got window={window}, stride={stride}")
    if not 0 <= holdout < 1:
        raise DataError(f"holdout is the last share of the text, from 0 to below 1, got {holdout}")
    train = read_codes(find_files(paths), encoding, dtype)
    held = None if validation is None else read_codes(find_files(validation), encoding, dtype)
    alphabet = None
    if encoding == "chars":
        alphabet, train, held = by_alphabet(train, held)
        vocabulary = len(alphabet)
    elif encoding == "bytes":
        vocabulary = 256
    vocabulary = check_vocabulary([train] if held is None else [train, held], vocabulary)
    tokens = narrow(train, vocabulary)
    if held is not None:
        tail = narrow(held, vocabulary)
    else:
        cut = len(tokens) - int(len(tokens) * holdout)
        tokens, tail = tokens[:cut].clone(), tokens[cut:].clone()
    return Data(
        train=_windows(tokens, window, stride or window, "training"),
        validation=_windows(tail, window, window, "validation") if len(tail) else None,
        draw=draw,
        vocabulary=vocabulary,
        alphabet=alphabet,
    )


def _windows(tokens: Tensor, window: int, stride: int, part: str) -> TextSource:
    if len(tokens) < window + 1:
        need = f"window={window} needs {window + 1}: use a smaller window, or more text"
        raise DataError(f"the {part} text has {len(tokens)} tokens, and {need}")
    return TextSource(tokens, window, stride)


def _widen(tokens: Tensor) -> Tensor:
    wide = tokens.to(torch.int64)
    return wide.bitwise_and_(0xFFFF) if tokens.dtype == torch.int16 else wide
