"""Protection without a mount namespace: the kernel refuses every write outside the allowed folders.

Landlock restricts this process and all its children. It does not cover a file's mode, owner, times and attributes, so a
system call filter reports success for such changes without making them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from flatout.boost.protection.system import (
    LANDLOCK_ADD,
    LANDLOCK_CREATE,
    LANDLOCK_RESTRICT,
    call,
    gain_no_privileges,
    syscall,
)

_VERSION = 1  # flag: return the version
_PATH_BENEATH = 1
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_MAKE_AND_REMOVE = sum(1 << bit for bit in range(4, 13))  # folders, files, links, pipes, sockets, devices
_OF_FILES = _WRITE_FILE | _TRUNCATE
_DEVICES = ("/dev", "/proc/self")  # a terminal, a GPU, shared memory of workers; a thread's name


def version() -> int:
    """0 if the kernel has no Landlock."""
    try:
        return syscall(LANDLOCK_CREATE, None, 0, _VERSION)
    except OSError:
        return 0


def enter(open_to: Iterable[Path]) -> None:
    """OSError if the kernel does not allow it."""
    known = version()
    if not known:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    handled = _WRITE_FILE | _MAKE_AND_REMOVE | (_REFER if known >= 2 else 0) | (_TRUNCATE if known >= 3 else 0)
    rules = syscall(LANDLOCK_CREATE, ctypes.c_char_p(struct.pack("=Q", handled)), 8, 0)
    try:
        for place in [*_DEVICES, *map(str, open_to)]:
            _allow(rules, place, handled)
        gain_no_privileges()
        _ignore_changes_of_metadata(without_truncate=known < 3)
        syscall(LANDLOCK_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, place: str, rights: int) -> None:
    try:
        handle = os.open(place, os.O_PATH)
    except FileNotFoundError:
        return
    try:
        rule = struct.pack("=Qi", rights if os.path.isdir(place) else rights & _OF_FILES, handle)
        syscall(LANDLOCK_ADD, rules, _PATH_BENEATH, ctypes.c_char_p(rule), 0)
    finally:
        os.close(handle)


# all variants of chmod, chown, utime and setxattr, by processor; then truncate, for old kernels
_METADATA = {
    "x86_64": (
        90, 91, 92, 93, 94, 132, 188, 189, 190, 197, 198, 199, 235, 260, 261, 268, 280, 452, 463, 466, 469,
    ),
    "aarch64": (5, 6, 7, 14, 15, 16, 52, 53, 54, 55, 88, 452, 463, 466, 469),
}  # fmt: skip
_TRUNCATES = {"x86_64": 76, "aarch64": 45}
_OPENS = {"x86_64": (2, 1), "aarch64": (-1, -1)}  # open(2) and the index of its flags; arm has only openat
_OPENAT = {"x86_64": (257, 2), "aarch64": (56, 2)}
_OPENAT2 = 437  # a filter can't read its flags in memory; callers fall back to openat
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOW, _ANSWER = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _ANY_SET, _RETURN, _AND = 0x20, 0x15, 0x45, 0x06, 0x54
_X32 = 0x40000000


def _ignore_changes_of_metadata(without_truncate: bool) -> None:
    machine = platform.machine()
    if machine not in _METADATA:
        raise OSError(errno.ENOSYS, f"there is no system call filter for {machine}")
    blocks: list[list[tuple[int, int, int, int]]] = [_answered(number, 0) for number in _METADATA[machine]]
    if without_truncate:
        blocks += [_answered(_TRUNCATES[machine], errno.EACCES), _answered(_OPENAT2, errno.ENOSYS)]
        blocks += [_no_truncating(*one) for one in (_OPENS[machine], _OPENAT[machine]) if one[0] >= 0]
    program = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _ARCHITECTURE[machine]),
        (_RETURN, 0, 0, _ANSWER | errno.ENOSYS),  # another architecture's calls (a 32-bit program's) have other numbers
        (_LOAD, 0, 0, 0),
        *([(_ANY_SET, 0, 1, _X32), (_RETURN, 0, 0, _ANSWER | errno.ENOSYS)] if machine == "x86_64" else []),
        *(one for block in blocks for one in block),
        (_RETURN, 0, 0, _ALLOW),
    ]
    _install(program)


def _answered(number: int, error: int) -> list[tuple[int, int, int, int]]:
    return [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ANSWER | error)]


def _no_truncating(number: int, place: int) -> list[tuple[int, int, int, int]]:
    """Refuses O_TRUNC on a file that is opened for reading."""
    return [
        (_EQUAL, 0, 5, number),
        (_LOAD, 0, 0, 16 + 8 * place),
        (_ANY_SET, 0, 2, os.O_TRUNC),
        (_ANY_SET, 1, 0, os.O_WRONLY | os.O_RDWR),  # Landlock decides about these
        (_RETURN, 0, 0, _ANSWER | errno.EACCES),
        (_LOAD, 0, 0, 0),
    ]


def _install(program: Sequence[tuple[int, int, int, int]]) -> None:
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    code = b"".join(struct.pack("=HBBI", *one) for one in program)
    asked = Program(len(program), code)
    call("prctl", 22, 2, ctypes.byref(asked))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
