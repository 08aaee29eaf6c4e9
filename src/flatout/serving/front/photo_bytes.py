"""Photos in JSON: base64, as OpenAPI's `format: byte` says."""

from __future__ import annotations

import base64
import binascii

from flatout.serving.front.refusals import Refusal


def photo_of_text(text: str) -> bytes:
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(400, f"a photo in JSON is the base64 text of its file: {error}") from None
