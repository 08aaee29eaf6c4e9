"""Which statements of a module have an order that matters: all but definitions and constants, which can stand anywhere."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping

from flatout.pipelines.identity.import_traces import ImportTraces
from flatout.pipelines.identity.modules import Item
from flatout.pipelines.identity.normal import normal_digest
from flatout.pipelines.identity.reach import ReachedModule
from flatout.pipelines.identity.uses import uses_of


def order_of(imports: ImportTraces, reached: ReachedModule, names: Mapping[str, str]) -> list[list[str]]:
    """Statements that count, in order; within a list their order does not matter. `names`: what stands for some."""
    found: list[list[str]] = [[]]
    for index in sorted(reached.items):
        item = reached.module.items[index]
        label = "/".join(names.get(one, one) for one in sorted(item.names)) or normal_digest([item.node], names=names).digest
        if _is_free(imports, reached, item):
            found[-1].append(label)
        else:
            found += [[label], []]
    return [sorted(one) for one in found if one]


def _is_free(imports: ImportTraces, reached: ReachedModule, item: Item) -> bool:
    module = reached.module
    if item.index in reached.effects or not item.names:
        return False
    if any(len(module.by_name.get(name, ())) > 1 or name in vars(builtins) for name in item.names):
        return False
    if module.stars:
        return False
    if isinstance(item.node, ast.Import | ast.ImportFrom):
        return imports.leaves_none(module, item.node)
    used = uses_of([item.node], bodies=False, annotations=not module.lazy_annotations)
    return all(isinstance(getattr(node, "ctx", None), ast.Store) for _, node in used.chains)
