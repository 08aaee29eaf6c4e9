"""Redirects Python's file calls to the trial's folder, for kernels that refuse writes but can't redirect them.

Writes of C libraries and subprocesses are not redirected; the caller must block them.
"""

from __future__ import annotations

import errno
import importlib.machinery
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from flatout.boost.protection.merged import Merged, is_folder, plain
from flatout.doctor.patches import Patches

_REAL = ("/dev", "/proc", "/sys")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_LOOKS = ("stat", "access", "statvfs", "getxattr", "listxattr", "lstat", "readlink")
_LINKS_THEMSELVES = ("lstat", "readlink")
_CHANGES = ("truncate", "chmod", "chown", "utime", "setxattr", "removexattr", "lchown")


class Redirect:
    def __init__(self, folder: Path, open_to: Iterable[Path]) -> None:
        self._merged = Merged(str(folder))
        self._open_to = (*_REAL, *(os.path.realpath(place) for place in open_to))

    def install(self, patches: Patches) -> None:
        replaced: dict[int, Any] = {id(plain.open_file): self._open(plain.open_file), id(plain.open): self._open_number()}
        for name in (*_LOOKS, *_CHANGES):
            replaced[id(getattr(os, name))] = self._of_path(getattr(os, name), changes=name in _CHANGES)
        for original, instead in (
            (os.mkdir, self._mkdir), (os.rmdir, self._rmdir), (os.unlink, self._unlink), (os.remove, self._unlink),
            (os.rename, self._rename), (os.replace, self._rename), (os.link, self._link), (os.symlink, self._symlink),
            (os.mkfifo, self._special(os.mkfifo)), (os.mknod, self._special(os.mknod)), (os.listdir, self._listdir),
            (os.scandir, self._scandir), (os.chdir, self._chdir), (os.getcwd, self._getcwd), (os.getcwdb, self._getcwdb),
        ):  # fmt: skip
            replaced[id(original)] = instead
        for module in [module for name, module in sys.modules.items() if not name.startswith("flatout.boost.protection")]:
            _replace_names(module, replaced, patches)
        for owner, name, argument, at, writes in (
            (torch, "save", "f", 1, True), (torch, "load", "f", 0, False),
            (torch.jit, "save", "f", 1, True), (torch.jit, "load", "f", 0, False),
            (sqlite3, "connect", "database", 0, True),
            (sys.modules.get("safetensors.torch"), "save_file", "filename", 1, True),
        ):  # fmt: skip
            if owner is not None:
                patches.wrap(owner, name, partial(self._of_library, name=argument, at=at, writes=writes))
        patches.wrap(importlib.machinery.SourceFileLoader, "get_data", self._get_data)
        openers = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)  # numpy keeps its own table
        if openers is not None and openers.keys():  # the call fills the table
            openers._file_openers[None] = replaced[id(plain.open_file)]

    def _place(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The full path, or None if the call is not redirected: an open file, or an allowed folder."""
        if isinstance(path, int) or not isinstance(path, str | bytes | os.PathLike):
            return None
        whole = self._merged.whole(path, dir_fd)
        if whole.startswith("/dev/shm/"):
            return whole
        return None if any(whole == one or whole.startswith(one + "/") for one in self._open_to) else whole

    # opening

    def _open(self, original: Any) -> Any:
        def open(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            whole = self._place(file)
            if whole is None or not isinstance(mode, str):
                return original(file, mode, *args, **named)
            flags = 0
            if any(letter in mode for letter in "wax+"):
                flags = os.O_RDWR | (0 if "r" in mode else os.O_CREAT)
                flags |= os.O_TRUNC if "w" in mode else os.O_EXCL if "x" in mode else 0
            return original(self._opened(whole, flags), mode, *args, **named)

        return open

    def _open_number(self) -> Any:
        def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
            whole = self._place(path, dir_fd)
            if whole is None:
                return plain.open(path, flags, mode, dir_fd=dir_fd)
            there = self._opened(whole, flags & (_WRITES | os.O_EXCL) if flags & _WRITES else 0, flags & os.O_NOFOLLOW == 0)
            return plain.open(there, flags, mode)

        return open

    def _opened(self, whole: str, flags: int, follows: bool = True) -> str:
        """The real location of a file opened with these flags."""
        if flags & os.O_EXCL and self._merged.found(whole) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), whole)
        whole = self._merged.followed(whole) if follows else whole
        if not flags:
            return self._merged.is_there(whole)
        if self._merged.found(whole) is None and flags & os.O_CREAT:
            return self._merged.make_way(whole)
        if flags & os.O_TRUNC and flags & os.O_CREAT and not is_folder(self._merged.is_there(whole)):
            return self._merged.make_way(whole)
        return self._merged.bring(whole, with_content=False)

    # reading and changing

    def _of_path(self, original: Any, changes: bool) -> Any:
        name = original.__name__

        def call(path: Any, *args: Any, dir_fd: int | None = None, follow_symlinks: bool = True, **named: Any) -> Any:
            whole = self._place(path, dir_fd)
            if whole is None:
                more: dict[str, Any] = {} if dir_fd is None else {"dir_fd": dir_fd}
                more |= {} if follow_symlinks else {"follow_symlinks": False}
                return original(path, *args, **more, **named)
            follows = follow_symlinks and name not in _LINKS_THEMSELVES
            whole = self._merged.followed(whole) if follows else whole
            if name == "access" and self._merged.found(whole) is None:
                return False
            there = self._merged.bring(whole, with_content=False) if changes else self._merged.is_there(whole)
            return original(there, *args, **({} if follow_symlinks else {"follow_symlinks": False}), **named)

        return call

    def _listdir(self, path: Any = ".") -> Any:
        whole = self._folder(path)
        if whole is None:
            return plain.listdir(path)
        names = self._merged.names(whole)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def _scandir(self, path: Any = ".") -> Any:
        whole = self._folder(path)
        if whole is None:
            return plain.scandir(path)
        shown = "" if isinstance(path, int) else os.fsdecode(path)
        return _Entries(_Entry(os.path.join(shown, name), self._merged.is_there(f"{whole}/{name}"), whole, name, self._merged)
                        for name in self._merged.names(whole))  # fmt: skip

    def _folder(self, path: Any) -> str | None:
        if isinstance(path, int):
            whole = self._place(f"/proc/self/fd/{path}") or self._place(plain.readlink(f"/proc/self/fd/{path}"))
        else:
            whole = self._place(path)
        if whole is None:
            return None
        whole = self._merged.followed(whole)
        if not is_folder(self._merged.is_there(whole)):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return whole

    def _chdir(self, path: Any) -> None:
        whole = self._folder(path) if not isinstance(path, int) else self._place(plain.readlink(f"/proc/self/fd/{path}"))
        self._merged.go_to(whole) if whole is not None else plain.chdir(path)

    def _getcwd(self) -> str:
        return self._merged.here

    def _getcwdb(self) -> bytes:
        return os.fsencode(self._merged.here)

    # making, removing and moving

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if (there := self._new(path, dir_fd)) is None:
            return plain.mkdir(path, mode, dir_fd=dir_fd)
        plain.mkdir(there, mode)

    def _special(self, original: Any) -> Any:
        def make(path: Any, *args: Any, dir_fd: int | None = None, **named: Any) -> Any:
            there = self._new(path, dir_fd)
            return original(path if there is None else there, *args, **named)

        return make

    def _new(self, path: Any, dir_fd: int | None) -> str | None:
        whole = self._place(path, dir_fd)
        if whole is None:
            return None
        if self._merged.found(whole) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return self._merged.make_way(whole)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        whole = self._place(path, dir_fd)
        plain.rmdir(path, dir_fd=dir_fd) if whole is None else self._merged.remove_folder(whole)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        whole = self._place(path, dir_fd)
        plain.unlink(path, dir_fd=dir_fd) if whole is None else self._merged.remove(whole)

    def _rename(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        source, target = self._place(src, src_dir_fd), self._place(dst, dst_dir_fd)
        if source is not None and target is not None:
            return self._merged.move(source, target)
        there = src if source is None else self._merged.bring(source)
        plain.rename(there, dst if target is None else self._merged.make_way(target))
        if source is not None:
            self._merged.hide(source)

    def _link(self, src: Any, dst: Any, **named: Any) -> None:
        source, target = self._place(src, named.pop("src_dir_fd", None)), self._new(dst, named.pop("dst_dir_fd", None))
        plain.link(src if source is None else self._merged.bring(source), dst if target is None else target, **named)

    def _symlink(self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        target = self._new(dst, dir_fd)
        plain.symlink(src, dst if target is None else target, target_is_directory)

    # functions of libraries

    def _of_library(self, original: Any, name: str, at: int, writes: bool) -> Any:
        """A library's function that takes a path as argument `at` or by name."""

        def call(*args: Any, **named: Any) -> Any:
            given: Any = named if name in named else list(args)
            key: Any = name if name in named else at
            path = named.get(name, args[at] if len(args) > at else None)
            whole = self._place(path)
            if whole is None or path == ":memory:" or named.get("uri"):
                return original(*args, **named)
            given[key] = self._opened(whole, os.O_RDWR | os.O_CREAT if writes else 0)
            return original(*args, **given) if given is named else original(*given, **named)

        return call

    def _get_data(self, original: Any) -> Any:
        def get_data(loader: Any, path: str) -> Any:
            whole = self._place(path)
            return original(loader, path if whole is None else self._merged.is_there(self._merged.followed(whole)))

        return get_data


class _Entry:
    """Replaces os.DirEntry."""

    def __init__(self, path: str, there: str, folder: str, name: str, merged: Merged) -> None:
        self.name, self.path = name, path
        self._there, self._whole, self._merged = there, f"{folder.rstrip('/')}/{name}", merged

    def __fspath__(self) -> str:
        return self.path

    def _status(self, follow_symlinks: bool) -> os.stat_result | None:
        try:
            return self.stat(follow_symlinks=follow_symlinks)
        except FileNotFoundError:
            return None

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        there = self._merged.is_there(self._merged.followed(self._whole)) if follow_symlinks else self._there
        return plain.lstat(there)

    def inode(self) -> int:
        return plain.lstat(self._there).st_ino

    def is_symlink(self) -> bool:
        return _is(self._status(False), "S_ISLNK")

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return _is(self._status(follow_symlinks), "S_ISDIR")

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return _is(self._status(follow_symlinks), "S_ISREG")

    def is_junction(self) -> bool:
        return False


def _is(status: os.stat_result | None, kind: str) -> bool:
    import stat

    return status is not None and bool(getattr(stat, kind)(status.st_mode))


class _Entries:
    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def close(self) -> None:
        self._entries = iter(())

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _replace_names(module: Any, replaced: dict[int, Any], patches: Patches) -> None:
    """Also replaces names that a module has imported: `from os import remove`."""
    for name, value in list(getattr(module, "__dict__", {}).items()):
        if id(value) in replaced and callable(value):
            patches.wrap(module, name, _instead(replaced[id(value)]))


def _instead(call: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda original: call


def temporary_files_in(folder: str, patches: Patches) -> None:
    """For Python and, through the environment, for programs that it starts. Includes sockets."""
    patches.wrap(tempfile, "tempdir", lambda original: folder)
    os.environ["TMPDIR"] = folder
