"""The pages of a watcher: that of the folder, and one for each run in it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from flatout.base.tree import Doc
from flatout.reporting.live.now import Now
from flatout.reporting.live.pages import LivePage, drawn_runs, folder_now, page_of_folder, page_of_run
from flatout.reporting.live.stream import LiveView
from flatout.reporting.live.watched import Watched, WatchedRun


class LiveSite:
    """A name is looked up among the runs that were found; None is the first page."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._one_at_a_time = threading.Lock()  # many viewers must not make the machine busy

    def page(self, name: str | None) -> LivePage | None:
        name = name or self._watched.only
        runs = self._watched.runs()
        if name is None:
            return self._folder_page(runs)
        found = [run for run in runs if run.name == name]
        return self._run_page(found) if found else None

    def view(self, name: str | None) -> LiveView | None:
        name, watched = name or self._watched.only, self._watched
        if name is None:
            return LiveView(
                watched.runs, drawn_runs, self._folder_page, folder_now,
                lambda runs: "" if watched.is_there else gone(watched.root),
            )  # fmt: skip
        if watched.run(name) is None:
            return None

        def this_run() -> Sequence[WatchedRun]:
            return [run for run in watched.runs() if run.name == name and run.folder.path.is_dir()]

        def now(runs: Sequence[WatchedRun], nows: Mapping[str, Now]) -> Doc:
            return nows[name].doc() if runs and runs[0].is_running and name in nows else Doc()

        return LiveView(this_run, lambda runs: runs, self._run_page, now, lambda runs: "" if runs else gone(name))

    def _folder_page(self, runs: Sequence[WatchedRun]) -> LivePage:
        with self._one_at_a_time:
            return page_of_folder(str(self._watched.root), runs)

    def _run_page(self, runs: Sequence[WatchedRun]) -> LivePage:
        with self._one_at_a_time:
            return page_of_run(runs[0], is_one_of_many=self._watched.only is None)


def gone(what: Path | str) -> str:
    return f"{what} is gone: it was moved or deleted. The page shows what it had."
