"""A gate's result for a terminal, a page, JSON and a pull request."""

from __future__ import annotations

from dataclasses import asdict

from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine
from flatout.pipelines.gate.checks import FAIL, NO_VERDICT, PASS, GateCheck
from flatout.pipelines.gate.verb import CostCheck, GateResult

_COLUMNS = (
    TableColumn("what", ""),
    TableColumn("new", "new", right=True),
    TableColumn("old", "old", right=True),
    TableColumn("lost", "lost", right=True),
    TableColumn("margin", "margin", right=True),
    TableColumn("n", "rows", right=True),
    TableColumn("verdict", ""),
)
_MARKS = {PASS: "pass", FAIL: "**FAIL**", NO_VERDICT: "*no verdict*"}


def gate_doc(result: GateResult) -> Doc:
    return Doc(
        (
            Fields({"verdict": result.verdict, "why": result.sentence, **result.about}),
            TextLine(f"{result.verdict.upper()}: {result.sentence}", strong=True),
            TextLine(),
            Table("table", _COLUMNS, _rows(result)),
            Fields({"checks": [one.to_dict() for one in result.checks], "costs": [asdict(one) for one in result.costs]}),
            Fields({"notes": list(result.notes)}),
            *(TextLine(f"({note})") for note in result.notes),
            *([TextLine(f"({_fine_print(result)})")] if result.about["comparisons"] > 1 else []),
        )
    )


def markdown(result: GateResult) -> str:
    """For a comment on a pull request."""
    columns = [column.title or column.key for column in _COLUMNS]
    lines = [f"**{result.verdict.upper()}** · {result.sentence}", "", _row(columns), _row(["---"] * len(columns))]
    for row in _rows(result):
        cells = [_text(row[column.key]) for column in _COLUMNS]
        lines.append(_row([*cells[:-1], _MARKS[str(row["verdict"])]]))
    notes = [*result.notes, *([_fine_print(result)] if result.about["comparisons"] > 1 else [])]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]).rstrip() + "\n"


def _rows(result: GateResult) -> list[dict[str, object]]:
    return [*(_check_row(one) for one in result.checks), *(_cost_row(one) for one in result.costs)]


def _check_row(one: GateCheck) -> dict[str, object]:
    digits = ".4g"
    return {
        "what": f"  {one.slice}" if one.slice else one.metric,
        "new": Cell(one.new, f"{one.new:{digits}}"),
        "old": Cell(one.old, "" if one.old is None else f"{one.old:{digits}}"),
        "lost": Cell(one.lost, f"{one.lost:.2g} [{one.low:.2g}, {one.high:.2g}]"),
        "margin": Cell(one.margin, f"{one.margin:g}"),
        "n": Cell(one.n, f"{one.n:,}"),
        "verdict": one.verdict,
    }


def _cost_row(one: CostCheck) -> dict[str, object]:
    interval = f" [{one.low:.2f}, {one.high:.2f}]" if one.low != one.high else ""
    return {
        "what": one.what,
        "new": Cell(one.new, f"{one.new:.3g}"),
        "old": Cell(one.old, f"{one.old:.3g}"),
        "lost": Cell(one.ratio, f"{one.ratio:.2f}x{interval}"),
        "margin": Cell(one.limit, "any" if one.limit is None else f"{1 + one.limit:g}x"),
        "n": "",
        "verdict": one.verdict,
    }


def _fine_print(result: GateResult) -> str:
    look = f", look {result.about['look']}" if result.about["look"] > 1 else ""
    return f"{result.about['comparisons']} comparisons share an error of 5%{look}; intervals are one-sided at each end"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _text(value: object) -> str:
    return value.text if isinstance(value, Cell) else str(value)
