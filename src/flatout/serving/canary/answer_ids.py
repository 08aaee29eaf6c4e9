"""Names of answers, by which labels come back later. A name says itself which version answered and what it predicted.

So nothing is kept for each answer: a label may come after days, to another process, or after a restart with the same secret.
"""

from __future__ import annotations

import hmac
import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from struct import Struct

_CONTENT = Struct(">BdI5s")  # version, prediction, seconds since 1970, random
_MAC_BYTES = 9
_LETTERS = (_CONTENT.size + _MAC_BYTES) * 4 // 3


@dataclass(frozen=True)
class NamedAnswer:
    arm: int
    prediction: float
    at_s: int


class AnswerIds:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def name(self, arm: int, prediction: float) -> bytes:
        content = _CONTENT.pack(arm, prediction, int(time.time()), os.urandom(5))
        return urlsafe_b64encode(content + self._mac(content))

    def read(self, name: str) -> NamedAnswer | None:
        """None if it was not given by this deployment."""
        if len(name) != _LETTERS or not name.isascii():
            return None
        whole = urlsafe_b64decode(name)
        content, mac = whole[: _CONTENT.size], whole[_CONTENT.size :]
        if len(content) != _CONTENT.size or not hmac.compare_digest(mac, self._mac(content)):
            return None
        arm, prediction, at_s, _ = _CONTENT.unpack(content)
        return NamedAnswer(arm, prediction, at_s)

    def _mac(self, content: bytes) -> bytes:
        return hmac.digest(self._secret, content, "sha256")[:_MAC_BYTES]
