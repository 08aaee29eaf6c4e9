"""All settings with a file here, found by the name of their field: a new setting needs only its file and that field."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.units import show_value
from flatout.engine.settings import SETTING_NAMES, Settings, is_setting, is_switch, value_of
from flatout.plan import knobs
from flatout.plan.knobs.knob import Decided, Knob, Priced, SettingOwner, SettingRules
from flatout.plan.knobs.splitting import split_conflict


def _owners() -> Iterator[SettingOwner]:
    files = {found.name for found in pkgutil.iter_modules(knobs.__path__)}
    for name in SETTING_NAMES:
        if name in files:
            owner: object = import_module(f"{knobs.__name__}.{name}")
            if not isinstance(owner, SettingOwner) or owner.name != name:
                raise TypeError(f"plan/knobs/{name}.py is not a setting's file: see SettingOwner in plan/knobs/knob.py")
            yield owner


OWNERS = tuple(_owners())  # in the order in which defaults are decided: later ones depend on earlier ones
# tried on a step; those in BEFORE and AFTER are decided without trials, because they do not change the step
KNOBS: tuple[Knob, ...] = tuple(owner for owner in OWNERS if isinstance(owner, Knob))
PRICED: tuple[Priced, ...] = tuple(owner for owner in OWNERS if isinstance(owner, Priced))

_RULES = {owner.name: owner.rules for owner in OWNERS}
_OFF = {owner.name: owner.off for owner in OWNERS}
_UNTRIED = [owner for owner in OWNERS if isinstance(owner, Decided) and not isinstance(owner, Knob)]
_FIRST_TRIED = SETTING_NAMES.index(KNOBS[0].name)
BEFORE: tuple[Decided, ...] = tuple(owner for owner in _UNTRIED if SETTING_NAMES.index(owner.name) < _FIRST_TRIED)
AFTER: tuple[Decided, ...] = tuple(owner for owner in _UNTRIED if SETTING_NAMES.index(owner.name) > _FIRST_TRIED)


def rules_of(name: str) -> SettingRules:
    """Rules of a setting; empty for one without a file and for a knob from the recipe."""
    return _RULES.get(name, SettingRules())


def conflicts(settings: Settings) -> list[str]:
    """Settings that can't be combined, each with a fix."""
    found: list[str] = []
    for owner in OWNERS:
        found += owner.rules.conflicts(settings)
        if value_of(settings, owner.name) != owner.off:
            found += split_conflict(settings, owner.name, owner.rules.not_split_by, show_value(owner.off))
    return found


def off_when_shared(processes: int, mesh: str) -> dict[str, Any]:
    """Settings of a one-process plan that do not work with several processes, or with a model split over them."""
    return {
        owner.name: owner.off
        for owner in OWNERS
        if (owner.rules.one_process and processes > 1) or any(axis in mesh for axis in owner.rules.not_split_by)
    }


def off_value(name: str) -> Any:
    """The value that `--off NAME` pins."""
    if not is_setting(name):
        raise UsageError(f"--off {name}: no such setting; {did_you_mean(name, SETTING_NAMES)}")
    if name in _OFF:
        return _OFF[name]
    if is_switch(name):
        return False
    raise UsageError(f"--off {name}: this setting can't be off; pin a value with --set {name}=...")
