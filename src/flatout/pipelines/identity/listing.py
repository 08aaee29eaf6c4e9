"""The files of a project that its programs may read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SKIPPED = {"__pycache__", "node_modules", "site-packages"}
_ENVIRONMENT = "pyvenv.cfg"
_MOST_FILES = 200_000

ParsedFiles = dict[bytes, Any]  # syntax trees, or errors, by content


class ProjectFiles:
    """Not hidden, not of an environment, not written by stages. `outputs`: what stages write.

    `has_links`: a folder is a link; `is_cut`: there are more files than are looked at.
    """

    def __init__(self, root: Path, outputs: Sequence[Path] = ()) -> None:
        self.root = root.resolve()
        self.outputs = sorted(str(output) for output in outputs)
        self.has_links = self.is_cut = False
        self._written = tuple(str((self.root / output).resolve()) for output in outputs)
        self._written_below = tuple(f"{output}/" for output in self._written)
        self._names: list[str] | None = None
        self._listing: list[Path] | None = None

    def names(self) -> list[str]:
        """Their paths from the root: of a folder first the files, then the folders in it."""
        if self._names is None:
            self._names = []
            start = str(self.root).rstrip("/")
            waiting = [""]
            while waiting:
                below = waiting.pop()
                folders = self._look_into(start, below)
                waiting += reversed([f"{below}{name}/" for name in folders])
                if len(self._names) > _MOST_FILES:
                    self.is_cut = True
                    break
        return self._names

    def _look_into(self, start: str, below: str) -> list[str]:
        """Notes the files of a folder; the folders in it that are looked into."""
        assert self._names is not None
        folders: list[str] = []
        files: list[str] = []
        try:
            with os.scandir(f"{start}/{below}") as entries:
                for entry in entries:
                    (folders if entry.is_dir() else files).append(entry.name)
                    self.has_links = self.has_links or (entry.is_symlink() and entry.is_dir())
        except OSError:
            return []
        if below and _ENVIRONMENT in files:
            return []
        self._names += [f"{below}{name}" for name in sorted(files) if not self._is_written(f"{start}/{below}{name}")]
        return sorted(
            name
            for name in folders
            if name not in SKIPPED
            and not name.startswith(".")
            and not self._is_written(f"{start}/{below}{name}")
            and not (self.has_links and os.path.islink(f"{start}/{below}{name}"))
        )

    def listing(self) -> list[Path]:
        if self._listing is None:
            self._listing = [self.root / name for name in self.names()]
        return self._listing

    def below(self, folder: Path) -> list[Path]:
        """Those of a folder of the project."""
        start = f"{folder}/"
        return [path for path in self.listing() if str(path).startswith(start)]

    def is_output(self, path: Path) -> bool:
        return self._is_written(str(path))

    def _is_written(self, path: str) -> bool:
        return path in self._written or path.startswith(self._written_below)

    def shown(self, path: Path) -> str:
        path = path.resolve()
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)
