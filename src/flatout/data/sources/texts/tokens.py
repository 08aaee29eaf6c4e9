"""Files to text or to token ids: documents read piece by piece, characters, bytes, and files of ids.

Large files of ids are memory-mapped: only the parts in use are read.
"""

from __future__ import annotations

import codecs
import glob
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.base.units import show_bytes
from flatout.data.cache.entries import EntryInUse
from flatout.data.files import npy
from flatout.data.files.allowance import Allowance, TooLarge, allowed_bytes, too_large
from flatout.data.files.array_files import Array
from flatout.data.files.bad import Bad, OnBad
from flatout.data.files.damage import in_words, reading
from flatout.data.files.json_objects import parse_object
from flatout.data.files.lines import LONGEST_LINE_BYTES, line_too_long
from flatout.data.files.modules import module_files
from flatout.data.files.places import LocalFile, open_plain, open_regular, special_kind

TOKEN_TYPES = ("uint8", "uint16", "int32", "uint32", "int64")
TOKEN_SUFFIXES = (".bin", ".npy")
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Document = Iterable[str]
_CODE_POINTS = 0x110000
_PACKED = {".gz", ".bz2", ".xz", ".zst", ".lz4"}
_LINES = {".jsonl", ".ndjson"}
_MAP_BYTES = 32 << 20
_READ_BYTES = 1 << 20
_SCAN_TOKENS = 8 << 20
_WILL_NEED: int | None = getattr(mmap, "MADV_WILLNEED", None)
_BYTES_PER_CHARACTER = 12  # its code, the same among all documents, and its place in the alphabet
_BYTES_PER_BYTE = 2  # apart, and together


def find_files(paths: Paths) -> list[Path]:
    """All files that the paths name, in order; DataError names a path that matches nothing."""
    found: list[Path] = []
    for written in [paths] if isinstance(paths, str | os.PathLike) else paths:
        name = os.fspath(written)
        if name.startswith("module:"):
            found += module_files(name.removeprefix("module:"))
        elif os.path.isfile(name):
            found.append(Path(name))
        else:
            matches = [Path(match) for match in sorted(glob.glob(name, recursive=True)) if os.path.isfile(match)]
            special = special_kind(name)
            if special is not None:
                raise DataError(f"text: {name} is {special}, which may never end: copy it to a file")
            if not matches:
                what = "is a folder: write a glob such as 'folder/*.txt'" if os.path.isdir(name) else "matches no file"
                raise DataError(f"text: {name} {what}")
            found += matches
    if not found:
        raise DataError("text: no files were given")
    return found


# Documents of text


def kind_of(path: Path) -> tuple[str, str]:
    """The content ("lines" of JSON or "text"), and the compression by the name of the file (".gz" and the like, or "")."""
    packed = path.suffix.lower() if path.suffix.lower() in _PACKED else ""
    inner = path.with_suffix("") if packed else path
    return ("lines" if inner.suffix.lower() in _LINES else "text"), packed


def documents(files: Sequence[Path], field: str, bad: Bad) -> Iterator[Document]:
    """A text file is one document, given in pieces; a JSON lines file has one in the `field` of each line.

    Take each document whole before the next.
    """
    for path in files:
        if kind_of(path)[0] == "lines":
            yield from ([document] for document in _from_lines(path, field, bad))
        elif bad.policy == OnBad.ERROR or _readable(path, bad):
            yield _decoded(path, bad)


def _readable(path: Path, bad: Bad) -> bool:
    """Reads the whole file before any of it is used: no half of a bad file gets through."""
    before = bad.count
    for _ in _decoded(path, bad):
        pass
    return bad.count == before


def _decoded(path: Path, bad: Bad) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    for chunk, last in _marked(_chunks(path, bad)):
        done += len(chunk)
        try:
            piece = decoder.decode(chunk, last)
        except UnicodeDecodeError as error:
            place = done - len(error.object) + error.start
            bad.found(str(path), f"not UTF-8 text (byte {place}): use encoding='bytes', or 'tokens' for token ids")
            return
        if piece:
            yield piece


