"""A receipt as a tree: each trial with its baseline, both times, and the proof that the result is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine
from flatout.base.units import show_bytes, show_gain, show_joules, show_seconds, show_value
from flatout.measure.receipt import KEPT, Entry, Receipt
from flatout.plan.trials_picture import trials_picture

_COLUMNS = (
    TableColumn("name", "tried"),
    TableColumn("value", "value"),
    TableColumn("instead_of", "instead of"),
    TableColumn("verdict", "verdict"),
    TableColumn("predicted", "predicted", right=True),
    TableColumn("measured", "measured", right=True),
    TableColumn("interval", "95% interval", right=True),
    TableColumn("n", "n", right=True),
    TableColumn("step_s", "step", right=True),
    TableColumn("against_s", "before", right=True),
    TableColumn("step_j", "energy a step", right=True),
    TableColumn("against_j", "energy before", right=True),
    TableColumn("first_s", "start-up", right=True),
    TableColumn("peak_bytes", "memory", right=True),
    TableColumn("why", "why", shown=False),
    TableColumn("check", "check", shown=False),
)


def receipt_doc(name: str, receipt: Receipt, plain: str = "with all settings off", turned: str = "kept") -> Doc:
    """`plain`: describes the baseline. `turned`: the word after the number of kept changes."""
    return Doc(
        (
            TextLine(_headline(name, receipt, plain, turned), strong=True),
            TextLine(_where(receipt)),
            *([] if (drawn := trials_picture(receipt)) is None else [drawn]),
            TextLine(),
            Table("entries", _columns(receipt), [_row(entry) for entry in receipt.entries]),
            TextLine(),
            *(TextLine(f"{_shown(entry)}: {entry.verdict}: {entry.why}{_checked(entry)}") for entry in receipt.entries),
            *_paired(receipt),
            *(TextLine(note) for note in receipt.notes),
            TextLine(f"Search ended after {show_seconds(receipt.took_s)}: {receipt.stopped}."),
            Fields({"run": name, **{key: value for key, value in receipt.to_dict().items() if key != "entries"}}),
            Fields({"gain": receipt.gain}),
        )
    )


def _columns(receipt: Receipt) -> tuple[TableColumn, ...]:
    """Those of energy are shown if it was measured."""
    metered = any(entry.step_j is not None for entry in receipt.entries)
    return tuple(replace(one, shown=metered) if one.key in ("step_j", "against_j") else one for one in _COLUMNS)


def _headline(name: str, receipt: Receipt, plain: str, turned: str) -> str:
    if receipt.gain is None:
        return f"Receipt of {name}: no trials"
    kept = len(receipt.settings) if not receipt.reference else sum(1 for one in receipt.entries if one.verdict == KEPT)
    assert receipt.reference_step_s is not None and receipt.step_s is not None
    arms = f"{show_seconds(receipt.reference_step_s)} a step {plain}, {show_seconds(receipt.step_s)} with {kept} {turned}"
    if receipt.reference_step_j and receipt.step_j:
        less = f"{show_joules(receipt.step_j)} a step instead of {show_joules(receipt.reference_step_j)} ({receipt.meter})"
        arms = f"{arms} · {less}{', which it was chosen by' if receipt.prefer == 'energy' else ''}"
    return f"Receipt of {name}: {receipt.gain:.2f}x · {arms}"


def _where(receipt: Receipt) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in receipt.versions.items())
    how = "trials in a separate process" if receipt.isolated else "trials in the process of the run (not isolated)"
    return f"{receipt.machine} · {versions} · {how} · {receipt.at}"


def _paired(receipt: Receipt) -> list[TextLine]:
    if receipt.paired is None:
        return []
    found = receipt.paired
    return [TextLine(), TextLine(f"Training on the same data: {found['why']} ({found['test']})")]


def _row(entry: Entry) -> dict[str, Any]:
    interval = None if entry.low is None or entry.high is None else f"{entry.low:.2f} to {entry.high:.2f}"
    return {
        "name": Cell(entry.name, entry.name.replace("_", " ")),
        "value": Cell(entry.value, show_value(entry.value)),
        "instead_of": Cell(entry.instead_of, show_value(entry.instead_of)),
        "verdict": entry.verdict,
        "predicted": _factor(entry.predicted),
        "measured": _factor(entry.measured),
        "interval": interval,
        "n": entry.n or None,
        "step_s": None if entry.step_s is None else Cell(entry.step_s, show_seconds(entry.step_s)),
        "against_s": None if entry.against_s is None else Cell(entry.against_s, show_seconds(entry.against_s)),
        "step_j": None if entry.step_j is None else Cell(entry.step_j, show_joules(entry.step_j)),
        "against_j": None if entry.against_j is None else Cell(entry.against_j, show_joules(entry.against_j)),
        "first_s": None if entry.first_s is None else Cell(entry.first_s, show_seconds(entry.first_s)),
        "peak_bytes": None if entry.peak_bytes is None else Cell(entry.peak_bytes, show_bytes(entry.peak_bytes)),
        "why": entry.why,
        "check": entry.check,
    }


def _factor(value: float | None) -> Cell | None:
    return None if value is None else Cell(value, show_gain(value))


def _checked(entry: Entry) -> str:
    return f" ({entry.check['why']})" if entry.verdict == KEPT and entry.check else ""


def _shown(entry: Entry) -> str:
    return f"{entry.name.replace('_', ' ')} {show_value(entry.value)}"
