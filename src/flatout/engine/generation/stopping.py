"""Ends a text before a stop text. What may be the beginning of one is held back until it is known."""

from __future__ import annotations

from collections.abc import Sequence


class HeldText:
    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def add(self, piece: str) -> tuple[str, bool]:
        """The text that can be given out, and whether a stop text was found: the text then ends before it."""
        text = self._held + piece
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        held = max((self._beginning(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def rest(self) -> str:
        return self._held

    @staticmethod
    def _beginning(text: str, stop: str) -> int:
        """How many characters at the end of `text` begin `stop`."""
        longest = min(len(stop) - 1, len(text))
        return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
