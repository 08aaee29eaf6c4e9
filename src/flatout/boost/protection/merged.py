"""The files a trial sees when Python's calls are redirected: the real files, overlaid with the trial's own changes.

Files that it writes go to a separate folder under the same path. Files that it deletes or replaces are remembered and hidden.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import shutil
import stat
from typing import Any

_MOST_LINKS = 40


class plain:
    """Python's original calls, for use by their replacements."""

    stat, lstat, listdir, readlink, access = os.stat, os.lstat, os.listdir, os.readlink, os.access
    mkdir, rmdir, unlink, rename, link, symlink = os.mkdir, os.rmdir, os.unlink, os.rename, os.link, os.symlink
    open, getcwd, chdir, scandir = os.open, os.getcwd, os.chdir, os.scandir
    open_file = io.open


class Merged:
    def __init__(self, folder: str) -> None:
        """`folder` holds what the trial writes."""
        self._folder = folder
        self._gone: set[str] = set()
        self._here: str | None = None  # the current folder, if the trial changed it

    def whole(self, path: Any, dir_fd: int | None = None) -> str:
        """The full path as the script sees it."""
        base = (self._here or plain.getcwd()) if dir_fd is None else plain.readlink(f"/proc/self/fd/{dir_fd}")
        joined = posixpath.normpath(posixpath.join(base, os.fsdecode(path)))
        if joined == self._folder or joined.startswith(self._folder + "/"):  # the trial's folder, through a descriptor
            return joined[len(self._folder) :] or "/"
        return joined

    def own(self, whole: str) -> str:
        return self._folder + whole

    def found(self, whole: str) -> str | None:
        """The real location, or None if the script sees no file there. Does not follow links."""
        own = self.own(whole)
        if _lexists(own):
            return own
        return whole if not self._is_hidden(whole) and _lexists(whole) else None

    def followed(self, whole: str) -> str:
        """The full path after following links."""
        for _ in range(_MOST_LINKS):
            found = self.found(whole)
            if found is None or not stat.S_ISLNK(plain.lstat(found).st_mode):
                return whole
            whole = posixpath.normpath(posixpath.join(posixpath.dirname(whole), plain.readlink(found)))
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), whole)

    def is_there(self, whole: str) -> str:
        """Like `found`, but raises FileNotFoundError if there is no file."""
        found = self.found(whole)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), whole)
        return found

    def names(self, whole: str) -> list[str]:
        own = self.own(whole)
        mine = plain.listdir(own) if is_folder(own) else []
        real = plain.listdir(whole) if self._seen_folder(whole) else []
        return sorted({*mine, *(name for name in real if posixpath.join(whole, name) not in self._gone)})

    def make_way(self, whole: str) -> str:
        """The location to write it to. Its folder must exist."""
        folder = posixpath.dirname(whole)
        if not is_folder(self.is_there(self.followed(folder))):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), whole)
        _make_folders(self.own(folder))
        return self.own(whole)

    def bring(self, whole: str, with_content: bool = True) -> str:
        """Copies the real file or the whole folder, so that it can be changed."""
        own = self.own(whole)
        if _lexists(own) and not (with_content and is_folder(own)):
            return own
        real = self.is_there(whole)
        self.make_way(whole)
        if stat.S_ISDIR(plain.lstat(real).st_mode):
            _make_folders(own)
            for name in self.names(whole) if with_content else []:
                self.bring(posixpath.join(whole, name))
        elif stat.S_ISLNK(plain.lstat(real).st_mode):
            plain.symlink(plain.readlink(real), own)
        elif stat.S_ISREG(plain.lstat(real).st_mode):
            _copy(real, own)
        return own

    def remove(self, whole: str) -> None:
        if stat.S_ISDIR(plain.lstat(self.is_there(whole)).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), whole)
        if _lexists(self.own(whole)):
            plain.unlink(self.own(whole))
        self._gone.add(whole)

    def remove_folder(self, whole: str) -> None:
        if not stat.S_ISDIR(plain.lstat(self.is_there(whole)).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), whole)
        if self.names(whole):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), whole)
        if _lexists(self.own(whole)):
            plain.rmdir(self.own(whole))
        self._gone.add(whole)

    def move(self, source: str, target: str) -> None:
        is_folder = stat.S_ISDIR(plain.lstat(self.is_there(source)).st_mode)
        found = self.found(target)
        if found is not None and is_folder and self.names(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        if found is not None and not is_folder and stat.S_ISDIR(plain.lstat(found).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
        self.bring(source)
        plain.rename(self.own(source), self.make_way(target))
        self._gone |= {source, target} if is_folder else {source}

    def hide(self, whole: str) -> None:
        self._gone.add(whole)

    def go_to(self, whole: str) -> None:
        whole = self.followed(whole)
        plain.chdir(self.is_there(whole))
        self._here = whole

    @property
    def here(self) -> str:
        return self._here or plain.getcwd()

    def _is_hidden(self, whole: str) -> bool:
        if not self._gone:
            return False
        while whole != "/":
            if whole in self._gone:
                return True
            whole = posixpath.dirname(whole)
        return False

    def _seen_folder(self, whole: str) -> bool:
        return not self._is_hidden(whole) and is_folder(whole)


def _make_folders(folder: str) -> None:
    if not _lexists(folder):
        _make_folders(posixpath.dirname(folder))
        plain.mkdir(folder)


def _copy(real: str, own: str) -> None:
    with plain.open_file(real, "rb") as source, plain.open_file(own, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(plain.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _lexists(path: str) -> bool:
    try:
        plain.lstat(path)
    except (OSError, ValueError):
        return False
    return True
