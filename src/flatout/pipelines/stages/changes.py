"""Why a stage runs: which part of its key is not as it was, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.pipelines.identity.changes import what_changed
from flatout.pipelines.stages.code_parts import code_from_json

_MOST, _LONGEST = 3, 40


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The parts of two keys of one stage, compared."""
    found = [
        *_values("", before.get("asked"), after.get("asked")),
        *_values("recipe: ", before.get("recipe"), after.get("recipe")),
        *_contents(before.get("inputs"), after.get("inputs")),
        *(f"{_named(name, after)} changed" for name in _differing(before.get("uses"), after.get("uses"))),
        *_code(before.get("code") or {}, after.get("code") or {}),
        *_values("", before.get("versions"), after.get("versions")),
        *_values("environment: ", before.get("environment"), after.get("environment")),
        *_values("", {"machine": before.get("machine")}, {"machine": after.get("machine")}),
    ]
    return [*found[:_MOST], f"and {len(found) - _MOST} more"] if len(found) > _MOST else found


def _named(key: str, parts: Mapping[str, Any]) -> str:
    """The stage that a key of the file names."""
    return str((parts.get("asked") or {}).get(key, key))


def _differing(before: Any, after: Any) -> list[str]:
    before, after = before or {}, after or {}
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def _values(where: str, before: Any, after: Any) -> Iterator[str]:
    """Keys and values, looked into as deep as both have keys."""
    before, after = before or {}, after or {}
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _values(f"{where}{name}.", old, new)
        elif name not in before:
            yield f"{where}{name} is new"
        elif name not in after:
            yield f"{where}{name} is gone"
        else:
            yield f"{where}{name} is {_short(new)}, was {_short(old)}"


def _contents(before: Any, after: Any) -> Iterator[str]:
    before, after = before or {}, after or {}
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            yield f"{name} {'is new' if name not in before else 'is gone' if name not in after else 'changed'}"


def _code(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for file in {**before, **after}:
        old, new = before.get(file), after.get(file)
        if old is None or new is None:
            yield f"{file} {'is new' if old is None else 'is gone'}"
        elif old["digest"] != new["digest"]:
            told = what_changed(code_from_json(old), code_from_json(new))
            yield ", ".join(told[:_MOST]) + (", ..." if len(told) > _MOST else "") if told else f"{file} changed"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