def _marked(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    for chunk in chunks:
        yield chunk, False
    yield b"", True


def _from_lines(path: Path, field: str, bad: Bad) -> Iterator[str]:
    for where, row in json_rows(path, bad):
        value, wrong = text_field(row, field)
        if wrong:
            bad.found(where, wrong)
        elif value:
            yield value


def json_rows(path: Path, bad: Bad) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON lines file, each with file and line number for messages. Empty lines are skipped."""
    for number, line in enumerate(_lines(_chunks(path, bad), path), start=1):
        if not line or line.isspace():
            continue
        where = f"{path} line {number}"
        try:
            row = parse_object(line)
        except ValueError as error:
            bad.found(where, in_words(error))
        else:
            yield where, row


def text_field(row: Mapping[str, Any], field: str) -> tuple[str, str | None]:
    """The text in a field, and an error message or None."""
    if field not in row:
        return "", f"no field {field!r}; it has {', '.join(map(str, row)) or 'none'}: set field to the one that holds the text"
    value = row[field]
    if not isinstance(value, str):
        return "", f"field {field!r} is of type {type(value).__name__}, expected text"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return "", f"field {field!r} holds half of a surrogate pair at character {error.start}, which is no text"
    return value, None


def _lines(chunks: Iterable[bytes], path: Path) -> Iterator[bytes]:
    held: list[bytes] = []
    length, number = 0, 1
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        held.append(first)
        length += len(first)
        if length > LONGEST_LINE_BYTES:
            raise line_too_long(str(path), number)
        for piece in rest:
            yield b"".join(held)
            held, length, number = [piece], len(piece), number + 1
    yield b"".join(held)


def _chunks(path: Path, bad: Bad) -> Iterator[bytes]:
    """The decompressed bytes of a file, a megabyte at a time."""
    place = LocalFile(path)
    try:
        with open_plain(place, packed=True) if kind_of(path)[1] else place.open() as file:
            while chunk := file.read(_READ_BYTES):
                yield chunk
    except TooLarge:
        raise
    except DataError as error:
        bad.found(str(path), in_words(error).removeprefix(f"{path} "))
    except OSError as error:
        bad.found(str(path), f"can't be read: {error.strerror or error}")


# Token ids


@dataclass(frozen=True)
class TokenFile:
    """A stretch of ids, in memory or memory-mapped; `name` is for messages."""

    name: str
    ids: Array
    pages: mmap.mmap | None = None
    first_byte: int = 0  # of `ids` in the memory map
    largest: int | None = None  # if it is known without reading all ids
    held: EntryInUse | None = None  # the cache entry that it is in

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, start: int, stop: int) -> TokenFile:
        first_byte = self.first_byte + start * self.ids.itemsize
        return TokenFile(self.name, self.ids[start:stop], self.pages, first_byte, self.largest, self.held)

    def expect(self, begins: Array, length: int) -> None:
        """Requests everything that is about to be read at once, so that the disk handles requests in parallel."""
        if self.pages is None or _WILL_NEED is None:
            return
        size = self.ids.itemsize
        for first in (begins * size + self.first_byte).tolist():
            page = first - first % mmap.PAGESIZE
            self.pages.madvise(_WILL_NEED, page, first + length * size - page)

    def pieces(self) -> Iterator[tuple[int, Array]]:
        for start in range(0, len(self.ids), _SCAN_TOKENS):
            yield start, self.ids[start : start + _SCAN_TOKENS]


@dataclass(frozen=True)
class Sidecar:
    """The description of a token file that flatout made, kept next to it as NAME.json."""

    dtype: str
    count: int
    vocabulary: int
    largest: int
    content: str
    tokenizer: str
    tokenizer_name: str
    eot: int | None
    documents: int
    bad: int = 0
    bad_examples: tuple[str, ...] = ()


_SIDECAR = "flatout_tokens"
_SIDECAR_FORMAT = 1


def sidecar_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def write_sidecar(path: Path, known: Sidecar) -> None:
    sidecar_path(path).write_text(json.dumps({_SIDECAR: _SIDECAR_FORMAT, **vars(known)}, indent=1))


def read_sidecar(path: Path) -> Sidecar | None:
    """None if there is none, or an unrelated JSON file; DataError if it does not match the file."""
    beside = sidecar_path(path)
    try:
        written = json.loads(beside.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(written, dict) or written.pop(_SIDECAR, None) != _SIDECAR_FORMAT:
        return None
    try:
        known = Sidecar(**{**written, "bad_examples": tuple(written.get("bad_examples", ()))})
        expected = known.count * np.dtype(known.dtype).itemsize
    except TypeError as error:
        raise DataError(f"{beside} is damaged ({error}): remove it, or make the tokens again") from error
    if path.stat().st_size != expected:
        raise DataError(
            f"{path} has {path.stat().st_size} bytes, but {beside.name} says {known.count} tokens in {expected} bytes: "
            "the file is cut off or was replaced; make the tokens again, or remove the .json"
        )
    return known


def token_parts(files: Sequence[Path], dtype: str | None) -> list[TokenFile]:
    """The ids of each file as stored, of type `dtype` if the file does not say."""
    if dtype is not None and dtype not in TOKEN_TYPES:
        raise DataError(f"dtype of token files is one of {', '.join(TOKEN_TYPES)}, got {dtype!r}")
    return [_token_part(path, dtype) for path in files]


def _token_part(path: Path, dtype: str | None) -> TokenFile:
    if path.suffix == ".npy":
        return _npy_part(path)
    known = read_sidecar(path)
    if known is not None and dtype not in (None, known.dtype):
        raise DataError(
            f"{path} holds {known.dtype} tokens, as {sidecar_path(path).name} says, but dtype is {dtype}: leave out dtype"
        )
    kind = np.dtype(known.dtype if known is not None else dtype or "uint16")
    size = path.stat().st_size
    if size % kind.itemsize:
        raise DataError(f"{path} has {size} bytes, not a whole number of {kind} tokens: set dtype to the type of its tokens")
    return _part(path, kind, 0, size // kind.itemsize)


def _npy_part(path: Path) -> TokenFile:
    with reading(str(path), "as npy"), open_regular(path) as file:
        header = npy.read_header(file)
        there = os.fstat(file.fileno()).st_size - header.header_bytes
    shape, kind, first = header.shape, header.dtype, header.header_bytes
    if len(shape) != 1 or kind.kind not in "ui":
        raise DataError(f"{path}: expected a flat array of token ids, got {kind} of shape {list(shape)}")
    if there < shape[0] * kind.itemsize:
        raise DataError(f"{path}: its header declares {shape[0]} tokens, {there // kind.itemsize} are there: it was cut off")
    return _part(path, kind, first, shape[0])


def _part(path: Path, kind: np.dtype[Any], first_byte: int, count: int) -> TokenFile:
    if count * kind.itemsize < _MAP_BYTES:
        return TokenFile(str(path), np.fromfile(path, kind, count, offset=first_byte))
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return TokenFile(str(path), np.frombuffer(pages, kind, count, first_byte), pages, first_byte)


def byte_parts(files: Sequence[Path], field: str, bad: Bad) -> tuple[list[TokenFile], list[int]]:
    """Raw bytes, and the number of bytes of each document."""
    parts: list[TokenFile] = []
    lengths: list[int] = []
    room = Allowance()
    for path in files:
        inside, packed = kind_of(path)
        if inside == "lines":
            found = []
            for document in _from_lines(path, field, bad):
                found.append(document.encode())
                room.take(_BYTES_PER_BYTE * len(found[-1]), str(path))
            lengths += map(len, found)
            parts.append(TokenFile(str(path), np.frombuffer(b"".join(found), np.uint8)))
            continue
        before = bad.count
        size = path.stat().st_size
        plain = _part(path, np.dtype(np.uint8), 0, size) if not packed else _unpacked(path, bad, room)
        if bad.count == before:
            parts.append(plain)
            lengths.append(len(plain))
    return parts, lengths


def _unpacked(path: Path, bad: Bad, room: Allowance) -> TokenFile:
    content = bytearray()
    _check_room(path, _BYTES_PER_BYTE, bad)
    for chunk in _chunks(path, bad):
        room.take(_BYTES_PER_BYTE * len(chunk), str(path))
        content += chunk
    return TokenFile(str(path), np.frombuffer(content, np.uint8))


def _check_room(path: Path, times: int, bad: Bad) -> None:
    """Checks a compressed file before any of it is kept."""
    if not kind_of(path)[1]:
        return
    try:
        _check_unpacked_fits(LocalFile(path), times)
    except TooLarge:
        raise
    except DataError:
        pass  # damaged: reported when it is read, as on_bad says


def _check_unpacked_fits(file: LocalFile, times: int) -> None:
    """TooLarge unless memory has room for `times` the unpacked content. The file is unpacked to count: headers can lie."""
    most, unpacked_bytes = allowed_bytes() // times, 0
    with open_plain(file) as stream:
        while piece := stream.read(1 << 20):
            unpacked_bytes += len(piece)
            if unpacked_bytes > most:
                what = f"its {show_bytes(file.size)} unpack to more than {show_bytes(most)}, and need {times} times that"
                raise too_large(file.name, what, most * times)


def char_parts(files: Sequence[Path], field: str, bad: Bad) -> tuple[list[TokenFile], list[int]]:
    """Code points, and the number of characters of each document."""
    room = Allowance()
    codes: list[Array] = []
    lengths: list[int] = []
    for path in files:
        _check_room(path, _BYTES_PER_CHARACTER, bad)
    for document in documents(files, field, bad):
        lengths.append(0)
        for piece in document:
            room.take(_BYTES_PER_CHARACTER * len(piece), f"the text of {files[0]}{' and others' if len(files) > 1 else ''}")
            codes.append(np.frombuffer(piece.encode("utf-32-le"), np.uint32))
            lengths[-1] += len(piece)
    return [TokenFile("the text", np.concatenate(codes) if codes else np.empty(0, np.uint32))], lengths


def by_alphabet(groups: Sequence[Sequence[TokenFile]]) -> tuple[str, list[list[TokenFile]]]:
    """Code points to places in the sorted alphabet of all the text."""
    present = np.zeros(_CODE_POINTS, dtype=bool)
    for part in (part for parts in groups for part in parts):
        present[part.ids] = True
    letters = present.nonzero()[0]
    place = np.zeros(_CODE_POINTS, dtype=np.int32)
    place[letters] = np.arange(len(letters))
    return "".join(map(chr, letters)), [[TokenFile(part.name, place[part.ids]) for part in parts] for parts in groups]


def placed(parts: Sequence[TokenFile], alphabet: str, name: str) -> list[TokenFile]:
    """Code points to places in a known alphabet; `name` is for messages."""
    place = np.full(_CODE_POINTS, -1, dtype=np.int32)
    place[[ord(letter) for letter in alphabet]] = np.arange(len(alphabet))
    found = [TokenFile(part.name, place[part.ids]) for part in parts]
    strange = {letter for part, own in zip(found, parts, strict=True) for letter in np.unique(own.ids[part.ids < 0]).tolist()}
    if strange:
        shown = " ".join(repr(chr(letter)) for letter in sorted(strange)[:10])
        raise DataError(f"{name} has characters that the training text has not: {shown}")
    return found


def check_vocabulary(parts: Sequence[TokenFile], told: int | None, whose: str = "") -> int:
    """As given, if every token is below it; else the largest token plus one. Reads a piece at a time."""
    largest = 0
    for part in parts:
        limits = np.iinfo(part.ids.dtype)
        most = limits.max if part.largest is None else part.largest
        if told is not None and (limits.min >= 0 or part.largest is not None) and most < told:
            continue  # no id of this type, or none of those counted before, can be outside
        for start, ids in part.pieces():
            if limits.min < 0 and (low := int(ids.min())) < 0:
                raise _out_of_range(part.name, start + int(ids.argmin()), low, told, whose)
            if (high := int(ids.max())) > largest:
                largest = high
                if told is not None and high >= told:
                    raise _out_of_range(part.name, start + int(ids.argmax()), high, told, whose)
    return largest + 1 if told is None else told


def _out_of_range(name: str, place: int, found: int, vocabulary: int | None, whose: str) -> DataError:
    below = "0 or more" if vocabulary is None else f"0 to {vocabulary - 1}"
    remedy = (
        "the file was made with another tokenizer, or has another dtype" if whose else "check vocabulary and dtype against it"
    )
    return DataError(f"{name}: token ids must be {below}{whose}, found {found} (token {place}): {remedy}")


def after_each(parts: Sequence[TokenFile], eot: int) -> Array:
    """The places just after each end-of-text token, over all parts end to end."""
    found, passed = [], 0
    for part in parts:
        for start, ids in part.pieces():
            found.append(np.flatnonzero(ids == eot) + (passed + start + 1))
        passed += len(part)
    return np.concatenate(found) if found else np.empty(0, np.int64)
