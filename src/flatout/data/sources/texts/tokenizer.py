"""Text to token ids with a Hugging Face tokenizer (tokenizer.json): encoded once, kept in a folder, memory-mapped.

The folder is found by a hash of the tokenizer, the files and the options. It is written under another name and renamed when it
is complete, so killed or parallel builds leave nothing half-written.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from flatout.base.errors import DataError
from flatout.base.trust import private_cache
from flatout.data.cache.entries import hold
from flatout.data.files.array_files import Array
from flatout.data.files.bad import Bad
from flatout.data.files.places import open_regular
from flatout.data.fitted.tokenizer import Tokenizer, library
from flatout.data.sources.texts.packing import TokenStream, document_starts
from flatout.data.sources.texts.tokens import (
    Document,
    Sidecar,
    TokenFile,
    documents,
    kind_of,
    read_sidecar,
    token_parts,
    write_sidecar,
)

_FORMAT = 1
_PIECE_CHARS = 256 << 10
_LONGEST_WORD_CHARS = 16 << 20
_BATCH_CHARS, _BATCH_TEXTS = 2 << 20, 1024
_CUT_REGION, _CUT_CONTEXT, _CUTS = 16 << 10, 512, 8
_WHOLE_BYTES, _PIECES, _PIECE_BYTES = 32 << 20, 256, 64 << 10
_FORGOTTEN_S = 6 * 3600
_BEFORE_SPACE = re.compile(r"\w(?=\s)")


def load_tokenizer(path: Path, special: bool = False) -> Tokenizer:
    library(path.name)  # report a missing library before a missing file
    place = path / "tokenizer.json" if os.path.isdir(path) else path
    try:
        with open_regular(place) as file:
            content = file.read()
    except OSError as error:
        raise DataError(f"tokenizer: {place} can't be read ({error.strerror}); expected a tokenizer.json") from error
    return Tokenizer.parse(content, place, special)


def check_made_with(tokenizer: Tokenizer, path: Path) -> None:
    """Checks that a token file was made with this tokenizer, if it says so."""
    known = None if path.suffix == ".npy" else read_sidecar(path)
    if known is not None and known.tokenizer != tokenizer.digest:
        made = f"{known.tokenizer_name} ({known.tokenizer[:8]}, {known.vocabulary} tokens)"
        given = f"{tokenizer.path} ({tokenizer.digest[:8]}, {tokenizer.vocabulary} tokens)"
        raise DataError(f"{path} was made with the tokenizer {made}, not with {given}: give the one it was made with")


def encoded(
    files: Sequence[Path], tokenizer: Tokenizer, field: str, eot: str | int | None, bad: Bad, cache: Path
) -> tuple[TokenFile, Array]:
    """All documents of the files end to end, and where each begins; from the cache if possible."""
    end = tokenizer.end_of_text(eot)
    lines = field if any(kind_of(path)[0] == "lines" for path in files) else None
    contents = [[*kind_of(path), _content(path), _date(path)] for path in files]
    key = json.dumps([_FORMAT, tokenizer.digest, tokenizer.version, contents, lines, end, bad.policy])
    folder = private_cache(cache) / "tokens" / hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    kept = _open(folder, bad)
    if kept is not None:
        return kept
    aside = folder.with_name(f"{folder.name}.{os.getpid()}-{time.time_ns():x}.partial")
    try:
        _sweep(folder)
        held = hold(aside, make=True)
        _write(aside, documents(files, field, bad), tokenizer, end, bad)
        _put(aside, folder, lambda: _open(folder, Bad(bad.policy)) is not None)
    except OSError as error:
        place = f"{folder.parent} can't be written ({error.strerror or error})"
        raise DataError(f"the encoded text has no place: {place}; set cache to a folder with room") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    kept = _open(folder, Bad(bad.policy))
    if held is not None:
        held.close()
    if kept is None:
        raise DataError(f"the encoded text in {folder} was damaged or removed while it was written: run it again")
    return kept


def _content(path: Path) -> str:
    """A hash of a file; of a large one, of its size and of pieces spread evenly over it."""
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            digest.update(file.read())
            return digest.hexdigest()
        for piece in range(_PIECES):
            file.seek((size - _PIECE_BYTES) * piece // (_PIECES - 1))
            digest.update(file.read(_PIECE_BYTES))
    return digest.hexdigest()


def _date(path: Path) -> int:
    """If only pieces are hashed, the time of the last change shows edits between them."""
    status = path.stat()
    return status.st_mtime_ns if status.st_size > _WHOLE_BYTES else 0


def _write(folder: Path, found: Iterable[Document], tokenizer: Tokenizer, eot: int | None, bad: Bad) -> None:
    path = folder / "tokens.bin"
    kind = TokenStream([], tokenizer.vocabulary).kind
    lengths = array("q")
    length = largest = 0
    with path.open("wb") as file:
        for ids, last in _ids(_pieces(found, tokenizer), tokenizer):
            file.write(np.asarray(ids, kind).tobytes())
            length += len(ids)
            largest = max(largest, max(ids, default=0))
            if last and length:
                if eot is not None:
                    file.write(np.asarray([eot], kind).tobytes())
                    length, largest = length + 1, max(largest, eot)
                lengths.append(length)
                length = 0
        file.flush()
        os.fsync(file.fileno())
    np.save(folder / "starts.npy", document_starts(lengths))
    known = Sidecar(
        dtype=kind.name,
        count=sum(lengths),
        vocabulary=tokenizer.vocabulary,
        largest=largest,
        content="",
        tokenizer=tokenizer.digest,
        tokenizer_name=tokenizer.path.name,
        eot=eot,
        documents=len(lengths),
        bad=bad.count,
        bad_examples=tuple(bad.examples),
    )
    write_sidecar(path, replace(known, content=_checksum(folder, kind.name, tokenizer.vocabulary)))


def _checksum(folder: Path, dtype: str, vocabulary: int) -> str:
    stream = TokenStream(token_parts([folder / "tokens.bin"], dtype), vocabulary)
    return f"{stream.fingerprint()}-{_content(folder / 'starts.npy')}"


def _ids(pieces: Iterable[tuple[str, bool]], tokenizer: Tokenizer) -> Iterator[tuple[list[int], bool]]:
    """The ids of each piece, many at a time, and whether it is the last of its document."""
    texts: list[str] = []
    lasts: list[bool] = []
    chars = 0
    for text, last in pieces:
        texts.append(text)
        lasts.append(last)
        chars += len(text)
        if chars >= _BATCH_CHARS or len(texts) >= _BATCH_TEXTS:
            yield from zip(tokenizer.encode(texts), lasts, strict=True)
            texts, lasts, chars = [], [], 0
    yield from zip(tokenizer.encode(texts), lasts, strict=True)


def _pieces(found: Iterable[Document], tokenizer: Tokenizer) -> Iterator[tuple[str, bool]]:
    """Documents in pieces of bounded length, cut only where no token changes; the flag marks the end of a document."""
    for document in found:
        held, wanted = "", _PIECE_CHARS
        for chunk in document:
            held += chunk
            while len(held) >= wanted:
                place = _cut(held, wanted, tokenizer.encode)
                if not place:
                    wanted *= 2  # no good place here: the piece grows, which costs memory but changes no token
                    if wanted > _LONGEST_WORD_CHARS:
                        raise DataError(
                            f"the text has {len(held):,} characters without white space to cut it at ({held[:40]!r}...), "
                            f"the limit is {_LONGEST_WORD_CHARS:,}: is it text? encoding: bytes accepts any content"
                        )
                    continue
                yield held[:place], False
                held, wanted = held[place:], _PIECE_CHARS
        yield held, True


def _cut(held: str, end: int, encode: Callable[[Sequence[str]], list[list[int]]]) -> int:
    """A place before white space where both sides give the same tokens separately as together; 0 if there is none."""
    first = max(end - _CUT_REGION, end // 2)
    places = [match.end() for match in _BEFORE_SPACE.finditer(held, first, max(first, end - _CUT_CONTEXT))]
    for place in places[-_CUTS:]:
        left, right = held[max(place - _CUT_CONTEXT, 0) : place], held[place : place + _CUT_CONTEXT]
        whole, before, after = encode([left + right, left, right])
        if whole == before + after:
            return place
    return 0


def _open(folder: Path, bad: Bad) -> tuple[TokenFile, Array] | None:
    """The kept result, if it is intact; samples that were left out then are reported to `bad` again."""
    path = folder / "tokens.bin"
    held = hold(folder)  # for as long as its ids are used
    try:
        known = read_sidecar(path)
        if known is None or known.content != _checksum(folder, known.dtype, known.vocabulary):
            return None
        part = token_parts([path], known.dtype)[0]
        starts = np.load(folder / "starts.npy", allow_pickle=False)
    except (OSError, ValueError, DataError):
        return None
    for example in [*known.bad_examples, *[f"{folder}: kept without it"] * (known.bad - len(known.bad_examples))]:
        bad.found(*example.split(": ", 1))
    return replace(part, largest=known.largest, held=held), starts


def _put(aside: Path, folder: Path, whole: Callable[[], bool]) -> None:
    try:
        aside.rename(folder)
        return
    except OSError:
        if not folder.exists():
            raise
    if whole():
        return  # another process was first
    away = aside.with_name(aside.name + ".old")
    with suppress(OSError):
        folder.rename(away)
    shutil.rmtree(away, ignore_errors=True)
    with suppress(OSError):
        aside.rename(folder)


def _sweep(folder: Path) -> None:
    """Removes the remains of killed builds; a running build is younger."""
    for left in folder.parent.glob("*.partial*"):
        with suppress(OSError):
            if time.time() - max(place.stat().st_mtime for place in [left, *left.iterdir()]) > _FORGOTTEN_S:
                shutil.rmtree(left, ignore_errors=True)
