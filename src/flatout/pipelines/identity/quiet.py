"""Decorators of a project that only return something: what they decorated runs only where code calls it by its name."""

from __future__ import annotations

import ast
from collections.abc import Callable

from flatout.pipelines.identity.normal import without_docstring

_KNOWN = (
    "functools.",
    "contextlib.",
    "staticmethod",
    "classmethod",
    "property",
    "callable",
    "isinstance",
    "len",
    "str",
    "tuple",
    "dict",
)

Naming = Callable[[ast.AST], str | None]


def returns_only(function: ast.FunctionDef, makes_decorator: bool, dotted: Naming) -> bool:
    """It defines functions, assigns to its locals, and returns. `makes_decorator`: it is called for the decorator itself, which
    then runs as well."""
    for node in without_docstring(function.body):
        if isinstance(node, ast.FunctionDef):
            if not all(_is_quiet(one, dotted) for one in node.decorator_list):
                return False
            if makes_decorator and not returns_only(node, False, dotted):
                return False
        elif isinstance(node, ast.Return):
            value = node.value.body if makes_decorator and isinstance(node.value, ast.Lambda) else node.value
            if value is not None and not _is_quiet(value, dotted):
                return False
        elif isinstance(node, ast.Assign):
            if not all(isinstance(one, ast.Name) for one in node.targets) or not _is_quiet(node.value, dotted):
                return False
        else:
            return False
    return True


def _is_quiet(node: ast.AST, dotted: Naming) -> bool:
    """Calls nothing but what is known, and sets nothing."""
    if isinstance(node, ast.Lambda):
        return True
    if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
        return False
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        inner = isinstance(node.func, ast.Call) and _is_quiet(node.func, dotted)
        if not inner and (name is None or not name.startswith(_KNOWN)):
            return False
    return all(_is_quiet(one, dotted) for one in ast.iter_child_nodes(node))
