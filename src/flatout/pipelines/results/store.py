"""Results of stages, found by the key of what made them: `find`, `restore`, `keep`.

    <where>/objects/3f/3f1c...     files, by the digest of their content
    <where>/results/<key>.json     which files a result has, what it took, what the stage recorded; one line with a checksum
    <where>/writing/               what is not complete yet
    <where>/lock                   shared by all that read and write; alone only who drops results for room

A result counts only if all of its files have the content that it names. Its line is written last, so a kill at any point leaves
a result or none. `shared` is a second such place that machines have in common: what is missing here is fetched from there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError
from flatout.base.files import write_bytes
from flatout.base.trust import private_cache
from flatout.base.units import show_bytes
from flatout.pipelines.identity.hashing import digests_of_files, moment
from flatout.pipelines.identity.inputs import InputHashes
from flatout.pipelines.results.objects import ObjectFolder, full_disk_said
from flatout.pipelines.results.placing import place, taken_in
from flatout.pipelines.results.room import results_to_drop
from flatout.pipelines.results.shared import shared_place
from flatout.pipelines.results.stored import StoredResult, checked_key, result_of

_AGAIN = "its stage runs again"


class ResultStore:
    """`notes` says what was damaged, out of reach or dropped. `budget` is in bytes; None: no limit. `hashes` can serve for
    inputs of stages as well: an output that is the next stage's input is read once."""

    def __init__(self, where: str | Path, budget: int | None = None, shared: str | None = None) -> None:
        self.notes: list[str] = []
        if "://" in str(where):
            raise StoreError(f"results are kept in a folder of this machine; {where} can be shared beside one")
        self._folder = private_cache(Path(where))
        self._budget = budget
        self._objects = ObjectFolder(self._folder)
        self.hashes = InputHashes(self._folder)
        self._shared = shared_place(shared, self.notes)

    def find(self, key: str) -> StoredResult | None:
        """A result of which every file is here and has its content; a damaged one is none, and `notes` says so."""
        with self._lock(fcntl.LOCK_SH):
            return self._found(checked_key(key))

    def bring_back(self, key: str, folder: Path) -> StoredResult | None:
        """`find` and `restore` at once: no other process can drop the result in between."""
        with full_disk_said(folder), self._lock(fcntl.LOCK_SH):
            found = self._found(checked_key(key))
            if found is not None:
                self._place(found, folder)
            return found

    def keep(self, key: str, outputs: Mapping[str, Path], record: Mapping[str, Any], *, seconds: float) -> StoredResult:
        """`outputs`: files and folders by the relative path at which they are restored; `seconds`: the time to make them."""
        path = self._line_of(checked_key(key))
        with full_disk_said(self._folder), self._lock(fcntl.LOCK_SH):
            earlier = self._read(key, path)
            stored = tuple(taken_in(name, outputs[name], self._objects) for name in sorted(outputs))
            before = {output.name: output for output in earlier.outputs} if earlier is not None else {}
            unlike = tuple(one.name for one in stored if one.name in before and before[one.name] != one)
            result = StoredResult(key, stored, record, seconds, unlike)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, result.to_line())
        for name in unlike:
            self.notes.append(f"{name} differs from an earlier run with the same code and inputs: its stage is not repeatable")
        self._share(result)
        self._make_room()
        return result

    def restore(self, result: StoredResult, folder: Path) -> tuple[str, ...]:
        """The names of outputs that were written; those that are in place already are left alone.

        DamagedFile if another process has dropped the result since it was found: then the stage has to run.
        """
        with full_disk_said(folder), self._lock(fcntl.LOCK_SH):
            return self._place(result, folder)

    def _place(self, result: StoredResult, folder: Path) -> tuple[str, ...]:
        return tuple(output.name for output in result.outputs if place(output, folder, self._objects, self.hashes))

    def _found(self, key: str) -> StoredResult | None:
        path = self._line_of(key)
        found = self._read(key, path)
        if found is not None and not self._is_whole(found):
            path.unlink(missing_ok=True)
            found = None
        return found or self._fetched(key)

    def _line_of(self, key: str) -> Path:
        return self._folder / "results" / f"{key}.json"

    def _read(self, key: str, path: Path) -> StoredResult | None:
        try:
            return result_of(path.read_bytes(), key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            with suppress(OSError):
                path.unlink()
            self.notes.append(f"the kept result {path} is damaged ({error}): {_AGAIN}")
            return None

    def _is_whole(self, result: StoredResult) -> bool:
        files = {}
        for digest in result.digests:
            path = self._objects.path(digest)
            try:
                files[digest] = str(path), moment(path.stat())
            except OSError:
                self.notes.append(f"a file of the kept result {result.key} is gone ({path}): {_AGAIN}")
                return False
        for digest, content in self.hashes.of_files(self._line_of(result.key), files).items():
            if content.digest != digest:
                self.notes.append(f"a file of the kept result {result.key} is damaged ({files[digest][0]}): {_AGAIN}")
                self._objects.remove(digest)
                return False
        return True

    def _fetched(self, key: str) -> StoredResult | None:
        """From the shared place, with every file compared."""
        line = None if self._shared is None else self._shared.read(f"results/{key}.json")
        if line is None or self._shared is None:
            return None
        try:
            result = result_of(line, key)
        except ValueError as error:
            self.notes.append(f"the shared result {key} at {self._shared.url} is damaged ({error}): {_AGAIN}")
            return None
        with full_disk_said(self._folder):
            for digest in result.digests:
                if not self._objects.path(digest).exists() and not self._fetch_object(digest):
                    return None
            path = self._line_of(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, line)
        return result if self._is_whole(result) else None

    def _fetch_object(self, digest: str) -> bool:
        assert self._shared is not None
        with self._objects.place_aside() as (aside, file):
            if not self._shared.fetch(f"objects/{digest[:2]}/{digest}", aside):
                self.notes.append(f"a file of a shared result is not at {self._shared.url} ({digest}): {_AGAIN}")
                return False
            _, found = digests_of_files({"": str(aside)})[""]
            if found != digest:
                self.notes.append(f"a file of a shared result at {self._shared.url} is damaged ({digest}): {_AGAIN}")
                return False
            self._objects.settle(aside, file, digest)
        return True

    def _share(self, result: StoredResult) -> None:
        if self._shared is None:
            return
        for digest, size in result.digests.items():
            name = f"objects/{digest[:2]}/{digest}"
            if not self._shared.has(name, size):
                self._shared.send(self._objects.path(digest), name)
        self._shared.send(self._line_of(result.key), f"results/{result.key}.json")

    def _make_room(self) -> None:
        """Drop what is cheapest to make again. If others are at work here, the next one that keeps a result does it."""
        with suppress(BlockingIOError), self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB):
            self._objects.remove_torn()
            if self._budget is None:
                return
            kept: dict[str, StoredResult] = {}
            for path in sorted((self._folder / "results").glob("*.json")):
                found = self._read(path.stem, path)
                if found is not None:
                    kept[path.stem] = found
            dropped = results_to_drop(kept.values(), self._budget)
            for one in dropped:
                self._line_of(one.key).unlink(missing_ok=True)
                kept.pop(one.key)
            if dropped:
                freed = show_bytes(sum(sum(one.digests.values()) for one in dropped))
                self.notes.append(f"dropped {len(dropped)} kept results ({freed}) to stay below {show_bytes(self._budget)}")
            needed = {digest for one in kept.values() for digest in one.digests}
            for digest in set(self._objects.digests()) - needed:
                self._objects.remove(digest)

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"results can't be kept in {self._folder}: {error.strerror}; choose another folder") from error
        try:
            fcntl.flock(handle, kind)
            yield
        finally:
            os.close(handle)
