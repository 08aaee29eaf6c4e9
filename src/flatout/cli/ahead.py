"""Imports what the end of a study needs while its last trainings are under way: this process only waits for them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from flatout.base.events import Event


class ImportsAhead:
    """An observer of a study. Begins when the finalists are chosen and the winner is about to be judged."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self.thread: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        if event["kind"] == "finals" and self.thread is None:
            self.thread = threading.Thread(target=self._import, daemon=True)
            self.thread.start()

    def _import(self) -> None:
        for name in self._modules:
            with suppress(ImportError):  # whoever needs it says what is missing
                import_module(name)
