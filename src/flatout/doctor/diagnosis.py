"""The report of a diagnosis: where the time of a step goes, the findings, and expected speed-ups.

What makes the results wrong comes first, whatever it costs; then what costs time. There a remedy that keeps the training as it
is goes before one that changes it, unless that is worth several times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine
from flatout.base.units import show_count, show_seconds, show_share
from flatout.doctor.account import ROWS, UNATTRIBUTED
from flatout.doctor.case import Case
from flatout.doctor.finding import CHANGES, WRONG, Finding
from flatout.doctor.findings.all import FINDINGS

WORTH_SAYING = 0.01  # of a step
_ESTIMATE, _CHANGES = 0.5, 0.25  # of the cost that count for the order: what was measured here is surer
_SHOWN_ROWS = 0.005
_COSTLY = "What costs time, what counts most first:"
_LEDGER = (
    TableColumn("row", ""),
    TableColumn("ms", "", right=True),
    TableColumn("share", "", right=True),
    TableColumn("where", ""),
)


@dataclass(frozen=True)
class Diagnosis:
    case: Case
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()


def diagnose(case: Case, notes: Sequence[str] = ()) -> Diagnosis:
    found = [finding for look in FINDINGS for finding in look(case)]
    worth = [one for one in found if one.always or one.about == WRONG or _is_costly(one, case)]
    return Diagnosis(case, tuple(sorted(worth, key=lambda one: _rank(one, case.step_ms))), tuple(notes))


def _rank(one: Finding, step_ms: float) -> tuple[bool, float]:
    counted_ms = one.cost_ms * (_ESTIMATE if one.estimate else 1.0)
    if one.about == CHANGES:  # a quarter of the time saved, or a quarter of the gain where that is more: 12x counts as 3x
        counted_ms = max(_CHANGES * counted_ms, step_ms - (step_ms - min(counted_ms, 0.98 * step_ms)) / _CHANGES)
    return one.about != WRONG, -counted_ms


def _is_costly(one: Finding, case: Case) -> bool:
    return case.share(one.cost_ms) >= WORTH_SAYING


def doc(diagnosis: Diagnosis) -> Doc:
    case = diagnosis.case
    step_ms, samples = case.step_ms, case.samples_per_step
    return Doc(
        (
            Fields(
                {
                    "steps": case.seen.steps,
                    "step_ms": step_ms,
                    "samples_per_s": 1e3 * samples / step_ms if samples and step_ms else None,
                    "ceiling_share": case.ceiling_share,
                }
            ),
            TextLine(_headline(case), strong=True),
            Table("ledger", _LEDGER, *_ledger_rows(case), fold_note="rows below 0.5% are not shown"),
            TextLine(),
            *_finding_lines(diagnosis),
            Fields({"findings": [_finding_row(one, case) for one in diagnosis.findings]}),
            *(TextLine(f"({note})") for note in diagnosis.notes),
        )
    )


def nothing(steps: int) -> dict[str, object]:
    """The report's data for a script with too few steps."""
    return {"steps": steps, "step_ms": None, "samples_per_s": None, "ceiling_share": None, "ledger": [], "findings": []}


def _headline(case: Case) -> str:
    samples, device = case.samples_per_step, _device_kind(case)
    rate = f"{show_count(1e3 * samples / case.step_ms)} samples/s" if samples else f"{show_count(1e3 / case.step_ms)} steps/s"
    share = case.ceiling_share
    of = "" if share is None else f", {show_share(share)} of this {device}'s measured peak"
    return f"Your script trains at {rate}{of}. A step takes {show_seconds(case.step_ms / 1e3)}:"


def _device_kind(case: Case) -> str:
    return "CPU" if not case.on_device else "GPU"


def _ledger_rows(case: Case) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    ordered = sorted(ROWS, key=lambda row: (row == UNATTRIBUTED, -case.rows[row]))
    shown: list[dict[str, object]] = []
    folded: list[dict[str, object]] = []
    for row in ordered:
        ms = case.rows[row]
        line: dict[str, object] = {
            "row": Cell(row, f"  {row}"),
            "ms": Cell(ms, show_seconds(ms / 1e3)),
            "share": Cell(case.share(ms), show_share(case.share(ms))),
            "where": case.places.get(row, ""),
        }
        (shown if case.share(ms) >= _SHOWN_ROWS or row == UNATTRIBUTED else folded).append(line)
    return shown, folded


def _finding_row(finding: Finding, case: Case) -> dict[str, object]:
    return {
        "id": finding.id,
        "what": finding.what,
        "cost_ms": finding.cost_ms,
        "share": case.share(finding.cost_ms),
        "estimate": finding.estimate,
        "about": finding.about,
        "where": finding.where,
        "evidence": finding.evidence,
        "remedy": finding.remedy,
        "predicted_gain": finding.predicted_gain(case.step_ms),
    }


def _finding_lines(diagnosis: Diagnosis) -> list[TextLine]:
    case = diagnosis.case
    listed = [one for one in diagnosis.findings if one.about == WRONG or _is_costly(one, case)]
    wrong = [one for one in listed if one.about == WRONG]
    lines = [TextLine("What makes the results wrong:"), *_numbered(wrong, 1, case), TextLine()] if wrong else []
    costly = listed[len(wrong) :]
    lines.append(TextLine(_COSTLY if costly else "Nothing found that would save more than 1% of a step."))
    lines += _numbered(costly, 1 + len(wrong), case)
    lines += _note_lines(diagnosis)
    worth = [
        f"{one.short} {one.predicted_gain(case.step_ms):.3g}x"
        for one in sorted(diagnosis.findings, key=lambda one: -one.predicted_gain(case.step_ms))
        if one.short and one.predicted_gain(case.step_ms) >= 1.01
    ]
    if worth:
        lines += [TextLine(), TextLine("Expected speed-ups, largest first: " + " · ".join(worth))]
    return lines


def _numbered(findings: Sequence[Finding], first: int, case: Case) -> list[TextLine]:
    return [
        line for number, one in enumerate(findings, first) for line in _told(f"{number}. ", one.what + _cost(one, case), one)
    ]


def _cost(one: Finding, case: Case) -> str:
    if one.about == WRONG:
        return ""
    said = [*(["estimate"] if one.estimate else []), *(["changes the training"] if one.about == CHANGES else [])]
    return f": {show_share(case.share(one.cost_ms))}" + (f" ({', '.join(said)})" if said else "")


def _note_lines(diagnosis: Diagnosis) -> list[TextLine]:
    """Findings that are reported however small their cost: without a number, a share or a place in the list."""
    noted = [one for one in diagnosis.findings if one.about != WRONG and not _is_costly(one, diagnosis.case)]
    lines = [TextLine(), TextLine("Also noticed (cost below 1% of a step, or not measured):")] if noted else []
    for one in noted:
        lines += _told("- ", one.what, one)
    return lines


def _told(mark: str, title: str, one: Finding) -> list[TextLine]:
    place = f"  {one.where}" if one.where else ""
    indent = " " * len(mark)
    return [
        TextLine(f"{mark}{title}{place}  [{one.id}]", strong=True),
        TextLine(f"{indent}{one.evidence}"),
        TextLine(f"{indent}Fix: {one.remedy}"),
    ]
