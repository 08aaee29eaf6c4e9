"""Every setting that has a file here, found by the name of its field: adding one touches its file and that field alone."""

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


OWNERS = tuple(_owners())  # in the order in which defaults are decided: later ones look at earlier ones
# tried out on a step; those BEFORE and AFTER them are decided from what is known, since what they change is around it
KNOBS: tuple[Knob, ...] = tuple(owner for owner in OWNERS if isinstance(owner, Knob))
PRICED: tuple[Priced, ...] = tuple(owner for owner in OWNERS if isinstance(owner, Priced))

_RULES = {owner.name: owner.rules for owner in OWNERS}
_OFF = {owner.name: owner.off for owner in OWNERS}
_UNTRIED = [owner for owner in OWNERS if isinstance(owner, Decided) and not isinstance(owner, Knob)]
_FIRST_TRIED = SETTING_NAMES.index(KNOBS[0].name)
BEFORE: tuple[Decided, ...] = tuple(owner for owner in _UNTRIED if SETTING_NAMES.index(owner.name) < _FIRST_TRIED)
AFTER: tuple[Decided, ...] = tuple(owner for owner in _UNTRIED if SETTING_NAMES.index(owner.name) > _FIRST_TRIED)


def rules_of(name: str) -> SettingRules:
    """Of a setting without a file, and of a knob that the recipe brings along: none."""
    return _RULES.get(name, SettingRules())


def conflicts(settings: Settings) -> list[str]:
    """Settings that can't go together, each with the way out."""
    found: list[str] = []
    for owner in OWNERS:
        found += owner.rules.conflicts(settings)
        if value_of(settings, owner.name) != owner.off:
            found += split_conflict(settings, owner.name, owner.rules.not_split_by, show_value(owner.off))
    return found


def off_when_shared(processes: int, mesh: str) -> dict[str, Any]:
    """What a plan for one process may choose, and several, or a model split over them, can't have."""
    return {
        owner.name: owner.off
        for owner in OWNERS
        if (owner.rules.one_process and processes > 1) or any(axis in mesh for axis in owner.rules.not_split_by)
    }


def off_value(name: str) -> Any:
    """What `--off NAME` pins."""
    if not is_setting(name):
        raise UsageError(f"--off {name}: no such setting; {did_you_mean(name, SETTING_NAMES)}")
    if name in _OFF:
        return _OFF[name]
    if is_switch(name):
        return False
    raise UsageError(f"--off {name}: this setting can't be off; pin a value with --set {name}=...")
