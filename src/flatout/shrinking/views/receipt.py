"""The receipt of a shrunk package: every try with its speed, size and accuracy, their intervals, and why it was not kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine
from flatout.base.units import show_bytes, show_seconds
from flatout.measure.receipt import Entry, Receipt
from flatout.packaging.derived import RECEIPT
from flatout.packaging.package import Package
from flatout.shrinking.views.picture import tries_picture

_COLUMNS = (
    TableColumn("name", "tried"),
    TableColumn("verdict", "verdict"),
    TableColumn("speed", "speed", right=True),
    TableColumn("interval", "95% interval", right=True),
    TableColumn("n", "n", right=True),
    TableColumn("latency_s", "a call", right=True),
    TableColumn("bytes", "size", right=True),
    TableColumn("accuracy", "accuracy", right=True),
    TableColumn("lost", "lost", right=True),
    TableColumn("at_most", "at most", right=True),
    TableColumn("why", "why", shown=False),
    TableColumn("check", "check", shown=False),
)


def has_receipt(package: Package) -> bool:
    return RECEIPT in package.folder.names()


def shrink_doc(package: Package) -> Doc:
    written = package.folder.parsed(RECEIPT, dict)
    receipt, about = Receipt.from_dict(written["receipt"]), written["about"]
    name = str(package.path)
    pictures = tries_picture(receipt, about)
    nodes: list[Node] = [
        TextLine(f"Receipt of {name}: {about['verdict']['sentence']}", strong=True),
        TextLine(_where(receipt, about)),
        TextLine(_judged(about)),
        TextLine(),
        Table("entries", _title(about), [_source_row(about), *(_row(entry, about) for entry in receipt.entries)]),
        TextLine(),
        *(TextLine(f"{_named(entry)}: {entry.verdict}: {entry.why}") for entry in receipt.entries),
        *_final(about),
        *_layers(about),
        *_calibrated(receipt),
        *_trained(receipt),
        TextLine(
            f"Search ended after {show_seconds(receipt.took_s)}: {receipt.stopped}. Energy: {about['energy'] or 'measured'}."
        ),
        *([] if pictures is None else [pictures]),
        Fields({"package": name, "about": about, **{k: v for k, v in receipt.to_dict().items() if k != "entries"}}),
    ]
    return Doc(tuple(nodes))


def _title(about: Mapping[str, Any]) -> tuple[TableColumn, ...]:
    metric, batch = about["metrics"][0]["name"], about["batches"][0]
    titles = {"accuracy": metric, "latency_s": f"a call of {batch}"}
    return tuple(TableColumn(one.key, titles.get(one.key, one.title), right=one.right, shown=one.shown) for one in _COLUMNS)


def _where(receipt: Receipt, about: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in receipt.versions.items())
    source = about["source"]
    others = {name: one for name, one in source["seconds"].items() if name != source["runtime"]}
    slower = "".join(f", {name} {one / source['seconds'][source['runtime']]:.1f}x slower" for name, one in others.items())
    return f"{receipt.machine} · {versions} · source: {source['path']}, served by {source['runtime']}{slower} · {receipt.at}"


def _judged(about: Mapping[str, Any]) -> str:
    rows, metrics = about["rows"], "; ".join(one["words"] for one in about["metrics"])
    return (
        f"Judged on {rows['judging']:,} rows, {rows['origin']}: {metrics}. {rows['calibrating']:,} other rows for calibration, "
        f"{rows['tuning']:,} for choices{_repeated(rows)}. "
        f"Looks at the judging rows: {about['looks']}, each at a stricter level. "
        f"Goal: {about['goal']['words']}; rows in a call: {', '.join(map(str, about['batches']))}."
    )


def _repeated(rows: Mapping[str, Any]) -> str:
    count = rows.get("repeated", 0)  # packages of earlier versions don't say
    return f"; {count:,} left out, as they are among the judging rows too" if count else ""


def _source_row(about: Mapping[str, Any]) -> dict[str, Any]:
    source, metric = about["source"], about["metrics"][0]["name"]
    value = source["metrics"].get(metric)
    seconds = source["latencies"].get("p50")
    return {
        "name": "(source)",
        "latency_s": None if seconds is None else Cell(seconds, show_seconds(seconds)),
        "bytes": Cell(source["bytes"], show_bytes(source["bytes"])),
        "accuracy": None if value is None else Cell(value, f"{value:.4g}"),
    }


def _row(entry: Entry, about: Mapping[str, Any]) -> dict[str, Any]:
    check = entry.check or {}
    metric = about["metrics"][0]
    found = next((one for one in check.get("checks", []) if one["metric"] == metric["name"]), None)
    value = check.get("metrics", {}).get(metric["name"])
    interval = None if entry.low is None or entry.high is None else f"{entry.low:.2f} to {entry.high:.2f}"
    return {
        "name": Cell(entry.name, _named(entry)),
        "verdict": entry.verdict,
        "speed": None if entry.measured is None else Cell(entry.measured, f"{entry.measured:.2f}x"),
        "interval": interval,
        "n": entry.n or None,
        "latency_s": None if entry.step_s is None else Cell(entry.step_s, show_seconds(entry.step_s)),
        "bytes": Cell(check["bytes"], show_bytes(check["bytes"])) if check.get("bytes") else None,
        "accuracy": None if value is None else Cell(value, f"{value:.4g}"),
        "lost": None if found is None else _amount(found["figures"]["difference"], metric["unit"]),
        "at_most": None if found is None else _amount(found["figures"]["upper_bound"], metric["unit"]),
        "why": entry.why,
        "check": entry.check,
    }


def _amount(lost: float, unit: str) -> Cell:
    return Cell(lost, f"{100 * lost:.2f}" if unit == "points" else f"{lost:.4f}")


def _final(about: Mapping[str, Any]) -> Iterator[TextLine]:
    for batch, one in about["final"].items():
        now, was = one["now"], one["was"]
        marks = ", ".join(f"{mark} {show_seconds(now[mark])} (was {show_seconds(was[mark])})" for mark in ("p50", "p99"))
        joules = ""
        if now.get("joules_a_row") and was.get("joules_a_row"):
            joules = f"; {now['joules_a_row']:.2g} J a row (was {was['joules_a_row']:.2g})"
        words = f"{one['speed']:.2f}x [{one['low']:.2f}, {one['high']:.2f}], n={one['n']}"
        yield TextLine(f"Batch {batch}: {words}; {marks}{joules}")


def _layers(about: Mapping[str, Any]) -> Iterator[TextLine]:
    for change, order in about["layers"].items():
        shown = "; ".join(f"{one['layer']} costs {show_seconds(max(one['lost_s'], 0.0))}" for one in order[:6])
        yield TextLine(f"Layers of {change.strip()} by accuracy regained for the time: {shown}")


def _calibrated(receipt: Receipt) -> Iterator[TextLine]:
    """How many rows fixed the ranges, and what of them could not be used."""
    for entry in receipt.entries:
        notes = (entry.check or {}).get("notes", {})
        if "calibration" in notes:
            enough = "with twice as many none grew by more than 1%" if notes["steady"] else "all there were; some still grew"
            parts = [f"ranges from {notes['rows']:,} calibration rows ({enough}), cut by {notes['calibration']}"]
            if odd := notes.get("values_not_finite"):
                parts.append(f"{odd:,} values were not finite and left out")
            if blind := notes.get("without_values"):
                parts.append(f"in float32, as they saw no finite value: {', '.join(blind)}")
            yield TextLine(f"{_named(entry)}: {'; '.join(parts)}")


def _trained(receipt: Receipt) -> Iterator[TextLine]:
    """Of each smaller model once, whatever was tried with it."""
    seen = set[str]()
    for entry in receipt.entries:
        notes = (entry.check or {}).get("notes", {})
        name = _named(entry).partition(",")[0]
        if "trained_s" in notes and name not in seen:
            seen.add(name)
            left = f"{notes['flops']:.0%} of the FLOPs and {notes['weights']:.0%} of the weights left"
            yield TextLine(f"{name}: {left}; trained on {notes['samples']:,} samples in {show_seconds(notes['trained_s'])}")


def _named(entry: Entry) -> str:
    return f"{entry.name.replace('_', ' ')} {entry.value or ''}".strip()
