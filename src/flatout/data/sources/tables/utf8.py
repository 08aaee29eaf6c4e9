"""Text files that are not UTF-8: read in another encoding, or reported with the first bad byte."""

from __future__ import annotations

import codecs
import io
from typing import Any

from flatout.base.errors import DataError
from flatout.data.files.places import FilePlace, open_plain


class Recoded(io.RawIOBase):
    """Reads text in any encoding as UTF-8 bytes."""

    def __init__(self, stream: io.BufferedReader, name: str, encoding: str) -> None:
        self._stream = stream
        self._name, self._encoding = name, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready = b""
        self._taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            content = self._stream.read(1 << 20)
            try:
                self._ready = self._decoder.decode(content, final=not content).encode()
            except UnicodeError as error:
                place = self._taken + getattr(error, "start", 0)
                raise DataError(
                    f"{self._name} is not {self._encoding} text at byte {place}: set encoding to the right one"
                ) from error
            self._taken += len(content)
            if not content:
                break
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def not_utf8(place: FilePlace) -> str:
    """A message that a file is not UTF-8 text, with its first bad byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    taken, lines = 0, 1
    with open_plain(place) as stream:
        while content := stream.read(1 << 20):
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(content)
            except UnicodeDecodeError as error:
                at = error.start - pending
                line = lines + content[: max(at, 0)].count(b"\n")
                return (
                    f"{place.name} is not UTF-8 text: line {line} has the byte 0x{error.object[error.start]:02x} "
                    f"(byte {taken + at} of the file); if it comes from an older program, set encoding: latin-1"
                )
            taken, lines = taken + len(content), lines + content.count(b"\n")
    return f"{place.name} is not UTF-8 text: set encoding, for example latin-1"
