"""Gives a trial its own view of all files: an overlay over the file system, in a mount namespace.

The kernel redirects every write to the scratch folder, from Python, C libraries and subprocesses alike. Deleted files are gone
in this view only. Root uses a mount namespace directly; other users need a user namespace around it.

    /            a memory disk with the folders below
    /home, ...   overlays: read from the real folder, written to the scratch folder
    /dev, /sys   the real ones, read-only (devices still work); /dev/shm is an overlay
    /proc        the real one, /proc/sys read-only
    sockets      the real ones: connecting to one changes no file
    open folders the real ones, writable: flatout's answers and the caches of compilers
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from flatout.boost.protection.system import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_PRIVATE,
    MS_REC,
    bind,
    change_root,
    drop_capabilities,
    make_read_only,
    mount,
    unshare,
)

_AS_IT_IS = ("/proc", "/sys", "/dev")
_SHARED_MEMORY = "/dev/shm"
_COPIED_BYTES = 8 << 20  # a file next to a mount is copied up to this size, else it is read-only
_MOST_SOCKETS = 500


def enter(scratch: Path, open_to: Iterable[Path]) -> None:
    """From here on, this process and its children see the overlay. OSError if the kernel does not allow it."""
    here = os.getcwd()
    as_root = _enter_namespaces()
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    view = _View(str(scratch.resolve()), as_root)
    view.lay("/")
    for place in open_to:
        view.open(os.path.realpath(place))
    view.connect_sockets()
    change_root(view.root)
    os.chdir(here)
    if os.geteuid() != 0:
        drop_capabilities()


def _enter_namespaces() -> bool:
    """True if this process may mount without a user namespace."""
    try:
        unshare(CLONE_NEWNS)
        return True
    except PermissionError:
        with _ids_mapped():
            unshare(CLONE_NEWUSER | CLONE_NEWNS)
        return False


@contextmanager
def _ids_mapped() -> Iterator[None]:
    """Keeps all user and group ids in a user namespace that is created inside this `with`."""
    user, group = os.geteuid(), os.getegid()
    begun, begin = os.pipe()
    helper = _maps_all_ids(os.getpid(), begun, begin) if user == 0 else None
    try:
        yield
    finally:
        os.close(begun)
        os.close(begin)  # lets the helper continue
        mapped = helper is not None and os.waitpid(helper, 0)[1] == 0
    if not mapped:  # without root, a process may map only its own ids
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _maps_all_ids(whose: int, begun: int, begin: int) -> int:
    """Starts a process outside the namespace that maps all known ids into it, so that root can read everybody's files."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.close(begin)
        os.read(begun, 1)
        for name in ("uid_map", "gid_map"):
            known = [line.split() for line in Path(f"/proc/self/{name}").read_text().splitlines()]
            Path(f"/proc/{whose}/{name}").write_text("".join(f"{first} {first} {n}\n" for first, _, n in known))
        code = 0
    finally:
        os._exit(code)


