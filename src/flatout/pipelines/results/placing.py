"""Between a store and a folder: outputs are taken in, and put back in their place as a whole."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from flatout.base.errors import DamagedFile, DataError
from flatout.pipelines.identity.hashing import moment
from flatout.pipelines.identity.inputs import InputHashes, files_below
from flatout.pipelines.results.objects import ObjectFolder
from flatout.pipelines.results.stored import StoredFile, StoredOutput

_EXECUTABLE = 0o111


def taken_in(name: str, path: Path, objects: ObjectFolder) -> StoredOutput:
    """DataError if the output is missing or is neither a file nor a folder."""
    if path.is_dir():
        found = list(files_below(str(path)))
        files = tuple(_stored(below, Path(at), objects) for below, at, about in found if about is not None)
        return StoredOutput(name, True, files, tuple(sorted(below for below, _, about in found if about is None)))
    if not path.is_file():
        raise DataError(f"the output {path} does not exist: a stage has to write every output that it declares")
    return StoredOutput(name, False, (_stored("", path, objects),))


def _stored(below: str, path: Path, objects: ObjectFolder) -> StoredFile:
    digest, size = objects.add(path)
    return StoredFile(below, digest, size, bool(path.stat().st_mode & stat.S_IXUSR))


def is_in_place(output: StoredOutput, folder: Path, hashes: InputHashes) -> bool:
    path = folder / output.name
    if not path.exists() or path.is_dir() != output.is_folder:
        return False
    found = list(files_below(str(path))) if output.is_folder else [("", str(path), path.stat())]
    there = {below: (at, about) for below, at, about in found if about is not None}
    wanted = {file.path: file for file in output.files}
    if there.keys() != wanted.keys() or {below for below, _, about in found if about is None} != set(output.folders):
        return False
    digests = hashes.of_files(path, {below: (at, moment(about)) for below, (at, about) in there.items()})
    return all(
        digests[below].digest == file.digest and bool(there[below][1].st_mode & stat.S_IXUSR) == file.executable
        for below, file in wanted.items()
    )


def place(output: StoredOutput, folder: Path, objects: ObjectFolder, hashes: InputHashes) -> bool:
    """Puts the output in its place; False if it is there already. The whole output is written beside its place first, and then
    takes it in one step, so that nobody sees half of it."""
    if is_in_place(output, folder, hashes):
        return False
    path = folder / output.name
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _remove(aside)
    try:
        if output.is_folder:
            aside.mkdir()
            for below in output.folders:
                (aside / below).mkdir(parents=True, exist_ok=True)
        for file in output.files:
            _copy(file, aside / file.path if output.is_folder else aside, objects)
        if output.is_folder or path.is_dir():
            _remove(path)
        os.replace(aside, path)
    finally:
        _remove(aside)
    return True


def _copy(file: StoredFile, to: Path, objects: ObjectFolder) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(objects.path(file.digest), to)
    except FileNotFoundError as error:
        raise DamagedFile(f"a file of a kept result is gone ({objects.path(file.digest)}): run the stage again") from error
    if file.executable:
        to.chmod(to.stat().st_mode | _EXECUTABLE)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
