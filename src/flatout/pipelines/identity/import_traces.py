"""Whether an import leaves a trace: nothing that it runs has an effect, here or in modules that it imports in turn."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatout.pipelines.identity.modules import CodeModule
from flatout.pipelines.identity.reach import Reach
from flatout.pipelines.identity.uses import uses_of

Import = ast.Import | ast.ImportFrom


class ImportTraces:
    """Looked up once for all modules that run: by module, whether it or what it imports has effects, and its circle."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._imports = {module: set(self._of_module(module)) for module in reach.modules}
        self._circle: dict[CodeModule, int] = {}
        self._traced: set[CodeModule] = set()
        for circle in _circles(self._imports):
            number = len(self._circle)
            self._circle |= dict.fromkeys(circle, number)
            inner = {one for module in circle for one in self._imports[module]}
            if any(reach.modules[module].effects for module in circle) or inner & self._traced:
                self._traced |= set(circle)

    def leaves_none(self, module: CodeModule, node: Import) -> bool:
        """Modules that import each other depend on which of them is first."""
        found = [one for alias in node.names for one in self._targets(module, node, alias)]
        return not any(one in self._traced or self._circle[one] == self._circle[module] for one in found)

    def _of_module(self, module: CodeModule) -> Iterator[CodeModule]:
        for node, alias in uses_of([item.node for item in module.items], bodies=False).imports:
            yield from self._targets(module, node, alias)

    def _targets(self, module: CodeModule, node: Import, alias: ast.alias) -> Iterator[CodeModule]:
        """The module, the packages around it, and a module of the imported name. Packages of `module` itself run already."""
        name = f"{module.absolute(node)}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            above = ".".join(parts[:end])
            if end < len(parts) and module.name.startswith(f"{above}."):
                continue
            found = self._reach.files.find(above)
            inner = None if found is None else self._reach.files.module(found)
            if inner is not None and inner in self._reach.modules:
                yield inner


def _circles(graph: dict[CodeModule, set[CodeModule]]) -> Iterator[list[CodeModule]]:
    """Groups of modules that reach each other, each after those that it imports (Tarjan's algorithm, without recursion)."""
    index: dict[CodeModule, int] = {}
    low: dict[CodeModule, int] = {}
    stack: list[CodeModule] = []
    on_stack: set[CodeModule] = set()
    for start in graph:
        if start in index:
            continue
        work = [(start, iter(graph[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            module, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(graph[other])))
                    break
                if other in on_stack:
                    low[module] = min(low[module], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == index[module]:
                    group: list[CodeModule] = []
                    while not group or group[-1] is not module:
                        group.append(stack.pop())
                        on_stack.discard(group[-1])
                    yield group
