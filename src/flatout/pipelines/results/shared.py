"""The same results in a place that machines share: a folder, or a URL that fsspec reaches.

A place that can't be reached is said once, and work goes on without it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flatout.base.errors import StoreError

_PATIENCE_S = 20.0
_Answer = TypeVar("_Answer")


class SharedPlace:
    """`objects/` and `results/` as in a local store. Nothing here counts before its content was compared."""

    def __init__(self, url: str, notes: list[str], patience_s: float = _PATIENCE_S) -> None:
        self.url = url
        self._notes = notes
        self._patience_s = patience_s
        self._filesystem: Any = None
        self._folder = ""
        self._gone = False

    def read(self, name: str) -> bytes | None:
        """None if it is not there, or nobody answers."""
        return self._asked(lambda: self._read(name), self._patience_s)

    def fetch(self, name: str, to: Path) -> bool:
        return self._asked(lambda: self._fetch(name, to), None) or False

    def has(self, name: str, size: int) -> bool:
        return self._asked(lambda: self._size(name) == size, self._patience_s) or False

    def send(self, source: Path, name: str) -> None:
        self._asked(lambda: self._send(source, name), None)

    def _read(self, name: str) -> bytes | None:
        try:
            return bytes(self._reached().cat_file(f"{self._folder}/{name}"))
        except FileNotFoundError:
            return None

    def _fetch(self, name: str, to: Path) -> bool:
        try:
            self._reached().get_file(f"{self._folder}/{name}", str(to))
        except FileNotFoundError:
            return False
        return True

    def _size(self, name: str) -> int | None:
        try:
            return int(self._reached().info(f"{self._folder}/{name}")["size"])
        except FileNotFoundError:
            return None

    def _send(self, source: Path, name: str) -> None:
        """Under another name first where that is cheap; an object store shows a file only when all of it has arrived."""
        filesystem, path = self._reached(), f"{self._folder}/{name}"
        filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        if "file" in filesystem.protocol:
            aside = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
            try:
                filesystem.put_file(str(source), aside)
                os.replace(aside, path)
            except BaseException:
                Path(aside).unlink(missing_ok=True)
                raise
        else:
            filesystem.put_file(str(source), path)

    def _reached(self) -> Any:
        if self._filesystem is None:
            from fsspec.core import url_to_fs

            self._filesystem, folder = url_to_fs(self.url)
            self._folder = str(folder).rstrip("/")
        return self._filesystem

    def _asked(self, question: Callable[[], _Answer], patience_s: float | None) -> _Answer | None:
        if self._gone:
            return None
        answers: list[_Answer] = []
        errors: list[Exception] = []

        def ask() -> None:
            try:
                answers.append(question())
            except Exception as error:  # every store raises its own kinds
                errors.append(error)

        asking = threading.Thread(target=ask, daemon=True)  # a store that hangs must not hold up the end of the process
        asking.start()
        asking.join(patience_s)
        if answers:
            return answers[0]
        self._gone = True
        why = f"{type(errors[0]).__name__}: {errors[0]}" if errors else f"no answer within {self._patience_s:g} s"
        self._notes.append(f"the shared results at {self.url} can't be used, going on without them: {why}")
        return None


def shared_place(url: str | None, notes: list[str]) -> SharedPlace | None:
    if url is not None and not url.strip():
        raise StoreError("the place of shared results is empty: give a folder or a URL such as s3://bucket/results, or none")
    return None if url is None else SharedPlace(url, notes)
