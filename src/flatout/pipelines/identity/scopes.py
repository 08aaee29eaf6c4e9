"""Which names a function, a lambda or a comprehension has for itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_INNER = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ClassDef,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)

# code that sees the names of local variables, and code that is given them in a text
_SEES_LOCALS = {"locals", "vars", "eval", "exec", "dir", "f_locals", "_getframe", "currentframe", "stack"}
_TAKES_CODE = {"query", "eval", "sql", "execute", "exec", "evaluate"}


LocalImport = tuple[ast.Import | ast.ImportFrom, ast.alias]


@dataclass
class LocalNames:
    """`kinds`: by name how it is bound: parameter, definition, import, other. Names that are global or nonlocal are none."""

    kinds: dict[str, set[str]] = field(default_factory=dict)
    assigned: dict[str, list[ast.expr | None]] = field(default_factory=dict)  # None: by something else than an assignment
    imports: dict[str, list[LocalImport]] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    of_module: set[str] = field(default_factory=set)  # declared as global

    def add(self, name: str, kind: str, value: ast.expr | None = None) -> None:
        self.kinds.setdefault(name, set()).add(kind)
        self.assigned.setdefault(name, []).append(value)

    def without_elsewhere(self) -> LocalNames:
        for name in self.elsewhere:
            self.kinds.pop(name, None)
        return self


def names_of(function: Function) -> LocalNames:
    found = LocalNames()
    for argument in _arguments(function.args):
        found.add(argument.arg, "parameter")
    body: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
    _collect(body, found)
    return found.without_elsewhere()


def names_in(statements: list[ast.stmt]) -> LocalNames:
    """What statements of a module or of a class bind."""
    found = LocalNames()
    _collect(list(statements), found)
    return found


def names_of_comprehension(node: Comprehension) -> LocalNames:
    found = LocalNames()
    for one in node.generators:
        for name in _stored(one.target):
            found.add(name, "other")
    return found


def names_are_seen(function: Function) -> bool:
    """Something in it looks at local variables by their names."""
    return any(
        (isinstance(node, ast.Name) and node.id in _SEES_LOCALS)
        or (isinstance(node, ast.Attribute) and node.attr in _SEES_LOCALS)
        for node in ast.walk(function)
    )


def renamable(function: Function, found: LocalNames, parameters: bool = False) -> list[str]:
    """Local names that nobody can see from outside; those of `parameters` as well if no caller names them."""
    if names_are_seen(function):
        return []
    inner = list(ast.walk(function))
    seen = {node.id for node in inner if isinstance(node, ast.Name)} | {
        node.attr for node in inner if isinstance(node, ast.Attribute)
    }
    in_texts: set[str] = set()
    if seen & _TAKES_CODE:
        texts = (node.value for node in inner if isinstance(node, ast.Constant) and isinstance(node.value, str))
        in_texts = {word for text in texts for word in _words(text)}
    kept = {"definition", "package"} if parameters else {"parameter", "definition", "package"}
    in_classes = {name for node in inner if isinstance(node, ast.ClassDef) for name in names_in(node.body).kinds}
    return [name for name, kinds in found.kinds.items() if not kinds & kept and name not in in_texts and name not in in_classes]


def _collect(nodes: list[ast.AST], found: LocalNames) -> None:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name, "definition")
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, _INNER):
            _collect_walrus(node, found)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                found.add(name, "import" if alias.asname or isinstance(node, ast.ImportFrom) else "package")
                found.imports.setdefault(name, []).append((node, alias))
        elif isinstance(node, ast.Global | ast.Nonlocal):
            found.elsewhere.update(node.names)
            if isinstance(node, ast.Global):
                found.of_module.update(node.names)
        elif isinstance(node, ast.Assign):
            _collect([node.value], found)
            for target in node.targets:
                _target(target, found, node.value)
            continue
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                _collect([node.value], found)
            _target(node.target, found, node.value)
            continue
        elif isinstance(node, ast.NamedExpr):
            _collect([node.value], found)
            _target(node.target, found, node.value)
            continue
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(node.id, "other")
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found.add(node.name, "other")
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest, "other")
        _collect(list(ast.iter_child_nodes(node)), found)


def _target(target: ast.expr, found: LocalNames, value: ast.expr | None) -> None:
    if isinstance(target, ast.Name):
        found.add(target.id, "other", value)
    else:
        _collect([target], found)


def _collect_walrus(node: ast.AST, found: LocalNames) -> None:
    for one in ast.walk(node):
        if isinstance(one, ast.NamedExpr) and isinstance(one.target, ast.Name):
            found.add(one.target.id, "other")


def _stored(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (one for one in (arguments.vararg, arguments.kwarg) if one is not None)


def _words(text: str) -> set[str]:
    return set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split())
