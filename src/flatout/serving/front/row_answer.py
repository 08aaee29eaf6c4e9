"""The answer to one row, as bytes: all but the row's own values and its time in the queue is written once for a batch."""

from __future__ import annotations

from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

from flatout.serving.front.batch_headers import BatchHeaders
from flatout.serving.front.model_view import CLASS, ModelView
from flatout.serving.records import RowLayout

Wanted = tuple[tuple[str, bool], ...]
Pieces = tuple[bytes, ...]

BINARY_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n%b"
_INT64 = Struct("<q")


class Frame(NamedTuple):
    """What comes before the time in the queue and after it, up to the values."""

    batch: BatchHeaders
    common: bytes
    begin: bytes
    end: bytes
    body_bytes: int


class RowForm:
    """The answer of one row with these outputs. `bodies` has the JSON before the values, by the bytes of the class."""

    def __init__(self, view: ModelView, wanted: Wanted, layout: RowLayout) -> None:
        self.wanted, self.layout = wanted, layout
        self.bodies: dict[int, bytes] = {}
        self._frames: dict[tuple[int, bytes], Frame] = {}
        self._classes = view.packed_classes
        self._packed: dict[bytes, bytes] = {}  # class, by the bytes of its number
        self._fields = layout.fields_of
        order = [one.name for one in layout.fields]
        places = [len(order) if name == CLASS and self._classes else order.index(name) for name, _ in wanted]
        self._has_class = len(order) in places
        self._number_at = order.index("prediction") if self._has_class else -1
        self._pick: Any = itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))

    def pieces(self, record: bytes) -> tuple[Pieces, int]:
        """The values in the order that is wanted, and the bytes of the class among them."""
        fields = self._fields(record)
        if not self._has_class:
            return self._pick(fields), 0
        number = fields[self._number_at]
        packed = self._packed.get(number)
        if packed is None:
            packed = self._class_of(number)
        return self._pick((*fields, packed)), len(packed)

    def _class_of(self, packed_number: bytes) -> bytes:
        number, classes = int(_INT64.unpack(packed_number)[0]), self._classes
        packed = classes[min(number, len(classes) - 1)]
        if 0 <= number < len(classes):
            self._packed[packed_number] = packed
        return packed

    def frame(self, batch: BatchHeaders, common: bytes, connection_line: bytes, pieces: Pieces, class_bytes: int) -> Frame:
        """`common` has the headers of every answer, `connection_line` the one for this client."""
        key = (class_bytes, connection_line)
        found = self._frames.get(key)
        if found is None or found.batch is not batch or found.common is not common:
            body = self.bodies[class_bytes]
            size = len(body) + sum(map(len, pieces))
            begin = BINARY_HEAD % (len(body), batch.before)
            end = b"%b%bContent-Length: %d\r\n%b\r\n%b" % (batch.after, common, size, connection_line, body)
            found = self._frames[key] = Frame(batch, common, begin, end, size)
        return found
