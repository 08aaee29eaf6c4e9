"""What a piece of code refers to: names of its module with what is taken from them, attributes of anything, and imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from flatout.pipelines.identity.scopes import LocalImport, LocalNames, names_of, names_of_comprehension

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class NameChain:
    """`helpers.tables.scale`: a name of the module, or of an import inside of a function, and the attributes taken from it."""

    root: str
    attributes: tuple[str, ...]
    imported: LocalImport | None = None


@dataclass(frozen=True)
class Place:
    """An expression, and the local names around it, innermost last."""

    node: ast.AST
    scopes: tuple[LocalNames, ...]
    written: bool = False  # it names what is written, not what is read


@dataclass
class Uses:
    chains: list[tuple[NameChain, ast.AST]] = field(default_factory=list)
    attributes: set[str] = field(default_factory=set)
    imports: list[LocalImport] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)  # calls, subscripts and texts, for those who look for special ones
    called: dict[int, ast.Call] = field(default_factory=dict)  # by ids of the nodes of chains that are called on the spot


def uses_of(nodes: Iterable[ast.AST], *, annotations: bool = True, bodies: bool = True) -> Uses:
    """Without `bodies`, only what runs when the statements themselves run: not what functions do when they are called."""
    collector = _Collector(annotations, bodies)
    for node in nodes:
        collector.visit(node)
    return collector.found


def chain_of(node: ast.AST) -> tuple[ast.AST, tuple[str, ...]]:
    """`a.b.c` as the node of `a` and ("b", "c")."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return node, tuple(reversed(attributes))


def _parsed(annotation: ast.expr) -> ast.expr:
    """One that is written as a text."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        with suppress(SyntaxError, ValueError):
            return ast.parse(annotation.value, mode="eval").body
    return annotation


class _Collector:
    def __init__(self, annotations: bool, bodies: bool) -> None:
        self.found = Uses()
        self._annotations, self._bodies = annotations, bodies
        self._scopes: list[LocalNames] = []

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name | ast.Attribute):
            self._chain(node)
        elif isinstance(node, _FUNCTIONS):
            self._function(node)
        elif isinstance(node, _COMPREHENSIONS):
            self._place(node)
            first = node.generators[0]
            self.visit(first.iter)  # before the names of the comprehension are there
            self._scopes.append(names_of_comprehension(node))
            for child in ast.iter_child_nodes(node):
                self.visit(child) if child is not first else self._children(child, without=first.iter)
            self._scopes.pop()
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.found.imports += [(node, alias) for alias in node.names]
        elif isinstance(node, ast.AnnAssign):
            for one in (node.target, node.value, node.annotation if self._annotations else None):
                if one is not None:
                    self.visit(_parsed(one) if one is node.annotation else one)
        else:
            if isinstance(node, ast.Call):
                self.found.called[id(node.func)] = node
            if isinstance(node, ast.MatchClass):
                self.found.attributes.update(node.kwd_attrs)
            self._place(node)
            self._children(node)

    def _children(self, node: ast.AST, without: ast.AST | None = None) -> None:
        for child in ast.iter_child_nodes(node):
            if child is not without:
                self.visit(child)

    def _place(self, node: ast.AST) -> None:
        self.found.places.append(Place(node, tuple(self._scopes)))

    def _chain(self, node: ast.Name | ast.Attribute) -> None:
        self._place(node)
        root, attributes = chain_of(node)
        if not isinstance(root, ast.Name):
            self.found.attributes.update(attributes)
            self.visit(root)
            return
        local = next((scope for scope in reversed(self._scopes) if root.id in scope.kinds), None)
        if local is None:
            self.found.chains.append((NameChain(root.id, attributes), node))
            return
        for one in local.imports.get(root.id, ()):
            self.found.chains.append((NameChain(root.id, attributes, one), node))
        self.found.attributes.update(attributes)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        outside: list[ast.AST | None] = [*node.args.defaults, *node.args.kw_defaults]
        if not isinstance(node, ast.Lambda):
            outside += node.decorator_list
            if self._annotations:
                arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
                outside += [one.annotation for one in arguments if one is not None] + [node.returns]
        for one in outside:
            if one is not None:
                self.visit(one)
        if self._bodies:
            self._scopes.append(names_of(node))
            for child in [node.body] if isinstance(node, ast.Lambda) else node.body:
                self.visit(child)
            self._scopes.pop()
