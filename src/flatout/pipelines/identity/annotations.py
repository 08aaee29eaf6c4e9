"""Annotations that evaluate to a type, whatever else the module does, so that they can't fail and need not be evaluated."""

from __future__ import annotations

import ast
from collections.abc import Set

_TYPES = {"int", "float", "str", "bool", "bytes", "complex", "object", "list", "dict", "set", "frozenset", "tuple", "type"}
_OF_OTHERS = {"list", "dict", "set", "frozenset", "tuple", "type"}
# libraries that never look at the annotations of a class which they are given, or of the objects of one
_BLIND = {"numpy", "pandas", "scipy", "sklearn", "matplotlib", "PIL", "requests", "tqdm", "yaml"}


def is_plain_type(node: ast.expr) -> bool:
    """Builtin types, None, texts, and `|` and `[]` of them. That the names are not set to something else is asked before."""
    return is_builtin_type(node) or (isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str)))


def is_builtin_type(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _TYPES
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        return isinstance(node.op, ast.BitOr) and any(map(is_builtin_type, sides)) and all(map(_is_type_or_none, sides))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in _OF_OTHERS:
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return bool(inner) and all(map(_is_type_or_none, inner))
    return False


def _is_type_or_none(node: ast.expr) -> bool:
    return is_builtin_type(node) or (isinstance(node, ast.Constant) and node.value in (None, ...))


def leaves_types(names: Set[str]) -> bool:
    """Whether code that sets these names leaves the builtin types as they are."""
    return not names & _TYPES


def are_blind(libraries: Set[str]) -> bool:
    return libraries <= _BLIND
