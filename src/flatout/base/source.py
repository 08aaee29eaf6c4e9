"""The source text behind an object, so that a run can tell whether its model's code changed.

An edit to a helper function changes a model as much as an edit to its class, so everything the code names is followed through
the user's own files. Installed libraries are skipped: their versions are recorded elsewhere (see installed.py).

The text is the same in every process. Module variables are represented by the statements that set them, not by their values,
which may be times or addresses. Values count only where no statement shows them: in closures, in partials, and numbers from
the environment or the command line. (Text from there is often a job id or a path, and does not count.)
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from flatout.base.installed import is_installed

_FROM_OUTSIDE = {"environ", "getenv", "argv", "parse_args"}
_ADDRESS = re.compile(r"( object)? at 0x[0-9a-fA-F]+")


def source_text(thing: object, values: bool = False) -> str:
    """The source of a class or function and of all user code that it names, in a stable order.

    `values` adds the values of constant variables, to compare processes that run at the same time.
    """
    pieces: dict[object, str] = {}
    waiting: list[tuple[Any, str]] = [(thing, "")]  # a list instead of recursion: code may be deep
    while waiting:
        one, name = waiting.pop()
        waiting += _collect(one, name, pieces)
        if values and isinstance(one, _Variable) and (written := one.written_value()) is not None:
            pieces[name] = f"{name} = {written}"
    return "\n".join(sorted(pieces.values()))


class _Variable:
    """A name that a module sets. `is_used`: used by code, not only in the statement that sets another variable."""

    def __init__(self, scope: dict[str, Any], name: str, is_used: bool = True) -> None:
        self.scope, self.name, self.is_used = scope, name, is_used

    def written_value(self) -> str | None:
        return written_constant(self.scope[self.name]) if self.is_used and not _is_of_a_library(self.scope) else None


def _collect(thing: Any, name: str, pieces: dict[object, str]) -> list[tuple[Any, str]]:
    """Add the text of one object; returns the objects to visit next, with their names."""
    if isinstance(thing, _Variable):
        return _collect_variable(thing, name, pieces)
    if isinstance(thing, functools.partial):
        given = [*enumerate(thing.args), *thing.keywords.items()]
        return [(thing.func, name), *((value, f"{name}({place})") for place, value in given)]
    if isinstance(thing, MethodType):
        return [(thing.__func__, name), (type(thing.__self__), name)]
    if isinstance(thing, type | FunctionType):
        if thing in pieces or is_installed(thing):
            return []
        pieces[thing] = _text(thing)
        return [(used, f"{thing.__module__}.{thing.__qualname__}:{used_name}") for used_name, used in _used_by(thing)]
    if (written := written_constant(thing)) is not None:
        pieces[name] = f"{name} = {written}"
        return []
    return [(type(thing), name)] if callable(thing) else []


def _collect_variable(variable: _Variable, name: str, pieces: dict[object, str]) -> list[tuple[Any, str]]:
    scope, value = variable.scope, variable.scope[variable.name]
    if isinstance(value, type | FunctionType | MethodType) and _module_of(value) != scope.get("__name__"):
        return [(value, name)]  # imported: the other module has its text
    if _is_of_a_library(scope):
        return []
    tree = _tree_of(scope)
    if tree is None:  # typed at a prompt: only the value is known
        return [(value, name)]
    statements = _statements(tree).get(variable.name, ())
    if not statements:
        return _imported(tree, variable) or [(value, name)]
    key = scope.get("__name__"), variable.name
    if key in pieces:
        return []
    pieces[key] = f"{key[0]}.{variable.name}: " + "\n".join(map(ast.unparse, statements))
    names = {node.id for one in statements for node in ast.walk(one) if isinstance(node, ast.Name)} - {variable.name}
    attributes = {node.attr for one in statements for node in ast.walk(one) if isinstance(node, ast.Attribute)}
    if variable.is_used and (names | attributes) & _FROM_OUTSIDE and type(value) in (int, float):
        pieces[key] += f" = {value!r}"  # the statement does not show the value
    found = [
        (
            _Variable(used.scope, used.name, is_used=False) if isinstance(used, _Variable) else used,
            f"{key[0]}.{variable.name}:{n}",
        )
        for n, used in _named(scope, names, attributes)
    ]
    if isinstance(value, functools.partial | MethodType | FunctionType | type) or (
        callable(value) and written_constant(value) is None
    ):
        found.append((value, name))
    return found


def _used_by(thing: type | FunctionType) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, type):
        yield from ((base.__name__, base) for base in thing.__bases__)
        for member in vars(thing).values():
            plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if isinstance(plain, FunctionType):
                yield from _used_by(plain)
        return
    names = {name for code in _codes(thing.__code__) for name in code.co_names}
    yield from _named(thing.__globals__, names, names)
    for name, held in inspect.getclosurevars(thing).nonlocals.items():
        if isinstance(held, ModuleType):
            yield from ((inner, _Variable(vars(held), inner)) for inner in names & vars(held).keys())
        else:
            yield name, held


def _named(scope: dict[str, Any], names: set[str], attributes: set[str]) -> Iterator[tuple[str, Any]]:
    """What these names refer to in a module; for a name that is a module, the attributes taken from it."""
    for name in names & scope.keys():
        found = scope[name]
        if isinstance(found, ModuleType):
            yield from ((inner, _Variable(vars(found), inner)) for inner in attributes & vars(found).keys())
        else:
            yield name, found if isinstance(found, type | FunctionType) else _Variable(scope, name)


def _imported(tree: ast.Module, variable: _Variable) -> list[tuple[Any, str]]:
    """`from settings import WIDTH`: the variable of that module."""
    package = variable.scope.get("__package__") or ""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            if (alias.asname or alias.name) == variable.name:
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                module = sys.modules.get(".".join([*above, *([node.module] if node.module else [])]))
                if module is not None and alias.name in vars(module):
                    return [(_Variable(vars(module), alias.name), f"{module.__name__}.{alias.name}")]
    return []


@functools.lru_cache(maxsize=64)
def _parsed(file: str, text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _is_of_a_library(scope: Mapping[str, Any]) -> bool:
    file = scope.get("__file__")
    return is_installed(file) if isinstance(file, str) else scope.get("__name__") in sys.builtin_module_names


def _tree_of(scope: Mapping[str, Any]) -> ast.Module | None:
    """The syntax tree of a module; None if it has no file."""
    file = scope.get("__file__")
    if not isinstance(file, str):
        return None
    text = "".join(linecache.getlines(file))
    return _parsed(file, text) if text else None


def _statements(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    """By name: the top-level statements of a module that set or change it."""
    found: dict[str, list[ast.stmt]] = {}
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
            targets = [node.value.func.value]  # LAYERS.append(3)
        for name in {root for target in targets for root in _roots(target)}:
            found.setdefault(name, []).append(node)
        waiting = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)] + waiting
    return found


def _roots(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Attribute | ast.Subscript | ast.Starred):
        yield from _roots(target.value)
    elif isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _roots(one)


def _module_of(value: Any) -> str | None:
    return getattr(value, "__module__", None)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _text(thing: type | FunctionType) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):  # typed at a prompt or created by exec: only the bytecode is known
        members = [thing] if isinstance(thing, FunctionType) else vars(thing).values()
        codes = [code for member in members if isinstance(member, FunctionType) for code in _codes(member.__code__)]
        return "\n".join(
            f"{code.co_code.hex()} {code.co_names} {[w for c in code.co_consts if (w := written_constant(c)) is not None]}"
            for code in codes
        )


def lasting_text(value: object) -> str:
    """JSON fallback for other types: the same text in every process, so memory addresses are removed."""
    written = written_constant(value)
    if written is not None:
        return written
    if isinstance(value, type | FunctionType):
        return f"{value.__module__}:{value.__qualname__}"
    return _ADDRESS.sub("", str(value))


def written_constant(value: object) -> str | None:
    """The same text in every process; None for values that are not constants."""
    if value is None or isinstance(value, bool | bytes | str):
        return repr(value) if type(value) in (type(None), bool, bytes, str) else None
    if type(value) in (int, float, complex):
        return repr(value)
    if type(value) in (tuple, list, set, frozenset):
        parts = [written_constant(item) for item in value]  # type: ignore[attr-defined]
        if None in parts:
            return None
        known = [part for part in parts if part is not None]
        if isinstance(value, set | frozenset):
            return f"{{{', '.join(sorted(known))}}}"
        return f"[{', '.join(known)}]" if isinstance(value, list) else f"({', '.join(known)}{',' if len(known) == 1 else ''})"
    if type(value) is dict:
        pairs = [(written_constant(key), written_constant(item)) for key, item in value.items()]
        if any(None in pair for pair in pairs):
            return None
        return f"{{{', '.join(sorted(f'{key}: {item}' for key, item in pairs))}}}"
    return None
