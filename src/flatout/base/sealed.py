"""JSON lines that carry their own checksum: `{"kind": "step", ..., "crc": "1c291ca3"}`.

A flipped bit anywhere in a line is detected when the line is read. A line cut short by a kill or a full disk does not count as
damage: the last line may be incomplete, and the next append marks it as torn.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TORN = b" [torn]"
_SEAL = re.compile(rb', "crc": "([0-9a-f]{8})"\}$')
_INNER_SEAL = re.compile(rb', "crc": "[0-9a-f]{8}"\}')


@dataclass(frozen=True)
class SealedLine:
    """`fields` as written, or the reason why they can't be read in `damage`."""

    number: int
    fields: dict[str, Any] = field(default_factory=dict)
    damage: str = ""


def sealed(fields: Mapping[str, Any]) -> bytes:
    """One line without its newline."""
    plain = json.dumps(fields, default=str, allow_nan=True).encode()
    assert plain != b"{}", "a line must have fields"
    return plain[:-1] + b', "crc": "%08x"}' % zlib.crc32(plain)


def is_sealed(line: bytes) -> bool:
    return _SEAL.search(line) is not None


def opened(line: bytes) -> dict[str, Any]:
    """The fields of a line with a correct checksum or none. Otherwise ValueError says what is wrong."""
    seal = _SEAL.search(line)
    plain = line if seal is None else line[: seal.start()] + b"}"
    if seal is not None and zlib.crc32(plain) != int(seal[1], 16):
        raise ValueError("does not match its checksum")
    try:
        fields = json.loads(plain)
    except (ValueError, RecursionError):
        raise ValueError("is incomplete") from None
    if not isinstance(fields, dict):
        raise ValueError("is incomplete")
    return fields


def append(handle: int, line: bytes) -> bool:
    """Append a line to a log opened for reading and appending; False if only part of it could be written."""
    size = os.fstat(handle).st_size
    torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
    content = (TORN + b"\n" if torn else b"") + line + b"\n"
    return os.write(handle, content) == len(content)


def read_lines(path: Path, *, unsealed: bool) -> Iterator[SealedLine]:
    """Every line that was written completely. `unsealed`: lines before the first one with a checksum may have none."""
    try:
        lines = path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        return
    with lines:
        for number, line in enumerate(lines, 1):
            found = read_line(number, line, unsealed=unsealed)
            unsealed = unsealed and not is_sealed(line.removesuffix(b"\n"))
            if found is not None:
                yield found


def read_line(number: int, line: bytes, *, unsealed: bool) -> SealedLine | None:
    """A line with its newline, or without one if it is the last. None: it was cut short. `unsealed`: it may lack a checksum."""
    content = line.removesuffix(b"\n")
    if not line.endswith(b"\n") or content.endswith(TORN):
        # cut short; but if only the newline before it was damaged, the previous line is in here complete
        seal = _INNER_SEAL.search(content)
        found = None if seal is None else _line(number, content[: seal.end()])
        return found if found is not None and found.fields else None
    if not is_sealed(content) and not unsealed:
        return SealedLine(number, damage="has no checksum")
    return _line(number, content)


def _line(number: int, content: bytes) -> SealedLine:
    try:
        return SealedLine(number, opened(content))
    except ValueError as error:
        return SealedLine(number, damage=str(error))
