"""A module as a list of statements, and which names each of them sets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from flatout.pipelines.identity.normal import without_docstring
from flatout.pipelines.identity.scopes import LocalImport, names_in


@dataclass(frozen=True, eq=False)
class Item:
    """A statement of a module, of an import one name of it. `names`: what it sets."""

    index: int
    node: ast.stmt
    names: frozenset[str]
    imports: dict[str, list[LocalImport]]  # by name; those of an `if` or a `try` as well

    @property
    def alias(self) -> ast.alias | None:
        """Of an import."""
        return self.node.names[0] if isinstance(self.node, ast.Import | ast.ImportFrom) else None


class CodeModule:
    """`path` is None for a package without `__init__.py`. `is_main`: run as a script."""

    def __init__(self, name: str, path: Path | None, tree: ast.Module, is_package: bool, is_main: bool) -> None:
        self.name, self.path, self.tree, self.is_package, self.is_main = name, path, tree, is_package, is_main
        self.docstring = ast.get_docstring(tree, clean=False)
        statements = list(_flat(without_docstring(tree.body), is_main))
        self.items = [_item(n, node) for n, node in enumerate(statements)]
        self.by_name: dict[str, list[Item]] = {}
        self.stars: list[Item] = []
        for item in self.items:
            for name in item.names - {"*"}:
                self.by_name.setdefault(name, []).append(item)
            if item.alias is not None and item.alias.name == "*":
                self.stars.append(item)
        # `global X` in a function: the functions that set X are not statements that do, but X is a name of the module
        self.set_by_functions = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        for name in self.set_by_functions:
            self.by_name.setdefault(name, [])

    @property
    def package(self) -> str:
        """The package that relative imports begin at."""
        if self.is_main and self.name.endswith(".py"):
            return ""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @cached_property
    def lazy_annotations(self) -> bool:
        return any(
            isinstance(item.node, ast.ImportFrom) and item.node.module == "__future__" and item.alias is not None
            and item.alias.name == "annotations" for item in self.items
        )  # fmt: skip

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that `from ... import` names."""
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        above = parts[: len(parts) - node.level + 1]
        return ".".join([*above, *([node.module] if node.module else [])])


def _item(index: int, node: ast.stmt) -> Item:
    found = names_in([node])
    return Item(index, node, frozenset(found.kinds), found.imports)


def _flat(statements: list[ast.stmt], is_main: bool) -> Iterator[ast.stmt]:
    """One statement for each name of an import; of branches that are decided without running, the one that is taken."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (ast.copy_location(ast.Import([alias]), node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (ast.copy_location(ast.ImportFrom(node.module, [alias], node.level), node) for alias in node.names)
        elif isinstance(node, ast.If) and (taken := _decided(node.test, is_main)) is not None:
            yield from _flat(without_docstring(node.body if taken else node.orelse), is_main)
        else:
            yield node


def _decided(test: ast.expr, is_main: bool) -> bool | None:
    if ast.unparse(test).split(".")[-1] == "TYPE_CHECKING":
        return False
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        sides = {ast.unparse(test.left), ast.unparse(test.comparators[0])}
        if sides == {"__name__", "'__main__'"}:
            return is_main
    return None
