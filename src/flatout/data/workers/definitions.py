"""The statements of a file that a class needs, so that another process can define the class without running the whole file.

A Python recipe builds data and model when it runs. A worker needs only the class of the Dataset.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

_PATHS = ("sys", "os", "warnings")  # imports may need `sys.path.append(...)`, which binds no name


def needed_code(source: str, names: Collection[str]) -> ast.Module:
    """The top-level statements that define these names and all names they use, in the order of the file."""
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
    """Names that a statement defines in the module, without those inside functions and classes."""
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
        root: ast.AST = statement  # TABLE["x"] = 1 belongs to the definition of TABLE
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if isinstance(root, ast.Name):
            yield root.id
    for inner in ast.iter_child_nodes(statement):
        yield from _bound(inner)


def _named(statement: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(statement) if isinstance(node, ast.Name))


def _sets_up(statement: ast.stmt) -> bool:
    """Whether it is `sys.path.append(...)` or an import for it."""
    if isinstance(statement, ast.Import):
        return any(alias.name in _PATHS for alias in statement.names)
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    named = set(_named(statement))
    return bool(named) and named <= {*_PATHS, "str", "__file__"}
