"""Names of a module that only its own code names: they stand for what they are set to, so that they can be called otherwise.

A variable or an import has no way to learn its name. A function has one: so it counts only if all that its module does with it
is to call it. Whoever looks for names in texts or in namespaces could see them, so there must be none of either.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from flatout.pipelines.identity.modules import CodeModule, Item
from flatout.pipelines.identity.normal import Annotations, normal_digest
from flatout.pipelines.identity.reach import Reach, ReachedModule
from flatout.pipelines.identity.scopes import names_in
from flatout.pipelines.identity.uses import uses_of

OwnNames = Mapping[CodeModule, Mapping[str, str]]
_ITSELF = "%itself"
# a module's own names; those of other modules are seen by code of which all that it reaches counts
_SEES_NAMES = {"locals", "vars", "globals", "eval", "exec", "dir", "compile", "__dict__", "getmembers"}
_SHOWS_FUNCTIONS = {"traceback", "cProfile", "profile", "trace", "faulthandler", "tracemalloc", "loguru", "structlog", "pdb"}
_SHOWN_BY = {"settrace", "setprofile", "co_name", "f_code", "__code__", "co_names", "co_qualname"}
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class _Seen:
    """What code could see names with: words in texts, namespaces, and what shows the names of functions."""

    words: frozenset[str]
    sees_names: bool
    shows_functions: bool
    of_classes: frozenset[str]


def own_names(reach: Reach) -> OwnNames:
    """By module: what stands for such a name."""
    seen = {module: _look_through(module, reach.docstrings) for module in reach.modules}
    if reach.raw_sources:
        return {}
    words = frozenset().union(*(one.words for one in seen.values()))
    shows_functions = any(one.shows_functions for one in seen.values())
    given_on = reach.star_sources()
    found = {}
    for module, reached in reach.modules.items():
        is_seen = reached.whole or seen[module].sees_names or module in given_on or module.stars
        if is_seen or module.path in reach.files.damaged:
            continue
        hidden = words | seen[module].of_classes
        items = {
            name: item
            for item in (module.items[index] for index in sorted(reached.items))
            for name in item.names
            if name not in hidden and _is_own(reach, module, item, name, shows_functions)
        }
        found[module] = _named_by_content(reach, reached, items)
    return found


def has_own_parameters(reach: Reach, module: CodeModule, item: Item, names: OwnNames) -> bool:
    """Whether nobody can know what the parameters of a function are called: it has an own name, and no call names them."""
    own = names.get(module, {})
    return isinstance(item.node, ast.FunctionDef) and all(
        name in own and (module, name) not in reach.called_by_keyword for name in item.names
    )


def _look_through(module: CodeModule, docstrings: bool) -> _Seen:
    words: set[str] = set()
    sees = shows = False
    of_classes: set[str] = set()
    unseen: set[int] = set()  # docstrings, and texts that nothing takes
    for node in ast.walk(module.tree):  # statements come before what they hold
        if isinstance(node, ast.Expr) and not docstrings:
            unseen.add(id(node.value))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in unseen:
                words.update(_WORD.findall(node.value))
        elif isinstance(node, ast.Name):
            sees = sees or node.id in _SEES_NAMES
        elif isinstance(node, ast.Attribute):
            sees = sees or node.attr in _SEES_NAMES
            shows = shows or node.attr in _SHOWN_BY
        elif isinstance(node, ast.alias):
            shows = shows or node.name.partition(".")[0] in _SHOWS_FUNCTIONS
        elif isinstance(node, ast.ClassDef):
            of_classes |= names_in(node.body).kinds.keys()
    return _Seen(frozenset(words), sees, shows or "funcName" in words, frozenset(of_classes))


def _is_own(reach: Reach, module: CodeModule, item: Item, name: str, shows_functions: bool) -> bool:
    if len(item.names) > 1 or len(module.by_name.get(name, ())) != 1 or name in module.set_by_functions:
        return False
    if (module, name) in reach.named_elsewhere or item in reach.taken_by_name:
        return False
    if name in vars(builtins) or name.startswith("__"):
        return False
    node = item.node
    if isinstance(node, ast.FunctionDef):
        inside = (one for statement in node.body for one in ast.walk(statement))
        has_inner = any(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for one in inside)
        is_called = (module, name) not in reach.not_just_called
        return is_called and not has_inner and not node.decorator_list and not shows_functions and not reach.annotations
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.value is not None and not reach.annotations
    if isinstance(node, ast.Assign):
        return len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    return isinstance(node, ast.Import | ast.ImportFrom) and "." not in node.names[0].name


def _named_by_content(reach: Reach, reached: ReachedModule, items: Mapping[str, Item]) -> dict[str, str]:
    """Of several with the same content each has a number: they may be different objects."""
    needs = {
        name: {chain.root for chain, _ in uses_of([item.node]).chains if chain.root in items and chain.root != name}
        for name, item in items.items()
    }
    while True:
        sorter = TopologicalSorter(needs)
        try:
            sorter.prepare()
            break
        except CycleError as error:  # functions that call each other keep their names
            circle = set(error.args[1])
            needs = {name: others - circle for name, others in needs.items() if name not in circle}
    found: dict[str, str] = {}
    while ready := sorter.get_ready():  # equal contents are ready at once
        counts: dict[str, int] = {}
        contents: dict[str, str] = {}
        for name in sorted(ready, key=lambda one: items[one].index):
            parameters = (reached.module, name) not in reach.called_by_keyword
            content = normal_digest(
                [_without_type(items[name].node)],
                annotations=Annotations.NONE,
                names={**found, name: _ITSELF},
                own_parameters=parameters,
            ).digest
            counts[content] = counts.get(content, -1) + 1
            contents[name] = f"%{content[:32]}.{counts[content]}"
        found |= contents
        sorter.done(*ready)
    return found


def _without_type(node: ast.stmt) -> ast.stmt:
    """What stands for a name need not know its type, which counts where it is set."""
    return ast.Assign([node.target], node.value) if isinstance(node, ast.AnnAssign) and node.value is not None else node
