"""Memory that grows from step to step, and the variable of the script that holds it."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from flatout.doctor import where
from flatout.doctor.seen import GrowingGraph, ScriptRecord

_MOST_NODES = 20_000
_LOOKS = 3  # consecutive steps


class Growing:
    """Finds variables whose autograd graph grew each time, in the frames that led to the optimizer's step."""

    def __init__(self, seen: ScriptRecord) -> None:
        self._seen = seen
        self._sizes: list[dict[tuple[str, str], int]] = []
        self._frames: dict[tuple[str, str], FrameType] = {}

    def look(self) -> None:
        if len(self._sizes) >= _LOOKS:
            return
        sizes: dict[tuple[str, str], int] = {}
        places: dict[tuple[str, str], tuple[str, int, str]] = {}
        for frame in where.own_frames(sys._getframe(1)):
            for name, value in _variables(frame):
                size = _graph_size(value)
                if size:
                    key = (frame.f_code.co_filename, name)
                    sizes[key] = size
                    places[key] = (frame.f_code.co_filename, frame.f_lineno, name)
        self._sizes.append(sizes)
        if len(self._sizes) == _LOOKS:
            first, middle, last = self._sizes
            for key, (filename, _line, name) in places.items():
                if first.get(key, 0) < middle.get(key, 0) < last[key]:
                    line = _line_that_adds(filename, name)
                    self._seen.memory.kept.append(GrowingGraph(name, line, last[key]))

    def weigh(self, step: int) -> None:
        device = self._seen.device
        used = torch.cuda.memory_allocated() if device == "cuda" else _resident_bytes()
        self._seen.memory.bytes_by_step.append((step, used))


def _variables(frame: FrameType) -> Iterator[tuple[str, Any]]:
    for name, value in list(frame.f_locals.items()):
        if name.startswith("__"):
            continue
        yield name, value
        if name == "self" and hasattr(value, "__dict__"):
            yield from ((f"self.{inner}", held) for inner, held in list(vars(value).items()))


def _graph_size(value: Any) -> int:
    """Autograd graph nodes that this value keeps alive."""
    if isinstance(value, Tensor):
        return _nodes([value.grad_fn]) if value.grad_fn is not None else 0
    if isinstance(value, list | tuple | dict):
        held = list(value.values() if isinstance(value, dict) else value)
        tensors = [t for t in held[-2000:] if isinstance(t, Tensor) and t.grad_fn is not None]
        return _nodes([t.grad_fn for t in tensors]) if tensors else 0
    return 0


def _nodes(roots: list[Any]) -> int:
    seen: set[Any] = set()
    todo = [root for root in roots if root is not None]
    while todo and len(seen) < _MOST_NODES:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        todo.extend(after for after, _ in node.next_functions if after is not None)
    return len(seen)


def _line_that_adds(filename: str, name: str) -> str:
    """The line of the assignment, addition or append that makes it grow."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name:
            return where.place(filename, node.lineno)
        if isinstance(node, ast.Call) and _adds_to(node.func, name):
            return where.place(filename, node.lineno)
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == name for target in node.targets):
            used = {inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name)}
            if name.removeprefix("self.") in used or name in ast.unparse(node.value):
                return where.place(filename, node.lineno)
    return ""


def _adds_to(function: ast.expr, name: str) -> bool:
    if not isinstance(function, ast.Attribute) or function.attr not in ("append", "extend", "add"):
        return False
    return ast.unparse(function.value) == name


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)
