"""The files of a package on disk: written together or not at all, and read only if every one matches the manifest."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any, TypeVar

from flatout.base.errors import (
    DamagedFile,
    DataError,
    FlatoutError,
    MissingFile,
    ModelError,
    NotAPackage,
    StoreError,
    UsageError,
)
from flatout.base.files import json_bytes, parse_json, sync_folder
from flatout.base.sealed import is_sealed, opened, sealed

FORMAT = 1
MANIFEST = "manifest.json"
_ASIDE = ".tmp"
_Made = TypeVar("_Made")
_REMEDY = "copy the package again, or export the run again"


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `target` when all is written; after an error nothing is left."""
    check_is_new(target)
    aside = target.with_name(f".{target.name}.{os.getpid()}{_ASIDE}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_ones(target)
        aside.mkdir()
        yield aside
        for file in aside.iterdir():
            _sync(file)
        sync_folder(aside)
        os.rename(aside, target)  # fails if somebody else made `target` meanwhile
        sync_folder(target.parent)
    except OSError as error:
        raise StoreError(f"{error.filename or target}: {error.strerror or error}; nothing was written") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Like `new_folder`, for one file."""
    check_is_new(target)
    aside = target.with_name(f".{target.name}.{os.getpid()}{_ASIDE}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_ones(target)
        yield aside
        _sync(aside)
        os.rename(aside, target)
        sync_folder(target.parent)
    except OSError as error:
        raise StoreError(f"{error.filename or target}: {error.strerror or error}; nothing was written") from error
    finally:
        aside.unlink(missing_ok=True)


def check_is_new(target: Path) -> None:
    """UsageError if something is there already."""
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} exists already: choose another name with --out, or remove it")


def _remove_left_ones(target: Path) -> None:
    """What exports to `target` left when they were killed."""
    for left in target.parent.glob(f".{escape(target.name)}.*{_ASIDE}"):
        number = left.name.removeprefix(f".{target.name}.").removesuffix(_ASIDE)
        if number.isdecimal() and (int(number) == os.getpid() or not _is_running(int(number))):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _sync(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_manifest(folder: Path, version: str) -> None:
    """The last file to be written: it lists all others."""
    files = {file.name: {"sha256": digest(file), "bytes": file.stat().st_size} for file in sorted(folder.iterdir())}
    (folder / MANIFEST).write_bytes(sealed({"format": FORMAT, "flatout": version, "files": files}) + b"\n")


def digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def is_package(path: Path) -> bool:
    try:
        return (path / MANIFEST).is_file()
    except OSError:  # a name that is too long
        return False


@dataclass(frozen=True)
class PackageFolder:
    """`check` compares every file with the manifest; `read` and `parsed` check the one that they read."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        try:
            content = (self.path / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotAPackage(
                f"{self.path} is no package: it has no {MANIFEST}; flatout export makes one from a run"
            ) from error
        except OSError as error:
            raise StoreError(f"{self.path / MANIFEST} can't be read: {error.strerror}") from error
        try:
            if not content.endswith(b"\n") or not is_sealed(content[:-1]):
                raise ValueError("is incomplete")
            written = opened(content[:-1])
            files = {str(name): (str(entry["sha256"]), int(entry["bytes"])) for name, entry in written["files"].items()}
            form = int(written["format"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedFile(f"{self.path / MANIFEST} {error}; {_REMEDY}") from error
        if form > FORMAT:
            newer = f"made by flatout {written.get('flatout')}, in format {form}"
            raise StoreError(f"{self.path} was {newer}; this flatout reads formats up to {FORMAT}: install a newer one")
        return {**written, "files": files}

    @property
    def hash(self) -> str:
        """Of all its content: names a package in caches and cards."""
        self.manifest  # noqa: B018  an error here names what is wrong with it
        return hashlib.sha256((self.path / MANIFEST).read_bytes()).hexdigest()[:16]

    def names(self) -> set[str]:
        return set(self.manifest["files"])

    def check(self) -> None:
        """DamagedFile names the first file that is changed, missing or not part of the package."""
        names = self.names()
        there = {file.name for file in self.path.iterdir()} - {MANIFEST}
        for name in sorted(names - there):
            raise DamagedFile(f"{self.path / name} is missing; {_REMEDY}")
        for name in sorted(there - names):
            raise DamagedFile(f"{self.path / name} is not part of the package: remove it, or {_REMEDY}")
        for name in sorted(names):
            file = self.path / name
            if not file.is_file():
                raise DamagedFile(f"{file} is not a file; {_REMEDY}")
            try:
                self._compare(name, digest(file), file.stat().st_size)
            except OSError as error:
                raise StoreError(f"{file} can't be read: {error.strerror}") from error

    def read(self, name: str) -> bytes:
        if name not in self.names():
            raise MissingFile(f"{self.path} has no {name}")
        try:
            content = (self.path / name).read_bytes()
        except FileNotFoundError as error:
            raise DamagedFile(f"{self.path / name} is missing; {_REMEDY}") from error
        self._compare(name, hashlib.sha256(content).hexdigest(), len(content))
        return content

    def parsed(self, name: str, build: Callable[[Any], _Made]) -> _Made:
        """`build` applied to the content of a JSON file. Content that it can't use counts as damage."""
        content = self.read(name)
        try:
            return build(parse_json(content))
        except FlatoutError as error:
            if type(error) in (ModelError, DataError, DamagedFile, UsageError):
                raise type(error)(f"{self.path / name}: {error}") from error
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise DamagedFile(f"{self.path / name} can't be used: {why}; {_REMEDY}") from error

    def _compare(self, name: str, sha256: str, size: int) -> None:
        wanted, length = self.manifest["files"][name]
        if size != length:
            raise DamagedFile(f"{self.path / name} has {size} bytes, and {length} when it was exported; {_REMEDY}")
        if sha256 != wanted:
            raise DamagedFile(f"{self.path / name} was changed after the export: its SHA-256 differs; {_REMEDY}")


def write_parsed(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_bytes(json_bytes(content))
