"""The rate and the power of a finished run, and the kind of device that it ran on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flatout.base.errors import UsageError
from flatout.fleet.choosing import MeasuredOn
from flatout.fleet.prices import CPU
from flatout.plan.plan import Plan
from flatout.store.run_folder import RunFolder

# of the names that drivers give to devices; the first that matches
_NAMES = (
    (r"B200", "b200"),
    (r"H200", "h200"),
    (r"H100.*PCIe", "h100-pcie"),
    (r"H100", "h100"),
    (r"A100.*40GB", "a100-40gb"),
    (r"A100", "a100"),
    (r"L40S", "l40s"),
)


def measured_in(folder: RunFolder, unit: str) -> MeasuredOn:
    """UsageError if the run has not ended or ran on something that the estimates do not know."""
    result, plan = folder.result, folder.parsed("plan.json", Plan.from_dict)
    rate = result.get("tokens_per_s" if unit == "tokens" else "samples_per_s")
    if folder.status != "finished" or not isinstance(rate, int | float) or rate <= 0:
        raise UsageError(f"--run: {folder.name} has no rate: it is {folder.status}; name a finished run")
    if plan.settings.mesh:
        raise UsageError(
            f"--run: {folder.name} ran on several devices ({plan.settings.mesh}); give its rate as --measured KIND:DEVICES=RATE"
        )
    watts = _watts(result)
    if plan.settings.device == "cpu":
        from flatout.machine.host import usable_cores

        cores = usable_cores()
        return MeasuredOn(CPU, cores, float(rate), f"measured on {cores} cores ({folder.name})", watts)
    kind = next((kind for pattern, kind in _NAMES if re.search(pattern, plan.machine, re.IGNORECASE)), None)
    if kind is None:
        raise UsageError(f"--run: {folder.name} ran on {plan.machine}, a kind of device that is not estimated")
    return MeasuredOn(kind, 1, float(rate), f"measured on {plan.machine} ({folder.name})", watts)


def _watts(result: Mapping[str, Any]) -> float | None:
    """Mean power of the device while it trained."""
    device = (result.get("energy") or {}).get("device") or {}
    joules, seconds = device.get("joules"), result.get("wall_seconds")
    return joules / seconds if isinstance(joules, int | float) and isinstance(seconds, int | float) and seconds > 0 else None
