"""The Linux system calls for protection that Python does not provide."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
PR_SET_NO_NEW_PRIVS = 38
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY = 1
_CAPABILITY_VERSION = 0x20080522
# from 424 on, numbers are the same on all processors
MOUNT_SETATTR, LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 442, 444, 445, 446
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def call(name: str, *arguments: Any) -> int:
    """Calls a libc function; OSError with the kernel's reason if it fails."""
    return _checked(getattr(_libc, name)(*map(_as_argument, arguments)), name)


def syscall(number: int, *arguments: Any) -> int:
    return _checked(_libc.syscall(ctypes.c_long(number), *map(_as_argument, arguments)), f"syscall {number}")


def _as_argument(value: Any) -> Any:
    if isinstance(value, str | os.PathLike):
        return ctypes.c_char_p(os.fsencode(value))
    return ctypes.c_long(value) if isinstance(value, int) else value


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    call("unshare", flags)


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    call("mount", source, target, kind, flags, options)


def bind(source: str, target: str, with_mounts_below: bool = False) -> None:
    mount(source, target, None, MS_BIND | (MS_REC if with_mounts_below else 0))


def make_read_only(target: str) -> None:
    """Makes a mount and all mounts below it read-only."""

    class MountAttributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]

    asked = MountAttributes(set=_MOUNT_ATTR_RDONLY)
    try:
        syscall(MOUNT_SETATTR, _AT_FDCWD, target, _AT_RECURSIVE, ctypes.byref(asked), ctypes.sizeof(asked))
    except OSError:  # before Linux 5.12: only this mount
        mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY)


def change_root(new: str) -> None:
    """Afterwards, no path reaches the old root."""
    os.chdir(new)
    try:
        syscall(_PIVOT_ROOT[platform.machine()], ".", ".")
        call("umount2", ".", _MNT_DETACH)
    except (KeyError, OSError):  # pivot_root fails if the root is the initial memory disk
        os.chroot(".")
    os.chdir("/")


def drop_capabilities() -> None:
    """Drops the capabilities of the user namespace, so that the script has no more rights than its user."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    call("capset", ctypes.byref(header), ctypes.byref(none))


def gain_no_privileges() -> None:
    """This process and its children can't gain rights by running a program. System call filters require this."""
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def write_past_python(path: os.PathLike[str]) -> None:
    """Creates a file as a C library would. No error if it is refused."""
    handle = _libc.open(os.fsencode(path), os.O_WRONLY | os.O_CREAT, 0o600)
    if handle >= 0:
        os.close(handle)
