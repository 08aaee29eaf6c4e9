"""The verdict on a canary as a page and as lines, from the state that a server keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.base.errors import UsageError
from flatout.base.files import read_json
from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine
from flatout.base.units import show_seconds
from flatout.measure.receipt import Entry, Receipt

UNDECIDED = "undecided"  # of a figure, as long as there is no verdict
_HASH_LETTERS = 12
_COLUMNS = (
    TableColumn("figure", "figure"),
    TableColumn("stable", "stable", right=True),
    TableColumn("other", "new", right=True),
    TableColumn("interval", "interval", right=True),
    TableColumn("n", "n of the new", right=True),
    TableColumn("verdict", "verdict", shown=False),  # that of the whole
)


def state_files(place: Path) -> list[Path]:
    """Of canaries and shadows, if this is such a file or a folder with some."""
    if place.is_dir():
        return sorted(place.glob("canary-*.json"))
    return [place] if place.is_file() and place.suffix == ".json" else []


def rollout_doc(place: Path) -> Doc:
    """UsageError if the file is another one."""
    try:
        written = read_json(place)
        receipt = Receipt.from_dict(written["receipt"])
        identity = {name: str(written["identity"][name]) for name in ("model", "stable", "canary")}
        is_shadow, status = bool(written["identity"]["shadow"]), str(written["status"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{place} is no state of a canary ({error!r}); flatout serve --canary writes canary-NAME.json"
        ) from error
    kind = "shadow" if is_shadow else "canary"
    old, new = (identity[name][:_HASH_LETTERS] for name in ("stable", "canary"))
    verdict = f"{status}: {receipt.stopped}" if receipt.stopped else status
    return Doc(
        (
            TextLine(f"{kind} of {identity['model']}: {verdict}", strong=True),
            TextLine(f"package {new} beside {old} · {show_seconds(receipt.took_s)} · {receipt.at}"),
            TextLine(),
            Table("figures", _COLUMNS, [_row(entry) for entry in receipt.entries]),
            TextLine(),
            *map(TextLine, receipt.notes),
            Fields({"kind": kind, "status": status, **identity, "receipt": _plain(receipt)}),
        )
    )


def _plain(receipt: Receipt) -> Mapping[str, Any]:
    found = receipt.to_dict()
    return {name: found[name] for name in ("reference", "settings", "stopped", "notes", "took_s", "at")}


def _row(entry: Entry) -> dict[str, Any]:
    """Shares have intervals, latencies have none."""
    interval = None
    if entry.low is not None and entry.high is not None:
        interval = Cell([entry.low, entry.high], f"{shown_figure('', entry.low)} to {shown_figure('', entry.high)}")
    return {
        "figure": entry.name,
        "stable": Cell(entry.instead_of, shown_figure(entry.name, entry.instead_of)),
        "other": Cell(entry.value, shown_figure(entry.name, entry.value)),
        "interval": interval,
        "n": Cell(entry.n, f"{entry.n:,}"),
        "verdict": entry.verdict,
    }


def shown_figure(figure: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    return show_seconds(value) if figure.startswith("latency") else f"{100 * value:.3g}%"
