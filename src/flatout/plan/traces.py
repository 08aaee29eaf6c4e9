"""Traces stored between runs: tracing a variant of a large model takes a second, reading it back almost nothing.

A stored operation has its key but no call: a time measured earlier can be looked up, but it can't be timed again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import torch

from flatout.base.files import write_bytes
from flatout.measure.counts import Operation

_FORMAT = 1
_MOST = 512
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


class Traces:
    """One file per variant of a step, below `folder`. `key` identifies the step and the versions."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self._key = folder, key

    def read(self, form: str) -> tuple[Operation, ...] | None:
        try:
            written = json.loads(self._path(form).read_bytes())
            if written["format"] != _FORMAT:
                return None
            return tuple(_from_list(one) for one in written["operations"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # unreadable: trace again

    def write(self, form: str, operations: Sequence[Operation]) -> None:
        document = {"format": _FORMAT, "operations": [_to_list(one) for one in operations]}
        with suppress(OSError):  # without the cache the next run traces again
            self._folder.mkdir(parents=True, exist_ok=True)
            write_bytes(self._path(form), json.dumps(document).encode())
            self._forget_the_oldest()

    def _forget_the_oldest(self) -> None:
        """Delete the oldest, about 100 kB each, so that a search over models does not fill the disk."""
        kept = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in kept[:-_MOST]:
            path.unlink(missing_ok=True)

    def _path(self, form: str) -> Path:
        return self._folder / f"{sha256(f'{self._key} {form}'.encode()).hexdigest()[:24]}.json"


def _to_list(one: Operation) -> list[object]:
    return [one.name, one.group, str(one.dtype), one.flops, one.reads, one.writes, one.backward, one.key]


def _from_list(written: list[object]) -> Operation:
    name, group, dtype, flops, reads, writes, backward, key = written
    touched = [tuple((int(number), int(size)) for number, size in blocks) for blocks in (reads, writes)]  # type: ignore[attr-defined]
    one = Operation(str(name), str(group), _DTYPES[str(dtype)], int(flops), touched[0], touched[1], bool(backward))  # type: ignore[call-overload]
    return replace(one, key=str(key))
