"""Host parts by the kind of data that they are of. Each loads when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.errors import DataError
from flatout.data.fitted.host import HostPart


def host_from_json(kind: str, written: Mapping[str, Any]) -> HostPart:
    if kind == "table":
        from flatout.data.fitted.table_rows import TableHost

        return TableHost.from_json(written)
    if kind == "photos":
        from flatout.data.fitted.photo_rows import PhotoHost

        return PhotoHost.from_json(written)
    if kind == "text":
        from flatout.data.fitted.token_rows import TextHost

        return TextHost.from_json(written)
    if kind == "sequences":
        from flatout.data.fitted.token_rows import SequenceHost

        return SequenceHost.from_json(written)
    if kind == "arrays":
        from flatout.data.fitted.array_rows import ArrayHost

        return ArrayHost.from_json(written)
    raise DataError(f"what was fitted is of the kind {kind!r}, which this flatout does not know")
