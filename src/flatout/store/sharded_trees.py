"""Documents of `encode`, one per rank: merge them into the run's document, and take it apart again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from flatout.store.tensors import with_stride

_ELSEWHERE = object()


def merged(one: Any, other: Any) -> Any:
    """The union of both. If they differ at a place, the first one's value, which is the lower rank's."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [merged(a, b) for a, b in zip(one, other, strict=True)]
    if isinstance(one, dict) and isinstance(other, dict):
        if not one:
            return other
        if "$items" in one and "$items" in other:
            pairs = {key: value for key, value in other["$items"]}
            found = [[key, merged(value, pairs.pop(key)) if key in pairs else value] for key, value in one["$items"]]
            return {"$items": found + [list(pair) for pair in pairs.items()]}
        if "$tuple" in one and "$tuple" in other:
            return {"$tuple": merged(one["$tuple"], other["$tuple"])}
        if not any(key.startswith("$") for key in (*one, *other)):
            both = {key: merged(value, other[key]) if key in other else value for key, value in one.items()}
            return {**both, **{key: value for key, value in other.items() if key not in one}}
    return one


def named_in(document: Any) -> Iterator[str]:
    """The names of a document's tensors."""
    if isinstance(document, list):
        for node in document:
            yield from named_in(node)
    elif isinstance(document, dict):
        if "$tensor" in document:
            yield document["$tensor"]
        else:
            for node in document.values():
                yield from named_in(node)


def placed(document: Any, tree: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a document that have a place in this tree, with the tensor at that place."""
    if isinstance(document, dict) and "$tensor" in document:
        if isinstance(tree, Tensor):
            yield document["$tensor"], tree
    else:
        for key, node in _inside(document):
            if (found := _at(tree, key)) is not None:
                yield from placed(node, found)


def built(document: Any, tree: Any, wholes: Mapping[str, Tensor]) -> Any:
    """Like `decode`, with tensors from `tree` or else from `wholes`. Tensors in neither belong to another rank."""
    found = _built(document, tree, wholes)
    return None if found is _ELSEWHERE else found


def _built(document: Any, tree: Any, wholes: Mapping[str, Tensor]) -> Any:
    if isinstance(document, dict) and "$tensor" in document:
        if isinstance(tree, Tensor):
            return tree
        name = document["$tensor"]
        return with_stride(wholes[name], document.get("stride")) if name in wholes else _ELSEWHERE
    if not isinstance(document, dict | list):
        return document
    inside = [(key, _built(node, _at(tree, key), wholes)) for key, node in _inside(document)]
    if isinstance(document, list) or "$tuple" in document:
        values = [None if value is _ELSEWHERE else value for _, value in inside]
        return values if isinstance(document, list) else tuple(values)
    kept = {key: value for key, value in inside if value is not _ELSEWHERE}
    return kept if kept or not inside else _ELSEWHERE


def _inside(document: Any) -> list[tuple[Any, Any]]:
    if isinstance(document, list):
        return list(enumerate(document))
    if not isinstance(document, dict):
        return []
    if "$tuple" in document:
        return list(enumerate(document["$tuple"]))
    if "$items" in document:
        return [(key, node) for key, node in document["$items"]]
    return list(document.items())


def _at(tree: Any, key: Any) -> Any:
    if isinstance(tree, Mapping):
        return tree.get(key)
    if isinstance(tree, list | tuple) and isinstance(key, int) and key < len(tree):
        return tree[key]
    return None
