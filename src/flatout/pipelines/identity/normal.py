"""The text of a syntax tree that stays the same where behaviour does: no comments, layout, docstrings, or names of locals."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from flatout.pipelines.identity.annotations import is_plain_type
from flatout.pipelines.identity.hashing import digest_of_bytes
from flatout.pipelines.identity.scopes import (
    Comprehension,
    Function,
    names_are_seen,
    names_of,
    names_of_comprehension,
    renamable,
)
from flatout.pipelines.identity.simplified import as_tuple, simplified, simplified_statements, times_read

_LEFT_OUT = {"ctx", "type_comment", "kind", "type_ignores"}
_BODIES = ("body", "orelse", "finalbody")
_INSTEAD = re.compile("\0([^\0]*)\0([^\0]*)\0")  # a name, and what stands for it; code has no such character
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Annotations(Enum):
    """Which of the annotations of a function's parameters and result count: those that run are evaluated, and could fail."""

    ALL = 1
    THAT_RUN = 2
    NONE = 3


@dataclass(frozen=True)
class NormalDigest:
    """`as_named`: with the names of the module as they are, to say what changed. `digest`: with what stands for them."""

    digest: str
    as_named: str


def normal_digest(
    nodes: Sequence[ast.AST],
    *,
    docstrings: bool = False,
    annotations: Annotations = Annotations.ALL,
    names: Mapping[str, str] | None = None,
    own_parameters: bool = False,
) -> NormalDigest:
    """`docstrings`: code reads them, so they count. `names`: what stands for names of the module.

    `own_parameters`: nobody can know what the parameters of these functions are called.
    """
    writer = _Writer(docstrings, annotations, names or {}, own_parameters)
    for node in nodes:
        for one in simplified_statements([node]) if isinstance(node, ast.stmt) else [node]:
            writer.write(one)
    text = "\n".join(writer.parts)
    digest = _digest(_INSTEAD.sub(r"\2", text))
    return NormalDigest(digest, _digest(_INSTEAD.sub(r"\1", text)) if names and _INSTEAD.search(text) else digest)


def _digest(text: str) -> str:
    return digest_of_bytes(text.encode(errors="surrogatepass"))


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
    def __init__(self, docstrings: bool, annotations: Annotations, names: Mapping[str, str], own_parameters: bool) -> None:
        self.parts: list[str] = []
        self._docstrings, self._annotations = docstrings, annotations
        self._names, self._own_parameters = names, own_parameters
        self._scopes: list[_Scope] = []  # innermost last; the names of a class are left as they are
        self._in_function = False
        self._unread: Callable[[str], int] | None = None

    def write(self, node: object) -> None:
        if isinstance(node, ast.expr):
            node = simplified(node)
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
            if name in _BODIES and isinstance(value, list):
                value = simplified_statements(value, in_function=self._in_function, unread=self._unread)
            if name in _LEFT_OUT or value is None or value == []:
                continue
            self.parts.append(f".{name}")
            if name in instead:
                self.parts.append(instead[name])
            elif name == "iter" and isinstance(node, ast.For | ast.comprehension):
                self.write(as_tuple(value))
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
            self.parts.append(self._shown(node.name))
            self._many(node.decorator_list)
            self._annotation(node.returns)
        found = names_of(node)
        hidden = renamable(node, found, parameters=self._own_parameters)
        scope = _Scope(len(self._scopes), {*found.kinds, *found.of_module}, set(hidden))
        self._parameters(node.args, scope)
        before = self._in_function, self._unread, self._annotations, self._own_parameters
        self._in_function, self._unread = True, times_read(node, renamable(node, found))
        # who takes a function that is defined inside is not known
        self._annotations, self._own_parameters = Annotations.ALL, False
        self._scopes.append(scope)
        if isinstance(node, ast.Lambda):
            self.write(node.body)
        else:
            self._body(node.body if names_are_seen(node) else _without_unused(node), is_function=True)
        self._scopes.pop()
        self._in_function, self._unread, self._annotations, self._own_parameters = before
        self.parts.append(")")

    def _body(self, body: Sequence[ast.stmt], is_function: bool) -> None:
        if self._docstrings and body and _is_constant(body[0]):
            self.parts.append(ast.dump(body[0]))
        self._many(simplified_statements(body, in_function=is_function, ends_function=is_function, unread=self._unread))

    def _parameters(self, node: ast.arguments, scope: _Scope) -> None:
        many, keywords = [one for one in (node.vararg,) if one], [one for one in (node.kwarg,) if one]
        for given in (node.posonlyargs, node.args, many, node.kwonlyargs, keywords):
            self.parts.append(f"[{' '.join(scope.shown(one.arg) for one in given)}]")
            for one in given:
                self._annotation(one.annotation, of=scope.shown(one.arg))
        self._many(node.defaults)
        self._many(node.kw_defaults)

    def _annotation(self, node: ast.expr | None, of: str = "") -> None:
        if node is None or self._annotations is Annotations.NONE:
            return
        if self._annotations is Annotations.THAT_RUN and is_plain_type(node):
            return
        self.parts.append(f"annotation {of}")
        self.write(node)

    def _class(self, node: ast.ClassDef) -> None:
        self.parts.append(f"(class {node.name}")
        self._many(node.decorator_list)
        self._many(node.bases)
        self._many(node.keywords)
        before = self._in_function, self._unread
        self._in_function, self._unread = False, None
        self._body(node.body, is_function=False)
        self._in_function, self._unread = before
        self.parts.append(")")

    def _comprehension(self, node: Comprehension) -> None:
        first = node.generators[0]
        self.write(as_tuple(first.iter))  # before the names of the comprehension are there
        names = set(names_of_comprehension(node).kinds)
        self._scopes.append(_Scope(len(self._scopes), names, names))
        inner = ast.comprehension(first.target, ast.Constant(None), first.ifs, first.is_async)
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.parts.append(f"({type(node).__name__}")
        self._many([inner, *node.generators[1:]])
        self._many(values)
        self._scopes.pop()
        self.parts.append(")")

    def _shown(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope.names:
                return scope.shown(name)
        return f"\0{name}\0{self._names[name]}\0" if name in self._names else name


class _Scope:
    """Names that others can't see are numbered as they come, those that are declared as global stay as they are."""

    def __init__(self, depth: int, names: set[str], hidden: set[str]) -> None:
        self.names = names
        self._depth, self._hidden = depth, hidden
        self._numbers: dict[str, int] = {}

    def shown(self, name: str) -> str:
        if name not in self._hidden:
            return name
        return f"%{self._depth}.{self._numbers.setdefault(name, len(self._numbers))}"
