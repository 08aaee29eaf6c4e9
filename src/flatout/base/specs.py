"""A named part with options, as recipes write it: `cosine`, `{cosine: {warmup: 100}}`, `{crop: 4}`, `package.module:name`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.option_types import fitted, options_of


@dataclass(frozen=True)
class Spec:
    """`value` is the single argument of the short form `{crop: 4}`; `options` are the keywords of the long form."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    value: Any = None

    @classmethod
    def parse(cls, written: object) -> Spec:
        if isinstance(written, Spec):
            return written
        if isinstance(written, str):
            return cls(written)
        if isinstance(written, Mapping) and len(written) == 1:
            ((name, given),) = written.items()
            if isinstance(name, str):
                if given is None:
                    return cls(name)
                if isinstance(given, Mapping):
                    if strays := [key for key in given if not isinstance(key, str)]:
                        raise UsageError(f"{name}: option names must be text, got {strays[0]!r}")
                    return cls(name, dict(given))
                return cls(name, {}, given)
        raise UsageError(f"expected a name, or a name with options such as {{cosine: {{warmup: 100}}}}, got {written!r}")

    def written(self) -> Any:
        """As written in a recipe file; `parse` restores it."""
        if self.value is not None:
            return {self.name: self.value}
        return {self.name: dict(self.options)} if self.options else self.name

    def fitted_to(self, maker: Callable[..., Any], given: Collection[str] = ()) -> Spec:
        """Convert values to the types that `maker` has hints for. Reports all wrong types and unknown options at once."""
        known = options_of(maker)
        own = [name for name in known.names if name not in given]
        problems, options = list[str](), dict[str, Any]()
        if self.value is not None and not own:
            raise UsageError(f"{self.name} takes no value, got {self.value!r}")
        written = self.options if self.value is None else {own[0]: self.value}
        for name, value in written.items():
            if name not in own:
                problems.append(f"{self.name} has no option {name!r}; {did_you_mean(name, own)}")
                continue
            try:
                options[name] = fitted(value, known.hints.get(name))
            except UsageError as error:
                problems.append(f"{self.name}.{name}: {error}")
        if problems:
            raise UsageError("; ".join(problems))
        return replace(self, options=options) if self.value is None else replace(self, value=options[own[0]])

    def call(self, maker: Callable[..., Any], **given: Any) -> Any:
        """Call `maker` with `given` and the options, after checking their names against its signature."""
        parameters = inspect.signature(maker).parameters
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if not open_ended:
            own = [name for name in parameters if name not in given]
            for name in self.options:
                if name not in own:
                    raise UsageError(f"{self.name} has no option {name!r}; {did_you_mean(name, own)}")
            given = {name: value for name, value in given.items() if name in parameters}
        if self.value is not None:
            free = [name for name, p in parameters.items() if name not in given and p.kind is not p.VAR_KEYWORD]
            if not free:
                raise UsageError(f"{self.name} takes no value, got {self.value!r}")
            return maker(**given, **{free[0]: self.value})
        return maker(**given, **self.options)


def pick(table: Mapping[str, Any], name: str, what: str) -> Any:
    """Look up `name` in a table of named parts; the error suggests the most similar name."""
    if name not in table:
        raise UsageError(f"unknown {what} {name!r}; {did_you_mean(name, table)}")
    return table[name]


def import_named(path: str, what: str) -> Any:
    """`package.module:name` -> the object."""
    module_name, _, name = path.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")]):
        raise UsageError(f"{what} {path!r}: expected package.module:name")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # importing a user's module may raise anything
        why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"{what} {path!r}: can't import {module_name!r} ({why})") from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise UsageError(f"{what} {path!r}: {module_name!r} has no {name!r}") from error
    return found
