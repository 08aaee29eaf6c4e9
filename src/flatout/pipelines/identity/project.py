"""The files of a project as its programs see them: which module an import finds, and which files there are."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flatout.base.installed import is_installed
from flatout.pipelines.identity.listing import SKIPPED, ParsedFiles, ProjectFiles
from flatout.pipelines.identity.modules import CodeModule


@dataclass(frozen=True)
class FoundModule:
    """What an import finds: a module of the project, a folder without `__init__.py`, or something compiled."""

    name: str
    path: Path | None  # None: a folder without `__init__.py`
    folder: Path | None  # of a package


class CodeFiles:
    """`looks_elsewhere`: code looks for modules or files outside of the project, so that what was found can't be recalled."""

    def __init__(self, project: ProjectFiles, trees: ParsedFiles) -> None:
        self.project, self.root, self._trees = project, project.root, trees
        self.places: list[Path] = [place for place in (self.root, self.root / "src") if place.is_dir()]
        self.folders: list[Path] = [self.root]  # in which code may run
        self.damaged: dict[Path, str] = {}
        self.looks_elsewhere = False
        self._modules: dict[tuple[Path, str], CodeModule] = {}
        self._found: dict[str, FoundModule | None] = {}
        self._listed: dict[str, frozenset[str]] = {}
        self._looked_for: set[str] = set()

    def look_at(self, path: Path) -> None:
        """Something depends on whether this exists."""
        name = os.path.relpath(path, self.root)
        folders = name.split("/")[:-1]
        is_hidden = name.startswith("..") or any(part.startswith(".") or part in SKIPPED for part in folders)
        if is_hidden or self.project.is_output(path):
            self.looks_elsewhere = True

    def add_place(self, place: Path) -> None:
        """A folder that code puts on Python's path, or the folder of a script."""
        place = place.resolve()
        self.look_at(place)
        if place.is_dir() and place not in self.places:
            self.places.insert(0, place)

    def add_folder(self, name: str) -> None:
        """A folder that code changes to; one of which only a part is known stands for all that match."""
        found = sorted(self.root.glob(name)) if "*" in name and not name.startswith("/") else [self.root / name]
        self.folders += [path for path in found if path.is_dir() and path not in self.folders]

    def find(self, name: str) -> FoundModule | None:
        """By a dotted name; None if it is not of the project."""
        if name not in self._found:
            first = name.partition(".")[0]
            known = first in sys.builtin_module_names or not name
            self._found[name] = None if known else self._search(name)
        return self._found[name]

    def _search(self, name: str) -> FoundModule | None:
        *above, last = name.split(".")
        empty: FoundModule | None = None
        for place in self.places:
            folder = os.path.join(place, *above)
            entries = self._entries(folder)
            if last in entries and "__init__.py" in self._entries(own := os.path.join(folder, last)):
                return FoundModule(name, Path(own, "__init__.py"), Path(own))
            if f"{last}.py" in entries:
                return FoundModule(name, Path(folder, f"{last}.py"), None)
            for compiled in entries:
                if compiled.startswith(f"{last}.") and compiled.endswith((".so", ".pyd")):
                    return FoundModule(name, Path(folder, compiled), None)
            if last in entries and empty is None and self._has_code(own := os.path.join(folder, last)):
                empty = FoundModule(name, None, Path(own))
        return empty

    def _entries(self, folder: str) -> frozenset[str]:
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._listed[folder] = frozenset()
        return self._listed[folder]

    def _has_code(self, folder: str) -> bool:
        """A folder of data that has the name of a library must not hide it."""
        entries = self._entries(folder)
        return any(name.endswith(".py") for name in entries) or any(
            name.endswith(".py") for inner in entries for name in self._entries(os.path.join(folder, inner))
        )

    def has_moved(self) -> bool:
        """Whether a place that was added hides a module that had been found elsewhere, or not at all; asked once for each."""
        before, self._found = self._found, {}
        return any(self.find(name) != found for name, found in before.items())

    def look_elsewhere(self, first: str) -> str:
        """For a module that is in no known place: an editable install, or a folder that something puts on the path.

        The sentence to say, if that is a guess.
        """
        if first in self._looked_for:
            return ""
        self._looked_for.add(first)
        try:
            spec = importlib.util.find_spec(first)
        except (ImportError, ValueError, AttributeError):
            spec = None
        if spec is not None:
            origin = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
            if origin is not None and origin not in ("built-in", "frozen") and not is_installed(origin):
                self.looks_elsewhere = True
                path = Path(origin)
                self.add_place(path.parent.parent if path.name == "__init__.py" else path.parent)
            return ""
        for path in self.project.listing():
            if path.name == f"{first}.py" or (path.name == "__init__.py" and path.parent.name == first):
                place = path.parent if path.name == f"{first}.py" else path.parent.parent
                self.add_place(place)
                return f"import {first}: not on Python's path as far as can be seen; {self.project.shown(path)} is taken for it"
        return ""

    def module(self, found: FoundModule) -> CodeModule:
        return self._parsed(found.path, found.name, found.folder is not None, is_main=False)

    def script(self, path: Path, name: str = "") -> CodeModule:
        """A file that runs as a program; with a `name`, as `python -m` runs it."""
        return self._parsed(path.resolve(), name or self.project.shown(path), is_package=False, is_main=True)

    def _parsed(self, path: Path | None, name: str, is_package: bool, is_main: bool) -> CodeModule:
        key = path or self.root / name, "main" if is_main else name
        if key not in self._modules:
            self._modules[key] = CodeModule(name, path, self._tree(path), is_package, is_main)
        return self._modules[key]

    def _tree(self, path: Path | None) -> ast.Module:
        if path is None:
            return ast.Module([], [])
        try:
            content = path.read_bytes()
            if content not in self._trees:
                self._trees[content] = _parsed(content)
            tree = self._trees[content]
        except OSError as error:
            tree = error
        if isinstance(tree, ast.Module):
            return tree
        self.damaged[path] = f"{type(tree).__name__}: {tree}"
        return ast.Module([], [])

    def submodules(self, package: FoundModule) -> Iterator[str]:
        """Dotted names, at any depth."""
        if package.folder is not None:
            for path in sorted(package.folder.rglob("*.py")):
                parts = path.relative_to(package.folder).with_suffix("").parts
                parts = parts[:-1] if parts[-1] == "__init__" else parts
                if parts and not any(part in SKIPPED for part in parts):
                    yield ".".join([package.name, *parts])

    def all_modules(self) -> Iterator[str]:
        for path in self.project.listing():
            if path.suffix == ".py":
                place = next((place for place in self.places if path.is_relative_to(place)), None)
                parts = path.relative_to(place or self.root).with_suffix("").parts
                parts = parts[:-1] if parts[-1] == "__init__" else parts
                if parts and all(part.isidentifier() for part in parts):
                    yield ".".join(parts)


def _parsed(content: bytes) -> ast.Module | Exception:
    try:
        return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return error
