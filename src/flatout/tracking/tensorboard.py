"""TensorBoard's event files, written without TensorBoard.

The format is small and has not changed since 2015: records of protobuf messages with CRC-32C checksums. The package would bring
15 others into every environment that trains, and its writer has a thread and a queue that can lose what was logged last.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from flatout.tracking.tracker import Numbers, TrackedRun

FOLDER = "tensorboard"  # in the run's folder, if none is given


class TensorBoardFiles:
    """Below `target`, or in the run's folder: one file for each process of the run, which TensorBoard shows as one."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._file: IO[bytes] | None = None

    def begin(self, run: TrackedRun) -> Mapping[str, Any]:
        folder = Path(self._target) / run.name if self._target else run.folder / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.flatout"
        self._file = (folder / name).open("ab")
        self._write(_event(time.time(), 0, _bytes(3, b"brain.Event:2")))
        if run.parameters and not run.kept:
            table = "\n".join(
                ["| key | value |", "| --- | --- |", *(f"| {k} | {_cell(v)} |" for k, v in run.parameters.items())]
            )
            self._write(_event(time.time(), 0, _bytes(5, _bytes(1, _text("recipe", table)))))
        self._file.flush()
        return {"folder": str(folder)}

    def log(self, numbers: Sequence[Numbers]) -> None:
        for one in numbers:
            values = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in one.values.items())
            self._write(_event(one.at, one.step, _bytes(5, values)))
        if self._file is not None:
            self._file.flush()

    def end(self, status: str) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, message: bytes) -> None:
        length = struct.pack("<Q", len(message))
        assert self._file is not None
        self._file.write(length + _masked_crc(length) + message + _masked_crc(message))


def _event(at: float, step: int, what: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", at) + b"\x10" + _varint(step) + what


def _text(tag: str, text: str) -> bytes:
    """A value of the text plugin: a tensor of one string."""
    plugin = _bytes(9, _bytes(1, _bytes(1, b"text")))
    tensor = b"\x08\x07" + _bytes(2, _bytes(2, b"\x08\x01")) + _bytes(8, text.encode())
    return _bytes(1, tag.encode()) + plugin + _bytes(8, tensor)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _float(field: int, value: float) -> bytes:
    most = 3.4028235e38  # of float32: a larger number would be an error, and infinity is what it is
    fits = value if not math.isfinite(value) or abs(value) <= most else math.copysign(math.inf, value)
    return _varint(field << 3 | 5) + struct.pack("<f", fits)


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_TABLE = _crc_table()


def _masked_crc(content: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
