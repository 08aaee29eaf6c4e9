"""Whether code is a library's or the user's own.

A library's is what comes with Python, lies in a folder called site-packages or dist-packages, or was put somewhere by an
installer, which left a `.dist-info` beside it. So torch is a library's wherever PYTHONPATH, a .pth file or an environment
module finds it. A project that is installed as editable stays the user's own.
"""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

_FOLDERS = ("site-packages", "dist-packages")
_OURS = ("flatout", "torch")  # also where somebody has only put them on the path


def is_installed(thing: type | FunctionType | str) -> bool:
    """A class, a function, or a file."""
    if isinstance(thing, str):
        return _is_library_file(thing)
    try:
        file = inspect.getfile(thing)
    except (OSError, TypeError):
        return thing.__module__ != "__main__"  # built into the interpreter, unless typed at its prompt
    return _is_library_file(file)


@functools.lru_cache(maxsize=4096)
def _is_library_file(file: str) -> bool:
    path = Path(file)
    places = {path.absolute(), path.resolve()}
    if any(part in _FOLDERS for place in places for part in place.parts):
        return True
    roots = [*_standard_library(), *_own_roots()]
    if any(place.is_relative_to(root) for place in places for root in roots):
        return True
    return any(_was_installed(place) for place in places)


@functools.cache
def _standard_library() -> tuple[Path, ...]:
    found = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple({place for path in found for place in (path, path.resolve())})


def _own_roots() -> Iterator[Path]:
    for name in _OURS:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            yield Path(file).absolute().parent
            yield Path(file).resolve().parent


def _was_installed(file: Path) -> bool:
    """An installer put it into one of the folders that Python looks into."""
    entries = {Path(entry).absolute() for entry in sys.path if entry}
    entries |= {entry.resolve() for entry in entries}
    return any(file.relative_to(folder).parts[0] in _installed_names(folder) for folder in file.parents if folder in entries)


@functools.lru_cache(maxsize=64)
def _installed_names(folder: Path) -> frozenset[str]:
    """The files and packages in a folder that installers have listed there."""
    names: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        try:
            lines = record.read_text(errors="replace").splitlines()
        except OSError:
            continue
        names |= {line.partition("/")[0].partition(",")[0] for line in lines}
    return frozenset(names)
