"""Whether code belongs to a library or to the user.

Library code comes with Python, is in a folder named site-packages or dist-packages, or was installed by an installer, which
left a `.dist-info` next to it. So torch counts as a library wherever PYTHONPATH, a .pth file or an environment module finds it.
A project installed as editable counts as the user's code.
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
_OURS = ("flatout", "torch")  # libraries even if they are only on the path


def is_installed(thing: type | FunctionType | str) -> bool:
    """A class, a function, or a file."""
    if isinstance(thing, str):
        return _is_library_file(thing)
    try:
        file = inspect.getfile(thing)
    except (OSError, TypeError):
        return thing.__module__ != "__main__"  # built into the interpreter, or typed at its prompt
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
    """Whether an installer put the file into one of the folders on Python's path."""
    entries = {Path(entry).absolute() for entry in sys.path if entry}
    entries |= {entry.resolve() for entry in entries}
    return any(file.relative_to(folder).parts[0] in _installed_names(folder) for folder in file.parents if folder in entries)


@functools.lru_cache(maxsize=64)
def _installed_names(folder: Path) -> frozenset[str]:
    """The files and packages in a folder that installers list there."""
    names: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        try:
            lines = record.read_text(errors="replace").splitlines()
        except OSError:
            continue
        names |= {line.partition("/")[0].partition(",")[0] for line in lines}
    return frozenset(names)