class _View:
    def __init__(self, scratch: str, as_root: bool) -> None:
        self._scratch, self._as_root = scratch, as_root
        self._mounts = _mount_points()
        self._count = 0
        self.root, self._memory = (self._memory_disk(name) for name in ("root", "memory"))

    def _memory_disk(self, name: str) -> str:
        place = os.path.join(self._scratch, name)
        os.mkdir(place)
        mount("tmpfs", place, "tmpfs", 0, "mode=0755")
        return place

    def lay(self, place: str) -> None:
        """Sets up what the trial sees at `place`."""
        if place in _AS_IT_IS:
            self._as_it_is(place)
        elif place == "/" or not self._overlaid(place):
            if self._below(place):
                self._entry_by_entry(place)
            else:
                self._read_only(place)
        else:
            for inside in self._below(place):
                self.lay(inside) if os.path.isdir(inside) else self._file(inside)

    def open(self, place: str) -> None:
        """Shows the real folder, writable."""
        with suppress(FileNotFoundError):
            bind(place, self.root + place)

    def connect_sockets(self) -> None:
        """Binds the real sockets: seen through an overlay they refuse connections, and name services and MPS need them."""
        for place in _sockets()[:_MOST_SOCKETS]:
            if not place.startswith(tuple(f"{one}/" for one in _AS_IT_IS)):
                with suppress(OSError):
                    bind(place, self.root + place)

    def _below(self, place: str) -> list[str]:
        """The outermost mount points below `place`."""
        inside = [one for one in self._mounts if one.startswith(place.rstrip("/") + "/")]
        return [one for one in inside if not any(one.startswith(other + "/") for other in inside)]

    def _overlaid(self, place: str) -> bool:
        """False if it can't be overlaid: it contains mounts (in a user namespace), or its file system does not support it."""
        try:
            lower = os.open(place, os.O_PATH)
        except OSError:
            return False
        try:
            self._make_folder(place)
            holds_scratch = self._scratch.startswith(place + "/")  # the kernel refuses nested layers
            bases = [self._memory] if holds_scratch or place == _SHARED_MEMORY else [self._scratch, self._memory]
            return any(self._overlay(lower, place, base) for base in bases)
        finally:
            os.close(lower)

    def _overlay(self, lower: int, place: str, base: str) -> bool:
        self._count += 1
        upper, work = (os.path.join(base, f"{name}{self._count}") for name in ("upper", "work"))
        for folder in (upper, work):
            os.mkdir(folder)
        _like(os.stat(lower), upper)
        handles = [lower, os.open(upper, os.O_PATH), os.open(work, os.O_PATH)]
        # by descriptor, because paths may contain the commas and colons that separate options
        layers = "lowerdir=/proc/self/fd/{},upperdir=/proc/self/fd/{},workdir=/proc/self/fd/{}".format(*handles)
        try:
            mount("overlay", self.root + place, "overlay", 0, layers + ("" if self._as_root else ",userxattr"))
            return True
        except OSError:
            return False
        finally:
            for handle in handles[1:]:
                os.close(handle)

    def _as_it_is(self, place: str) -> None:
        self._make_folder(place)
        bind(place, self.root + place, with_mounts_below=True)
        if place == "/proc":
            bind("/proc/sys", f"{self.root}/proc/sys", with_mounts_below=True)
            make_read_only(f"{self.root}/proc/sys")
        else:
            make_read_only(self.root + place)
        if place == "/dev" and os.path.isdir(_SHARED_MEMORY) and not self._overlaid(_SHARED_MEMORY):
            mount("tmpfs", self.root + _SHARED_MEMORY, "tmpfs", 0, "mode=1777")

    def _entry_by_entry(self, place: str) -> None:
        """Recreates the folder on the memory disk, entry by entry."""
        self._make_folder(place)
        try:
            entries = list(os.scandir(place))
        except OSError:
            return self._read_only(place)
        for entry in entries:
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), self.root + entry.path)
            elif entry.is_dir():
                self.lay(entry.path)
            else:
                self._file(entry.path)

    def _file(self, place: str) -> None:
        """A copy if the file is small and writable, else the real file, read-only."""
        new, known = self.root + place, os.stat(place)
        if not os.path.lexists(new):
            if stat.S_ISREG(known.st_mode) and known.st_size <= _COPIED_BYTES and os.access(place, os.R_OK | os.W_OK):
                shutil.copyfile(place, new)
                return _like(known, new)
            os.close(os.open(new, os.O_CREAT | os.O_WRONLY))
        bind(place, new)
        make_read_only(new)

    def _read_only(self, place: str) -> None:
        bind(place, self.root + place, with_mounts_below=True)
        make_read_only(self.root + place)

    def _make_folder(self, place: str) -> None:
        if not os.path.isdir(self.root + place):
            os.mkdir(self.root + place)
            _like(os.stat(place), self.root + place)


def _like(known: os.stat_result, copy: str) -> None:
    with suppress(OSError):  # without the right to do so, the copy belongs to this user
        os.chown(copy, known.st_uid, known.st_gid)
    os.chmod(copy, stat.S_IMODE(known.st_mode))


def _mount_points() -> Sequence[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), line.split()[4]) for line in lines]
    return sorted(place for place in set(places) if os.path.lexists(place))


def _sockets() -> list[str]:
    """Paths of sockets on which a process listens."""
    with suppress(OSError):
        fields = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]]
        return sorted({one[7] for one in fields if len(one) == 8 and one[7].startswith("/")})
    return []
