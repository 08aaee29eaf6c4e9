"""Files by their content: each is stored once, under its digest, complete or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from flatout.base.errors import StoreError
from flatout.base.files import sync_folder

_PIECE_BYTES = 8 << 20


class ObjectFolder:
    """`objects/3f/3f1c...`, and `writing/` with what is not complete yet; a process that is killed leaves only that."""

    def __init__(self, folder: Path) -> None:
        self._objects, self._writing = folder / "objects", folder / "writing"

    def path(self, digest: str) -> Path:
        return self._objects / digest[:2] / digest

    def add(self, source: Path) -> tuple[str, int]:
        """The digest and the bytes of a file, which is here afterwards."""
        with full_disk_said(self._objects), self.place_aside() as (aside, file):
            content, size = blake3(), 0
            with source.open("rb", buffering=0) as read:
                while piece := read.read(_PIECE_BYTES):
                    content.update(piece)
                    file.write(piece)
                    size += len(piece)
            digest = str(content.hexdigest())
            self.settle(aside, file, digest)
        return digest, size

    @contextmanager
    def place_aside(self) -> Iterator[tuple[Path, BinaryIO]]:
        """A file to write. It is locked as long as its writer lives, and removed at the end unless it has settled."""
        self._writing.mkdir(parents=True, exist_ok=True)
        aside = self._writing / f"{os.getpid()}-{os.urandom(6).hex()}"
        try:
            with aside.open("xb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield aside, file
        finally:
            with suppress(OSError):
                aside.unlink(missing_ok=True)

    def settle(self, aside: Path, file: BinaryIO, digest: str) -> None:
        file.flush()
        os.fsync(file.fileno())
        path = self.path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.chmod(0o444)
        os.replace(aside, path)
        sync_folder(path.parent)

    def remove(self, digest: str) -> None:
        self.path(digest).unlink(missing_ok=True)

    def digests(self) -> Iterator[str]:
        for folder in _listed(self._objects):
            yield from _listed(self._objects / folder)

    def remove_torn(self) -> None:
        """What killed processes left."""
        for name in _listed(self._writing):
            with suppress(OSError), (self._writing / name).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its writer lives: BlockingIOError
                (self._writing / name).unlink()


@contextmanager
def full_disk_said(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"the disk of {place} is full: nothing half-written is left there. Make room, choose a smaller budget "
                "for kept results, or another folder for them"
            ) from error
        raise StoreError(f"a result can't be kept in {place}: {error.strerror or error}") from error


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
