"""Which statements of a module have an order that matters: all but definitions and constants, which can stand anywhere."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping

from flatout.pipelines.identity.modules import CodeModule, Item
from flatout.pipelines.identity.normal import normal_digest
from flatout.pipelines.identity.reach import Reach, ReachedModule
from flatout.pipelines.identity.uses import uses_of


def order_of(reach: Reach, reached: ReachedModule, names: Mapping[str, str]) -> list[list[str]]:
    """Statements that count, in order; within a list their order does not matter. `names`: what stands for some."""
    found: list[list[str]] = [[]]
    for index in sorted(reached.items):
        item = reached.module.items[index]
        label = "/".join(names.get(one, one) for one in sorted(item.names)) or normal_digest([item.node], names=names).digest
        if _is_free(reach, reached, item):
            found[-1].append(label)
        else:
            found += [[label], []]
    return [sorted(one) for one in found if one]


def _is_free(reach: Reach, reached: ReachedModule, item: Item) -> bool:
    module = reached.module
    if item.index in reached.effects or not item.names:
        return False
    if any(len(module.by_name.get(name, ())) > 1 or name in vars(builtins) for name in item.names):
        return False
    if module.stars:
        return False
    if isinstance(item.node, ast.Import | ast.ImportFrom):
        return _leaves_no_trace(reach, module, item)
    used = uses_of([item.node], bodies=False, annotations=not module.lazy_annotations)
    return all(isinstance(getattr(node, "ctx", None), ast.Store) for _, node in used.chains)


def _leaves_no_trace(reach: Reach, module: CodeModule, item: Item) -> bool:
    """Nothing that an import runs has an effect, here or in modules that it imports in turn."""
    node = item.node
    name = module.absolute(node) if isinstance(node, ast.ImportFrom) else node.names[0].name  # type: ignore[attr-defined]
    waiting, seen = [name, *([f"{name}.{node.names[0].name}"] if isinstance(node, ast.ImportFrom) else [])], set()
    while waiting:
        found = reach.files.find(waiting.pop())
        if found is None or found.name in seen:
            continue
        seen.add(found.name)
        inner = reach.files.module(found)
        reached = reach.modules.get(inner)
        if reached is None:
            continue
        if inner is module or reached.effects:
            return False
        for one in inner.items:
            for import_node, alias in uses_of([one.node], bodies=False).imports:
                base = inner.absolute(import_node) if isinstance(import_node, ast.ImportFrom) else alias.name
                waiting += [base, f"{base}.{alias.name}"]
    return True
