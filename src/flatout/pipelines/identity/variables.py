"""Environment variables that code reads: their values count."""

from __future__ import annotations

import ast
import re

from flatout.pipelines.identity.folding import HOLE, Texts
from flatout.pipelines.identity.modules import CodeModule
from flatout.pipelines.identity.reach import Reach
from flatout.pipelines.identity.recalled import OF_A_SESSION
from flatout.pipelines.identity.uses import Place

_TAKES = {"os.environ.get", "os.getenv", "os.environ.pop", "os.environ.setdefault", "os.environ.__getitem__"}
_CHANGES = {"os.environ.update", "os.putenv", "os.environ.copy"}  # a copy is for other processes, which inherit it anyway


def follow_variables(reach: Reach, module: CodeModule, places: list[Place]) -> None:
    known: set[int] = set()  # nodes of `os.environ` whose use is understood
    for place in places:
        node = place.node
        if isinstance(node, ast.Call):
            _call(reach, module, place, node, known)
        elif isinstance(node, ast.Subscript) and reach.dotted(module, node.value, place.scopes) == "os.environ":
            known.add(id(node.value))
            if not isinstance(node.ctx, ast.Store):
                _take(reach, module, place, node.slice)
        elif isinstance(node, ast.Compare) and any(isinstance(one, ast.In | ast.NotIn) for one in node.ops):
            if reach.dotted(module, node.comparators[-1], place.scopes) == "os.environ":
                known.add(id(node.comparators[-1]))
                _take(reach, module, place, node.left)
        elif isinstance(node, ast.Dict):
            known |= {id(value) for key, value in zip(node.keys, node.values, strict=True) if key is None}
        elif isinstance(node, ast.keyword) and node.arg == "env":
            known.add(id(node.value))
        elif isinstance(node, ast.keyword) and node.arg == "envvar":  # of click and typer
            for one in node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]:
                _take(reach, module, place, one)
        elif isinstance(node, ast.Attribute | ast.Name) and id(node) not in known:
            name = reach.dotted(module, node, place.scopes)
            if name == "os.environ":
                _take_all(reach, module, node, frozenset({HOLE}))
            elif name is not None and name.startswith("os.environ."):
                known.add(id(node.value) if isinstance(node, ast.Attribute) else 0)
                if name not in _TAKES | _CHANGES:
                    _take_all(reach, module, node, frozenset({HOLE}))


def _call(reach: Reach, module: CodeModule, place: Place, node: ast.Call, known: set[int]) -> None:
    name = reach.dotted(module, node.func, place.scopes)
    if name in _TAKES and node.args:
        known.add(id(node.func))
        if isinstance(node.func, ast.Attribute):
            known.add(id(node.func.value))
        _take(reach, module, place, node.args[0])
    elif name == "dict" and node.args and reach.dotted(module, node.args[0], place.scopes) == "os.environ":
        known.add(id(node.args[0]))


def _take(reach: Reach, module: CodeModule, place: Place, name: ast.expr) -> None:
    _take_all(reach, module, name, reach.about(module).folding.texts(name, place.scopes))


def _take_all(reach: Reach, module: CodeModule, node: ast.expr, names: Texts) -> None:
    for name in names:
        if HOLE not in name:
            reach.variables.add(name)
            continue
        pattern = re.compile(".*".join(map(re.escape, name.split(HOLE))))
        taken = {
            one for one in reach.environment if pattern.fullmatch(one) and not (name == HOLE and OF_A_SESSION.fullmatch(one))
        }
        what = "all of the environment" if name == HOLE else f"all environment variables {name.replace(HOLE, '*')}"
        reach.say(f"{module.name}, line {node.lineno}: reads a variable by a name that is known only as it runs; {what} counts")
        reach.variables |= taken
        reach.variable_patterns.add(pattern.pattern)
