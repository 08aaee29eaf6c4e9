"""Prepares what the end of a study prints while its last trainings are under way: this process only waits for them."""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.base.errors import FlatoutError
from flatout.base.events import Event

if TYPE_CHECKING:
    from flatout.tuning.views.importance import Importance

_SLOW_IMPORTS = ("flatout.tuning.views.doc", "optuna.importance")  # which takes three seconds, for scikit-learn


class StudyEndAhead:
    """An observer of a study. Begins when the finalists are chosen: the search is then over, so its trials are all there."""

    def __init__(self, modules: tuple[str, ...] = _SLOW_IMPORTS) -> None:
        self._modules = modules
        self._folder: Path | None = None
        self._thread: threading.Thread | None = None
        self._importance: Importance | None = None

    def __call__(self, event: Event) -> None:
        if event["kind"] in ("begun", "resumed"):
            self._folder = Path(event["folder"])
        elif event["kind"] == "finals" and self._thread is None:
            self._thread = threading.Thread(target=self._prepare, daemon=True)
            self._thread.start()

    @property
    def importance(self) -> Importance | None:
        """None: it was not computed, or could not be."""
        if self._thread is not None:
            self._thread.join()
        return self._importance

    def _prepare(self) -> None:
        for name in self._modules:
            with suppress(ImportError):  # whoever needs it says what is missing
                import_module(name)
        if self._folder is None:
            return
        from flatout.tuning.study.folder import StudyFolder
        from flatout.tuning.views.history import read_history
        from flatout.tuning.views.importance import importance_of

        folder = StudyFolder(self._folder)
        with suppress(FlatoutError, OSError):  # the end tries again, and says it
            self._importance = importance_of(read_history(folder), folder.space)
