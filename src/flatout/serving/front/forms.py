"""multipart/form-data: the files in a form."""

from __future__ import annotations

import re

from flatout.serving.front.refusals import Refusal

_MOST_PARTS = 4096
_BOUNDARY = re.compile(rb'boundary="?([^";,\s]{1,200})"?', re.IGNORECASE)


def files_of_form(body: bytes, content_type: bytes) -> list[bytes]:
    """The content of each part that is a file, in order."""
    named = _BOUNDARY.search(content_type)
    if named is None:
        raise Refusal(400, "multipart/form-data needs a boundary in its Content-Type")
    mark = b"--" + named[1]
    if not body.startswith(mark):
        raise Refusal(400, f"the form does not begin with its boundary {named[1][:60].decode('latin-1')!r}")
    files: list[bytes] = []
    start = len(mark)
    for _ in range(_MOST_PARTS):
        if body[start : start + 2] == b"--":
            break
        end = body.find(b"\r\n" + mark, start)
        head, found, _ = _split(body, start, end)
        if end < 0 or not found:
            raise Refusal(400, f"the form is truncated in part {len(files)}")
        if b"filename" in head.lower() or b"content-type: image/" in head.lower():
            files.append(body[start + 2 + len(head) + 4 : end])
        start = end + 2 + len(mark)
    else:
        raise Refusal(413, f"the form has more than {_MOST_PARTS:,} parts")
    if not files:
        raise Refusal(400, "the form has no file; expected one or more photos, as `curl -F photo=@dog.jpg` sends them")
    return files


def _split(body: bytes, start: int, end: int) -> tuple[bytes, bool, int]:
    """The header of a part, whether it ends within the part, and where."""
    place = body.find(b"\r\n\r\n", start, end if end > 0 else None)
    return body[start + 2 : place], place >= 0, place
