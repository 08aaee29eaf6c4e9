"""The text of a syntax tree that stays the same where behaviour does: no comments, layout, docstrings, or names of locals."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from flatout.pipelines.identity.hashing import digest_of_bytes
from flatout.pipelines.identity.scopes import (
    Comprehension,
    Function,
    names_are_seen,
    names_of,
    names_of_comprehension,
    renamable,
)

_LEFT_OUT = {"ctx", "type_comment", "kind", "type_ignores"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def normal_digest(nodes: Sequence[ast.AST], *, docstrings: bool = False, annotations: bool = True) -> str:
    """`docstrings`: code reads them, so they count. Without `annotations` those of parameters do not."""
    writer = _Writer(docstrings, annotations)
    for node in nodes:
        writer.write(node)
    return digest_of_bytes("\n".join(writer.parts).encode(errors="surrogatepass"))


def without_docstring(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Without statements that do nothing."""
    return [one for one in body if not isinstance(one, ast.Pass) and not _is_constant(one)]


def _is_constant(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _without_unused(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """Without functions inside that nothing names."""
    named = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    named |= {name for node in ast.walk(function) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    return [
        one for one in function.body if not (isinstance(one, ast.FunctionDef) and one.name not in named and _is_simple(one))
    ]


def _is_simple(function: ast.FunctionDef) -> bool:
    """Defining it runs nothing."""
    outside = [
        *function.decorator_list,
        *function.args.defaults,
        *(one for one in function.args.kw_defaults if one is not None),
    ]
    return all(isinstance(one, ast.Constant) for one in outside)


class _Writer:
    def __init__(self, docstrings: bool, annotations: bool) -> None:
        self.parts: list[str] = []
        self._docstrings, self._annotations = docstrings, annotations
        self._scopes: list[dict[str, str]] = []  # innermost last; the names of a class are left as they are
        self._in_function = False

    def write(self, node: object) -> None:
        if isinstance(node, _FUNCTIONS):
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, _COMPREHENSIONS):
            self._comprehension(node)
        elif isinstance(node, ast.Constant):
            self.parts.append(f"{type(node.value).__name__} {node.value!r}")
        elif isinstance(node, ast.Name):
            self.parts.append(f"name {self._shown(node.id)}")
        elif isinstance(node, ast.AnnAssign) and self._in_function and isinstance(node.target, ast.Name):
            if node.value is not None:  # the annotation of a local variable is never evaluated
                self._plain(ast.Assign([node.target], node.value))
        elif isinstance(node, ast.Nonlocal):
            self.parts.append(f"nonlocal {' '.join(map(self._shown, node.names))}")
        elif isinstance(node, ast.alias):
            own = node.asname or node.name
            self.parts.append(f"import {node.name} as {self._shown(own)}")
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            self._plain(node, name=self._shown(node.name) if node.name else "")
        elif isinstance(node, ast.MatchMapping):
            self._plain(node, rest=self._shown(node.rest) if node.rest else "")
        elif isinstance(node, ast.AST):
            self._plain(node)
        elif isinstance(node, list):
            self._many(node)
        else:
            self.parts.append(repr(node))

    def _plain(self, node: ast.AST, **instead: str) -> None:
        self.parts.append(f"({type(node).__name__}")
        for name, value in ast.iter_fields(node):
            if name in _LEFT_OUT or value is None or value == []:
                continue
            self.parts.append(f".{name}")
            if name in instead:
                self.parts.append(instead[name])
            elif name in ("body", "orelse", "finalbody") and isinstance(value, list):
                self._many(without_docstring(value))
            else:
                self.write(value)
        self.parts.append(")")

    def _many(self, nodes: Sequence[object]) -> None:
        self.parts.append(f"[{len(nodes)}")
        for one in nodes:
            self.write(one)
        self.parts.append("]")

    def _function(self, node: Function) -> None:
        self.parts.append(f"({type(node).__name__}")
        if not isinstance(node, ast.Lambda):
            self.parts.append(node.name)
            self._many(node.decorator_list)
            if self._annotations and node.returns is not None:
                self.write(node.returns)
        self._parameters(node.args)
        found = names_of(node)
        hidden = {name: f"%{len(self._scopes)}.{n}" for n, name in enumerate(renamable(node, found))}
        was_in_function, self._in_function = self._in_function, True
        self._scopes.append({name: hidden.get(name, name) for name in found.kinds})
        if isinstance(node, ast.Lambda):
            self.write(node.body)
        else:
            self._body(node.body if names_are_seen(node) else _without_unused(node))
        self._scopes.pop()
        self._in_function = was_in_function
        self.parts.append(")")

    def _body(self, body: Sequence[ast.stmt]) -> None:
        if self._docstrings and body and _is_constant(body[0]):
            self.parts.append(ast.dump(body[0]))
        self._many(without_docstring(body))

    def _parameters(self, node: ast.arguments) -> None:
        many, keywords = [one for one in (node.vararg,) if one], [one for one in (node.kwarg,) if one]
        for given in (node.posonlyargs, node.args, many, node.kwonlyargs, keywords):
            self.parts.append(f"[{' '.join(one.arg for one in given)}]")
            if self._annotations:
                self._many([one.annotation for one in given])
        self._many(node.defaults)
        self._many(node.kw_defaults)

    def _class(self, node: ast.ClassDef) -> None:
        self.parts.append(f"(class {node.name}")
        self._many(node.decorator_list)
        self._many(node.bases)
        self._many(node.keywords)
        was_in_function, self._in_function = self._in_function, False
        self._body(node.body)
        self._in_function = was_in_function
        self.parts.append(")")

    def _comprehension(self, node: Comprehension) -> None:
        names = names_of_comprehension(node).kinds
        self._scopes.append({name: f"%{len(self._scopes)}.{n}" for n, name in enumerate(names)})
        self._plain(node)
        self._scopes.pop()

    def _shown(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return name
