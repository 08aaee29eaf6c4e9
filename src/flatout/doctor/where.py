"""Finds the line of the user's code that caused something: the nearest frame outside all libraries."""

from __future__ import annotations

import linecache
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType

_HOMES = tuple(
    os.path.realpath(path) + os.sep
    for path in {
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),  # flatout itself
    }
)
_COMMAND = "flatout"  # the installed command, next to python
_known: dict[str, bool] = {}
_STARTED_IN = os.getcwd()  # paths stay relative to this folder if the script changes it


def is_own(filename: str) -> bool:
    """Is this the user's file, and not part of Python, an installed library or flatout?"""
    known = _known.get(filename)
    if known is None:
        real = os.path.realpath(filename)
        a_library = real.startswith(_HOMES) or "site-packages" + os.sep in real
        known = not filename.startswith("<") and not a_library and os.path.basename(real) != _COMMAND
        _known[filename] = known
    return known


def own_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def place(filename: str, line: int) -> str:
    """The path relative to the start folder, if that is shorter."""
    return f"{_shown(filename)}:{line}"


def source_of(place: str) -> list[str]:
    """The lines of the file of a place, also if the script has changed its folder."""
    return linecache.getlines(os.path.join(_STARTED_IN, place.rpartition(":")[0]))


def caller() -> str:
    """The line of the user's code that led here, or ""."""
    for frame in own_frames(sys._getframe(1)):
        return place(frame.f_code.co_filename, frame.f_lineno)
    return ""


_shown_names: dict[str, str] = {}


def _shown(filename: str) -> str:
    known = _shown_names.get(filename)
    if known is None:
        path = os.path.abspath(filename)
        try:
            relative = os.path.relpath(path, _STARTED_IN)
        except (ValueError, OSError):  # another drive, or a deleted folder
            relative = path
        known = _shown_names[filename] = relative if len(relative) < len(path) and not relative.startswith("..") else path
    return known
