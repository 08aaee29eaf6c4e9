"""Which files a command changed that no stage declares."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_LEFT_OUT = (
    ".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache",
    ".ipynb_checkpoints",
)  # fmt: skip
MOST_FILES = 200_000
Seen = dict[str, tuple[int, int, int]]


class FolderWatch:
    """The files below a folder as they were, without some places. `is_whole`: False if there are too many to look at."""

    def __init__(self, folder: Path, without: Sequence[Path]) -> None:
        self._folder = str(folder)
        self._without = {str(one) for one in without}
        self.is_whole = True
        self._before = self._seen()

    def changed(self) -> list[Path]:
        """Written or made since; files that are gone are not among them."""
        if not self.is_whole:
            return []
        now = self._seen()
        return [Path(path) for path, about in sorted(now.items()) if self._before.get(path) != about]

    def _seen(self) -> Seen:
        found: Seen = {}
        waiting = [self._folder]
        while waiting:
            folder = waiting.pop()
            try:
                entries = list(os.scandir(folder))
            except OSError:
                continue
            for entry in entries:
                if entry.name in _LEFT_OUT or entry.path in self._without:
                    continue
                try:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        about = entry.stat(follow_symlinks=False)
                        found[entry.path] = about.st_mtime_ns, about.st_size, about.st_ino
                except OSError:
                    continue
            if len(found) > MOST_FILES:
                self.is_whole = False
                return {}
        return found
