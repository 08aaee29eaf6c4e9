"""Texts that can be worked out without running the code: paths of files, names of modules, of attributes, of variables.

What is not known is a hole in the text, so that `DATA / f"{name}.csv"` is the pattern `data/*.csv`.
"""

from __future__ import annotations

import ast
import os.path
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from flatout.pipelines.identity.scopes import LocalNames
from flatout.pipelines.identity.uses import chain_of

HOLE = "\0"
_MOST, _DEEPEST = 8, 40
_SAME = {"resolve", "absolute", "expanduser", "as_posix", "strip"}
_SAME_CALLS = {
    "str", "os.fspath", "os.path.abspath", "os.path.realpath", "os.path.normpath", "os.path.expanduser", "os.path.expandvars",
    "pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath", "pathlib.PurePosixPath", "os.path.join",
}  # fmt: skip

_OF_PACKAGES = {
    "pkgutil.get_data", "importlib.resources.read_text", "importlib.resources.read_binary", "importlib.resources.open_text",
    "importlib.resources.open_binary", "importlib.resources.path", "pkg_resources.resource_filename",
}  # fmt: skip

Texts = frozenset[str]
UNKNOWN: Texts = frozenset({HOLE})


class Folding:
    """`dotted`: the full name of what an expression refers to outside of the project.

    `named`: the texts of a name of the module and of attributes taken from it, as far as they are known.
    """

    def __init__(
        self,
        file: Path | None,
        root: Path,
        module_name: str,
        environment: Mapping[str, str],
        dotted: Callable[[ast.AST], str | None],
        named: Callable[[str, tuple[str, ...], int], Texts],
    ) -> None:
        self._file, self._root, self._module_name = file, root, module_name
        self._environment, self._dotted, self._named = environment, dotted, named
        self._asked: set[tuple[int, str]] = set()  # local names whose values are being worked out

    def texts(self, node: ast.AST, scopes: tuple[LocalNames, ...] = (), depth: int = 0) -> Texts:
        if depth > _DEEPEST:
            return UNKNOWN
        found = self._texts(node, scopes, depth + 1)
        return found if 0 < len(found) <= _MOST else UNKNOWN

    def _texts(self, node: ast.AST, scopes: tuple[LocalNames, ...], depth: int) -> Texts:
        def inner(one: ast.AST) -> Texts:
            return self.texts(one, scopes, depth)

        if isinstance(node, ast.Constant):
            return frozenset({node.value}) if isinstance(node.value, str) else UNKNOWN
        if isinstance(node, ast.JoinedStr):
            return joined([inner(one) for one in node.values])
        if isinstance(node, ast.FormattedValue):
            return inner(node.value) if node.format_spec is None else UNKNOWN
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Add):
                return joined([inner(node.left), inner(node.right)])
            if isinstance(node.op, ast.Div):
                return joined_paths([inner(node.left), inner(node.right)])
            if isinstance(node.op, ast.Mod):
                return frozenset(re.sub(r"%[-+ #0-9.]*[a-zA-Z]", HOLE, text) for text in inner(node.left))
            return UNKNOWN
        if isinstance(node, ast.BoolOp):
            return frozenset().union(*map(inner, node.values))
        if isinstance(node, ast.IfExp):
            return inner(node.body) | inner(node.orelse)
        if isinstance(node, ast.Name | ast.Attribute):
            return self._name(node, scopes, depth)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, scopes, depth)
        if isinstance(node, ast.Call):
            return self._call(node, scopes, depth)
        if isinstance(node, ast.NamedExpr):
            return inner(node.value)
        return UNKNOWN

    def _name(self, node: ast.Name | ast.Attribute, scopes: tuple[LocalNames, ...], depth: int) -> Texts:
        root, attributes = chain_of(node)
        if isinstance(node, ast.Attribute) and node.attr in ("parent", "name", "stem", "suffix"):
            base = self.texts(node.value, scopes, depth)
            if base != UNKNOWN:
                return frozenset(_part_of(text, node.attr) for text in base)
        if not isinstance(root, ast.Name):
            return UNKNOWN
        local = next((scope for scope in reversed(scopes) if root.id in scope.kinds), None)
        if local is not None:
            return UNKNOWN if attributes or root.id in local.imports else self._local(local, root.id, scopes, depth)
        if self._dotted(node) in ("os.sep", "os.path.sep"):
            return frozenset({"/"})
        if node is root and root.id == "__file__":
            return UNKNOWN if self._file is None else frozenset({str(self._file)})
        if node is root and root.id in ("__name__", "__package__"):
            return frozenset({self._module_name})
        return self._named(root.id, attributes, depth)

    def _local(self, local: LocalNames, name: str, scopes: tuple[LocalNames, ...], depth: int) -> Texts:
        values = local.assigned.get(name, [])
        if not values or None in values or len(values) > 3:
            return UNKNOWN
        if (id(local), name) in self._asked:
            return UNKNOWN  # it grows by itself
        self._asked.add((id(local), name))
        try:
            return frozenset().union(*(self.texts(value, scopes, depth) for value in values if value is not None))
        finally:
            self._asked.discard((id(local), name))

    def _subscript(self, node: ast.Subscript, scopes: tuple[LocalNames, ...], depth: int) -> Texts:
        if self._dotted(node.value) == "os.environ":
            return self._variables(self.texts(node.slice, scopes, depth))
        if isinstance(node.value, ast.Attribute) and node.value.attr == "parents" and isinstance(node.slice, ast.Constant):
            base, up = self.texts(node.value.value, scopes, depth), node.slice.value
            if base != UNKNOWN and isinstance(up, int) and 0 <= up < 20:
                return frozenset(os.path.normpath("/".join([text, *[".."] * (up + 1)])) for text in base)
        return UNKNOWN

    def _variables(self, names: Texts, default: Texts = UNKNOWN) -> Texts:
        known = [self._environment.get(name) for name in names]
        return frozenset(value for value in known if value) | (default if None in known else frozenset()) or UNKNOWN

    def _call(self, node: ast.Call, scopes: tuple[LocalNames, ...], depth: int) -> Texts:
        def inner(one: ast.AST) -> Texts:
            return self.texts(one, scopes, depth)

        name = self._dotted(node.func)
        given = [UNKNOWN if isinstance(one, ast.Starred) else inner(one) for one in node.args]
        if name in _SAME_CALLS:
            return joined_paths(given) if given else frozenset({""})
        if name == "os.path.dirname" and len(given) == 1 and given[0] != UNKNOWN:
            return frozenset(_part_of(text, "parent") for text in given[0])
        if name in ("os.getcwd", "pathlib.Path.cwd"):
            return frozenset({str(self._root)})
        if name in ("os.environ.get", "os.getenv") and given:
            return self._variables(given[0], given[1] if len(given) > 1 else UNKNOWN)
        if name == "importlib.resources.files" and given:
            return self._packages(given[0])
        if name in _OF_PACKAGES and len(given) > 1:
            return joined_paths([self._packages(given[0]), *given[1:]])
        if isinstance(node.func, ast.Attribute):
            return self._method(node.func.attr, inner(node.func.value), given)
        return UNKNOWN

    def _packages(self, names: Texts) -> Texts:
        roots = (self._root, self._root / "src")
        places = [root.joinpath(*name.split(".")) for name in names if HOLE not in name for root in roots]
        return frozenset(str(place) for place in places) or UNKNOWN

    def _method(self, name: str, base: Texts, given: list[Texts]) -> Texts:
        if base == UNKNOWN and name not in ("joinpath", "with_name"):
            return UNKNOWN
        if name in _SAME:
            return base
        if name == "joinpath":
            return joined_paths([base, *given])
        if name == "with_name" and given:
            return joined_paths([frozenset(_part_of(text, "parent") for text in base), given[0]])
        if name == "with_suffix" and given:
            return joined([frozenset(text.removesuffix(Path(text).suffix) for text in base), given[0]])
        if name == "format":
            return frozenset(re.sub(r"\{[^{}]*\}", HOLE, text) for text in base)
        return UNKNOWN


def joined(parts: list[Texts]) -> Texts:
    found = frozenset({""})
    for part in parts:
        found = frozenset(left + right for left in found for right in part)
        if len(found) > _MOST:
            return UNKNOWN
    return frozenset(re.sub(f"{HOLE}+", HOLE, text) for text in found)


def joined_paths(parts: list[Texts]) -> Texts:
    found = frozenset({""})
    for part in parts:
        found = frozenset(
            right if right.startswith("/") or not left else f"{left.rstrip('/')}/{right}" for left in found for right in part
        )
        if len(found) > _MOST:
            return UNKNOWN
    return found


def _part_of(text: str, attribute: str) -> str:
    path = Path(text)
    if attribute == "parent":
        return os.path.dirname(text.rstrip("/"))
    return {"name": path.name, "stem": path.stem, "suffix": path.suffix}[attribute]
