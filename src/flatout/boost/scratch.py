"""A trial changes nothing of the person's: what it writes lands in a scratch folder, what it would delete stays.

Files are opened, folders made and things renamed by way of Python; those calls are led to the scratch folder, and what was
written there is read from there. What writes by itself (a subprocess, a library's own C code) can't be led: it is named before
the first trial, and torch's and safetensors' own writers are led by their Python ends.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from flatout.doctor.patches import Patches

NOT_LED = "what a subprocess or a library's own C code writes can't be led to the scratch folder"
_FREE = ("/dev/", "/proc/", "/sys/")


class Scratch:
    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        # kept where they always are: what one trial compiles need not be compiled by the next
        self._free = (*_FREE, cache_dir(), os.path.join(os.path.expanduser("~"), ".triton"))

    def install(self, patches: Patches) -> None:
        temporary = os.path.join(self._folder, "tmp")
        _makedirs(temporary)
        patches.wrap(tempfile, "tempdir", lambda original: temporary)  # sockets lie there, too, and can't be led
        patches.wrap(builtins, "open", self._opening)
        patches.wrap(io, "open", self._opening)
        patches.wrap(os, "open", self._opening_by_number)
        for name in ("mkdir", "rmdir", "remove", "unlink", "truncate", "chmod", "utime"):
            patches.wrap(os, name, self._changing)
        for name in ("rename", "replace", "link", "symlink"):
            patches.wrap(os, name, self._moving)
        for name in ("stat", "lstat", "listdir", "scandir", "access"):
            patches.wrap(os, name, self._looking)
        patches.wrap(shutil, "rmtree", self._removing_tree)
        patches.wrap(torch, "save", self._saving)
        patches.wrap(torch, "load", self._loading)
        if "safetensors.torch" in sys.modules:
            patches.wrap(sys.modules["safetensors.torch"], "save_file", self._saving)

    def led(self, path: Any) -> str:
        """Where writing to this path goes."""
        whole = os.path.abspath(os.fsdecode(path))
        if whole.startswith((self._folder + os.sep, *self._free)) or whole in (self._folder, os.devnull):
            return whole
        there = self._folder + whole
        _makedirs(os.path.dirname(there))
        return there

    def found(self, path: Any) -> Any:
        """Where reading from this path looks: what was written here comes before what was there."""
        if isinstance(path, int):
            return path
        try:
            there = self.led_without_making(path)
        except TypeError:
            return path
        return there if _exists(there) else path

    def led_without_making(self, path: Any) -> str:
        whole = os.path.abspath(os.fsdecode(path))
        return whole if whole.startswith((self._folder, *self._free)) else self._folder + whole

    def _opening(self, original: Any) -> Any:
        def open(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            if isinstance(file, int) or not isinstance(mode, str):
                return original(file, mode, *args, **named)
            if not any(letter in mode for letter in "wax+"):
                return original(self.found(file), mode, *args, **named)
            there = self.led(file)
            if ("a" in mode or "+" in mode) and "w" not in mode:
                self._brought(file, there)
            return original(there, mode, *args, **named)

        return open

    def _opening_by_number(self, original: Any) -> Any:
        def open(path: Any, flags: int, *args: Any, **named: Any) -> Any:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and named.get("dir_fd") is None:
                there = self.led(path)
                if not flags & os.O_TRUNC:
                    self._brought(path, there)
                return original(there, flags, *args, **named)
            return original(self.found(path) if named.get("dir_fd") is None else path, flags, *args, **named)

        return open

    def _changing(self, original: Any) -> Any:
        name = original.__name__

        def change(path: Any, *args: Any, **named: Any) -> Any:
            # by the number of an open folder: that is how trees are removed, and only those of the scratch folder are
            if isinstance(path, int) or named.get("dir_fd") is not None:
                return original(path, *args, **named)
            there = self.led(path)
            if name == "mkdir":
                if _exists(os.fsdecode(path)) and not _exists(there):
                    raise FileExistsError(17, "File exists", path)
                return original(there, *args, **named)
            if name in ("remove", "unlink", "rmdir") and not _exists(there):
                return None  # it stays; a trial that deletes goes on as if it were gone
            self._brought(path, there)
            return original(there, *args, **named) if _exists(there) else None

        return change

    def _moving(self, original: Any) -> Any:
        def move(source: Any, target: Any, *args: Any, **named: Any) -> Any:
            there, goal = self.led(source), self.led(target)
            self._brought(source, there)
            return original(there, goal, *args, **named)

        return move

    def _looking(self, original: Any) -> Any:
        def look(path: Any = ".", *args: Any, **named: Any) -> Any:
            return original(path if named.get("dir_fd") is not None else self.found(path), *args, **named)

        return look

    def _removing_tree(self, original: Any) -> Any:
        def remove(path: Any, *args: Any, **named: Any) -> Any:
            inside = os.path.abspath(os.fsdecode(path)).startswith(self._folder + os.sep)
            return original(path, *args, **named) if inside else None  # what is the person's stays

        return remove

    def _saving(self, original: Any) -> Any:
        def save(what: Any, where: Any, *args: Any, **named: Any) -> Any:
            led = self.led(where) if isinstance(where, str | os.PathLike) else where
            return original(what, led, *args, **named)

        return save

    def _loading(self, original: Any) -> Any:
        def load(where: Any, *args: Any, **named: Any) -> Any:
            return original(self.found(where) if isinstance(where, str | os.PathLike) else where, *args, **named)

        return load

    def _brought(self, path: Any, there: str) -> None:
        """A file that is changed in place is copied first."""
        real = os.fsdecode(path)
        if _plain_isfile(real) and not _exists(there):
            with _plain_open(real, "rb") as source, _plain_open(there, "wb") as target:
                while piece := source.read(1 << 20):
                    target.write(piece)


_plain_open, _plain_stat, _plain_mkdir = builtins.open, os.stat, os.mkdir


def _exists(path: str) -> bool:
    try:
        _plain_stat(path)
    except (OSError, ValueError):
        return False
    return True


def _plain_isfile(path: str) -> bool:
    import stat

    try:
        return stat.S_ISREG(_plain_stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _makedirs(path: str) -> None:
    if not _exists(path):
        _makedirs(os.path.dirname(path))
        try:
            _plain_mkdir(path)
        except FileExistsError:
            return
