"""Values of a YAML file or of Python: a word, a list of choices, (low, high), or a mapping: {low, high, log, linear, whole},
{choices}, {mixture}, each with {if}; and the words of W&B's sweeps: {distribution, min, max, values}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.errors import UsageError, did_you_mean
from flatout.tuning.space.domains import Choices, Domain, Range
from flatout.tuning.space.making import make_choices, make_mixture, make_range
from flatout.tuning.space.parameter import OnlyIf, Parameter, condition_of
from flatout.tuning.space.words import domain_of, parameter_of, values_of

_RANGE = ("low", "high", "log", "linear", "whole")
_OTHERS = ("choices", "mixture", "if")
_SWEEP = ("distribution", "min", "max", "values")
_WORDS = (*_RANGE, *_OTHERS, *_SWEEP)
# of a sweep: log scale, whole numbers
_DISTRIBUTIONS = {"uniform": (False, False), "int_uniform": (False, True), "log_uniform_values": (True, False)}
_FORMS = "such as 1e-4..1e-1, [64, 128], {low: 1e-4, high: 1e-1} or {choices: [64, 128]}"


def is_nested(written: object) -> bool:
    """`model: {hidden: 64|128}`: keys of the recipe, and none of a parameter."""
    return isinstance(written, Mapping) and bool(written) and not any(name in _WORDS for name in written)


def parameter_from(key: str, written: Any) -> Parameter:
    if isinstance(written, Mapping):
        return _from_mapping(key, written)
    if isinstance(written, str) and (found := parameter_of(key, written)) is not None:
        return found
    if isinstance(written, list):
        return Parameter(key, make_choices(written))
    if isinstance(written, tuple):
        if len(written) != 2:
            raise UsageError(f"a tuple is a range (low, high), got {written!r}; choices are a list")
        return Parameter(key, make_range(*written))
    raise UsageError(f"one value is no part of a space, got {written!r}: set it in the recipe; a part of the space is {_FORMS}")


def _from_mapping(key: str, written: Mapping[str, Any]) -> Parameter:
    strays = [name for name in written if name not in _WORDS]
    if strays:
        raise UsageError("; ".join(f"no word {name!r} in a parameter; {did_you_mean(name, _WORDS)}" for name in strays))
    condition: OnlyIf | None = condition_of(written["if"], values_of) if "if" in written else None
    return Parameter(key, _domain({name: value for name, value in written.items() if name != "if"}, condition), condition)


def _domain(written: dict[str, Any], condition: OnlyIf | None) -> Domain:
    if set(written) & set(_SWEEP):
        return _of_sweep(written, condition)
    kinds = [name for name in ("low", "choices", "mixture") if name in written or (name == "low" and "high" in written)]
    if len(kinds) != 1:
        raise UsageError(
            f"expected low and high, or choices, or mixture, got {', '.join(written) or 'nothing'}: write {_FORMS}"
        )
    if kinds == ["low"]:
        return _range(written)
    values = written.pop(kinds[0])
    if isinstance(values, str) and isinstance(values := domain_of(values), Choices):
        values = list(values.values)
    if not isinstance(values, list | tuple):
        raise UsageError(f"{kinds[0]} is a list, got {values!r}")
    if written:
        raise UsageError(f"{', '.join(written)} belongs to a range, not to {kinds[0]}: remove it")
    return make_choices(values, condition is not None) if kinds == ["choices"] else make_mixture([_part(one) for one in values])


def _part(written: Any) -> Range | Choices:
    """Of a mixture."""
    if isinstance(written, Mapping):
        return _range(dict(written))
    found = domain_of(written) if isinstance(written, str) else None
    return found if isinstance(found, Range) else Choices((written,))


def _range(written: Mapping[str, Any]) -> Range:
    strays, lacks = [name for name in written if name not in _RANGE], [name for name in ("low", "high") if name not in written]
    if strays or lacks:
        wrong = [f"{name} is missing" for name in lacks] + [f"{name} does not belong to a range" for name in strays]
        raise UsageError(f"{'; '.join(wrong)}: a range is {{low: 1e-4, high: 1e-1, log: true, whole: false}}")
    for name in ("log", "linear", "whole"):
        if not isinstance(written.get(name, False), bool):
            raise UsageError(f"{name} is true or false, got {written[name]!r}")
    log, linear = written.get("log"), written.get("linear")
    if log is not None and linear is not None and log == linear:
        raise UsageError(f"log: {log} and linear: {linear} contradict each other: give one of them")
    return make_range(
        written["low"], written["high"], (not linear) if log is None and linear is not None else log, written.get("whole")
    )


def _of_sweep(written: dict[str, Any], condition: OnlyIf | None) -> Domain:
    """As W&B writes it."""
    strays = [name for name in written if name not in _SWEEP]
    if strays:
        raise UsageError(f"{', '.join(strays)} does not go with {', '.join(name for name in written if name in _SWEEP)}")
    kind = written.get("distribution", "categorical" if "values" in written else None)
    if kind == "categorical":
        return make_choices(list(written.get("values", ())), condition is not None)
    if kind is not None and kind not in _DISTRIBUTIONS:
        raise UsageError(f"distribution {kind!r} is not supported; {did_you_mean(kind, [*_DISTRIBUTIONS, 'categorical'])}")
    lacks = [name for name in ("min", "max") if name not in written]
    if lacks or "values" in written:
        raise UsageError(f"a range has min and max and no values, got {', '.join(written)}")
    log, whole = _DISTRIBUTIONS.get(str(kind), (False, None))
    return make_range(written["min"], written["max"], log, whole)
