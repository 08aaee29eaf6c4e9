"""Photos that go to an executor as files, to be decoded on its device: where a file lies in its room, and which files may go.

A block begins with room for the answer, as it does for all requests without inputs; then come HEAD and the bytes of the file.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from struct import Struct

import numpy as np

from flatout.data.decoding.decode import DecodePlan, has_one_scan, plan
from flatout.data.decoding.headers import read_header
from flatout.data.decoding.nvjpeg import has_end
from flatout.packaging.ports import Port
from flatout.serving.records import RowLayout
from flatout.serving.rows_in_rooms import RoomLayout

FILES = ((1 << 32) - 1,)
"""The sizes that such a request names: no tensor has them, and requests with the same sizes are run together."""

HEAD = Struct("<Q4I")
"""Bytes of the file; the size to which it is decoded, by what that is reduced, and the orientation: see DecodePlan."""

_MOST_BYTES = 4 << 20
_MOST_PIXELS = 1 << 24  # a batch of larger ones would need gigabytes of the device


def file_layout(outputs: Sequence[Port]) -> RoomLayout:
    return RoomLayout(RowLayout((), 0), RowLayout.of(outputs), FILES)


def head_of(content: bytes, cover: int) -> bytes | None:
    """The head of a file, to be decoded for `cover` (see decode.plan); None for one that the front decodes itself: another
    kind than the usual JPEG, one that is cut off, or a huge one. What is wrong with it is said there."""
    if (
        len(content) > _MOST_BYTES
        or not content.startswith(b"\xff\xd8\xff")
        or not has_end(content)
        or not has_one_scan(content)
    ):
        return None
    try:
        header = read_header(io.BytesIO(content))
    except ValueError:
        return None
    if not header.turbo or header.height * header.width > _MOST_PIXELS:
        return None
    height, width, orientation = (np.array([value]) for value in header[:3])
    planned = plan(height, width, orientation, np.array([True]), cover).of([0])[0]
    return HEAD.pack(len(content), planned.stage_height, planned.stage_width, planned.factor, planned.orientation)


def read_head(memory: memoryview, begin: int) -> tuple[int, DecodePlan]:
    nbytes, height, width, factor, orientation = HEAD.unpack_from(memory, begin)
    return nbytes, DecodePlan(True, height, width, factor, orientation)
