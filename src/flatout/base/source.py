"""The text of the code behind an object, so that a run can tell whether its model is still the one it began with.

An edit to a helper changes a model as much as an edit to its class: what the code names is followed as far as the user's own
files go. Installed libraries are left out: their versions are recorded elsewhere.
"""

from __future__ import annotations

import functools
import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def source_text(thing: object) -> str:
    """The source of a class or function and of everything of the user's own that it names, in a stable order."""
    pieces: dict[object, str] = {}
    _collect(thing, "", pieces)
    return "\n".join(sorted(pieces.values()))


def _collect(thing: Any, name: str, pieces: dict[object, str]) -> None:
    if isinstance(thing, functools.partial):
        _collect(thing.func, name, pieces)
        for place, given in [*enumerate(thing.args), *thing.keywords.items()]:
            _collect(given, f"{name}({place})", pieces)
    elif isinstance(thing, MethodType):
        _collect(thing.__func__, name, pieces)
        _collect(type(thing.__self__), name, pieces)
    elif isinstance(thing, type | FunctionType):
        if thing not in pieces and not _is_installed(thing):
            pieces[thing] = _text(thing)
            for used_name, used in _used_by(thing):
                _collect(used, f"{thing.__module__}.{thing.__qualname__}:{used_name}", pieces)
    elif _is_constant(thing):
        pieces[name] = f"{name} = {thing!r}"
    elif callable(thing):
        _collect(type(thing), name, pieces)


def _used_by(thing: type | FunctionType) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, type):
        yield from ((base.__name__, base) for base in thing.__bases__)
        for member in vars(thing).values():
            plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if isinstance(plain, FunctionType):
                yield from _used_by(plain)
        return
    names = {name for code in _codes(thing.__code__) for name in code.co_names}
    seen = {name: thing.__globals__[name] for name in names & thing.__globals__.keys()}
    for name, found in (seen | dict(inspect.getclosurevars(thing).nonlocals)).items():
        if isinstance(found, ModuleType):
            yield from ((inner, vars(found)[inner]) for inner in names & vars(found).keys())
        else:
            yield name, found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _text(thing: type | FunctionType) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):  # typed at a prompt or made by exec: the bytecode is all there is
        members = [thing] if isinstance(thing, FunctionType) else vars(thing).values()
        codes = [code for member in members if isinstance(member, FunctionType) for code in _codes(member.__code__)]
        return "\n".join(f"{code.co_code.hex()} {code.co_names} {list(filter(_is_constant, code.co_consts))}" for code in codes)


def _is_installed(thing: type | FunctionType) -> bool:
    try:
        file = Path(inspect.getfile(thing)).resolve()
    except (OSError, TypeError):
        return thing.__module__ != "__main__"  # built into the interpreter, unless typed at its prompt
    return any(file.is_relative_to(folder) for folder in _INSTALLED)


def _is_constant(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_constant(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str | bytes)
