"""Lines of text files, with a limit on their length: a file without line breaks must not fill memory."""

from __future__ import annotations

import io
from typing import Any

from flatout.base.errors import DataError
from flatout.base.units import show_bytes

LONGEST_LINE_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20


def read_line(stream: io.BufferedReader, name: str) -> bytes:
    """The next line with its line break; empty at the end of the file."""
    line = stream.readline(LONGEST_LINE_BYTES + 1)
    if len(line) > LONGEST_LINE_BYTES:
        raise line_too_long(name)
    return line


def line_too_long(name: str, number: int | None = None) -> DataError:
    where = "a line" if number is None else f"line {number}"
    most = show_bytes(LONGEST_LINE_BYTES)
    return DataError(f"{name}: {where} is longer than {most}, the limit: is this a text file with lines?")


class LineGuard(io.RawIOBase):
    """A stream for readers that take a line whole, however long: a line over the limit is an error."""

    def __init__(self, stream: io.BufferedReader, name: str) -> None:
        self._stream, self._name = stream, name
        self._since_line_end = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._stream.read(min(len(buffer), _PIECE_BYTES))
        end = max(content.rfind(b"\n"), content.rfind(b"\r"))
        self._since_line_end = len(content) - 1 - end + (self._since_line_end if end < 0 else 0)
        if self._since_line_end > LONGEST_LINE_BYTES:
            raise line_too_long(self._name)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
