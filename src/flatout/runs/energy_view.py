"""The energy of a run as a tree: what was used, by which meter, where it went, and what the device draws while idle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.tree import Cell, Node, Table, TableColumn, TextLine
from flatout.base.units import show_energy, show_joules, show_seconds

_COLUMNS = (
    TableColumn("row", "where the energy went"),
    TableColumn("joules", "energy", right=True),
    TableColumn("watts", "mean power", right=True),
    TableColumn("share", "share", right=True),
)
_LEAST = 0.001  # of the whole, to have a row


def energy_nodes(result: Mapping[str, Any], idle_w: float | None = None) -> list[Node]:
    """Empty for a run of a version that kept no energy by phase. `idle_w`: of the device, measured when nothing ran."""
    used = result.get("energy")
    if not isinstance(used, Mapping) or "device" not in used:
        return []
    nodes: list[Node] = [TextLine(meter_line(name, used[name])) for name in ("device", "host") if name in used]
    device, wall_s = used["device"], result.get("wall_seconds") or 0.0
    if "joules" not in device:
        return nodes
    nodes.append(_by_phase(device, result.get("ledger") or {}))
    if rates := rates_line(device):
        nodes.append(TextLine(f"{rates} (training alone, without compiling, evaluation and saves)"))
    if idle_w is not None and wall_s:
        idle = f"{show_energy(idle_w * wall_s)} of the above in {show_seconds(wall_s)}"
        nodes.append(
            TextLine(f"The device draws {idle_w:.0f} W while idle: {idle}, which it would have used without the run too.")
        )
    return nodes


def meter_line(name: str, figures: Mapping[str, Any]) -> str:
    """ "Energy of the device: 12.3 Wh (NVML energy counter, within 0.2%)"."""
    if "joules" not in figures:
        return f"Energy of the {name}: unavailable ({figures.get('why') or 'no meter'})"
    unread = f"; {show_seconds(figures['unread_s'])} of the run could not be read" if figures.get("unread_s") else ""
    return f"Energy of the {name}: {show_energy(figures['joules'])} ({meter_words(figures)}){unread}"


def meter_words(figures: Mapping[str, Any]) -> str:
    error = figures.get("error")
    return f"{figures['meter']}{'' if error is None else f', within {error:.1%}'}"


def rates_line(device: Mapping[str, Any]) -> str:
    """ "13.7 mJ per token, 14 J per sample, 41 kJ per epoch"."""
    names = {"per_token_j": "token", "per_sample_j": "sample", "per_epoch_j": "epoch"}
    return ", ".join(f"{show_joules(device[key])} per {name}" for key, name in names.items() if device.get(key) is not None)


def _by_phase(device: Mapping[str, Any], ledger: Mapping[str, float]) -> Table:
    whole = device["joules"] or 1.0
    rows: list[dict[str, Any]] = []
    fold: list[dict[str, Any]] = []
    for row, joules in sorted(device["by_phase"].items(), key=lambda pair: -pair[1]):
        spent_s = ledger.get(row) or 0.0
        watts = joules / spent_s if spent_s else None
        shown = {
            "row": row,
            "joules": Cell(joules, show_joules(joules)),
            "watts": None if watts is None else Cell(watts, f"{watts:.0f} W"),
            "share": Cell(joules / whole, f"{joules / whole:.1%}"),
        }
        (rows if joules >= _LEAST * whole else fold).append(shown)
    return Table("energy", _COLUMNS, rows, fold=fold, fold_note="rows used less than 0.1%")
