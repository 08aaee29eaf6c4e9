"""What a class needs of the file that defines it, so that another process can have the class without running all of the file.

A recipe in Python makes its data and its model when it is run: a worker is to have the Dataset's class, not a second recipe.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

_PATHS = ("sys", "os", "warnings")  # `sys.path.append(...)` binds no name, and imports may need it


def needed_code(source: str, names: Collection[str]) -> ast.Module:
    """The top-level statements that define these names, and whatever their code names, in the order of the file."""
    tree = ast.parse(source)
    binds = [frozenset(_bound(statement)) for statement in tree.body]
    wanted, kept = set(names), set[int]()
    while True:
        new = {at for at, bound in enumerate(binds) if at not in kept and (bound & wanted or "*" in bound)}
        if not new:
            break
        kept |= new
        wanted |= {name for at in new for name in _named(tree.body[at])}
    kept |= {at for at, statement in enumerate(tree.body) if _sets_up(statement)}
    return ast.Module([statement for at, statement in enumerate(tree.body) if at in kept], [])


def _bound(statement: ast.AST) -> Iterator[str]:
    """Names that a statement gives to the module; functions and classes keep what is inside of them."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    if isinstance(statement, ast.Import):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        yield from ("*" if statement.module == "__future__" else alias.asname or alias.name for alias in statement.names)
    elif isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
        yield statement.id
    elif isinstance(statement, ast.Attribute | ast.Subscript) and isinstance(statement.ctx, ast.Store):
        root: ast.AST = statement  # TABLE["x"] = 1 is a part of what TABLE is
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if isinstance(root, ast.Name):
            yield root.id
    for inner in ast.iter_child_nodes(statement):
        yield from _bound(inner)


def _named(statement: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(statement) if isinstance(node, ast.Name))


def _sets_up(statement: ast.stmt) -> bool:
    """With the imports that it takes: `sys.path.append(...)`."""
    if isinstance(statement, ast.Import):
        return any(alias.name in _PATHS for alias in statement.names)
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    named = set(_named(statement))
    return bool(named) and named <= {*_PATHS, "str", "__file__"}
