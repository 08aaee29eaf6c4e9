"""The fields of a log point that curves need, read without parsing the whole line: a watcher reads many of them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from functools import lru_cache

from flatout.base.events import Event
from flatout.reporting.curves import LOGGED

_BEGINS = b'{"kind": "step", '
_NEEDED = ("step", "elapsed_s", *LOGGED)
_SEALED = len(', "crc": "12345678"}\n')


def is_step(line: bytes) -> bool:
    return line.startswith(_BEGINS)


class StepLines:
    """Most log points of a run have the same keys in the same order: those of the one that was read in full."""

    def __init__(self) -> None:
        self._keys: tuple[str, ...] = ()
        self._pattern: re.Pattern[bytes] | None = None

    def learn(self, event: Event) -> None:
        if event.get("kind") == "step" and (keys := tuple(event)) != self._keys:
            self._keys = keys
            self._pattern = _pattern(keys) if "step" in keys else None

    def curve_fields(self, line: bytes) -> Event | None:
        """None: the line is different, or damaged, and is to be read as JSON."""
        found = None if self._pattern is None else self._pattern.fullmatch(line)
        if found is None or zlib.crc32(line[:-_SEALED] + b"}") != int(line[-11:-3], 16):
            return None
        numbers = {name: None if value == b"null" else float(value) for name, value in found.groupdict().items()}
        return {**numbers, "kind": "step", "step": int(found["step"])}


@lru_cache(64)
def _pattern(keys: Iterable[str]) -> re.Pattern[bytes]:
    """Of a line with a checksum whose values are numbers."""
    number = rb"-?(?:[0-9][0-9.eE+-]*|Infinity)|NaN|null"
    parts = [rb'\{"kind": "step"']
    for key in keys:
        name = re.escape(key.encode())
        if key == "step":
            parts.append(rb', "step": (?P<step>[0-9]+)')
        elif key in _NEEDED:
            parts.append(rb', "%b": (?P<%b>%b)' % (name, key.encode(), number))
        elif key != "kind":
            parts.append(rb', "%b": (?:%b)' % (name, number))
    return re.compile(b"".join(parts) + rb', "crc": "[0-9a-f]{8}"\}\n')
