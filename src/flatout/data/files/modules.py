"""The source files of an installed Python module or package, found without importing it."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

from flatout.base.errors import DataError


def module_files(name: str) -> list[Path]:
    """One file for a module, every .py file below it for a package, sorted."""
    search: list[str] | None = None
    spec = None
    for end in range(1, len(parts := name.split(".")) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), search)
        if spec is None:
            raise DataError(f"module:{name}: no module {'.'.join(parts[:end])!r} is installed as files")
        search = list(spec.submodule_search_locations or [])
    assert spec is not None
    if search:
        return sorted(path for folder in search for path in Path(folder).rglob("*.py") if path.is_file())
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise DataError(f"module:{name} has no Python source file (it is {spec.origin or 'built in'})")
    return [Path(spec.origin)]
