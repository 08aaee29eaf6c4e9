"""A recipe for a table: the label, the columns to leave out, and how its files are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import DataError, FlatoutError
from flatout.base.units import show_count
from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.drafting.draft import Draft
from flatout.explore.drafting.guarded import GuardedDraft, settle
from flatout.explore.drafting.kinds import Given, relative, split_by_name
from flatout.explore.drafting.labels import choose_label, label_words, target_of
from flatout.explore.drafting.rare import holdout
from flatout.explore.drafting.sample import TableSample, sample_of
from flatout.explore.drafting.sizes import for_table
from flatout.explore.drafting.writing import DraftLine
from flatout.explore.guard.derivable import as_recipe, suggest_columns
from flatout.explore.guard.guard import guard_table, switched_on
from flatout.explore.guard.look import HeldFile, TableLook

_ONE = {"numbers": "number", "categories": "category", "dates": "date"}


def draft_table(
    found: Sequence[Given],
    asked: str | None,
    folder: Path,
    known: TableSample | None = None,
    held_in: Any = None,
    guard: Any = None,
) -> Draft:
    """`known` is a sample of the files, if there is one already; `held_in` is the table itself, if it is in memory. `guard` is
    the option of a recipe: False, {"leak": False}."""
    training, held = split_by_name(found)
    where = training[0].name if len(training) == 1 else f"{training[0].name} and {len(training) - 1} more"
    sample = sample_of(training) if known is None or held else known
    label = choose_label(sample, asked, where)
    if label.marks or label.gaps:  # "maybe" or "unknown" among 0 and 1 is a wrong label, not a missing one
        sample = sample_of(training, label.name)
        label = sample.columns[label.name]
    target = target_of(label)
    nested = {name: "lists in its cells" for name, column in sample.columns.items() if column.kind == "nested"}
    others, aside, files = _held_out(held, sample, label, target)
    share = 0.0 if "validation" in others else 0.2 if sample.rows < 200_000 else 0.1
    look = TableLook(sample.columns, label, target, sample.whole, share > 0, files)
    findings = guard_table(look, switched_on(guard))
    guarded = settle(findings, share > 0)
    taken = {label.name, *guarded.drop, *nested}
    inputs = [column for column in sample.columns.values() if column.name not in taken]
    if not inputs:
        raise DataError(f"{where}: beside the label {label.name!r} there is no column to learn from")
    size = for_table(sample.rows, round(sample.rows * (1 - share)))
    entries = [
        DraftLine("table", _written(training, folder), "a file, a glob, a folder, or a list of them")
        if held_in is None
        else DraftLine("table", held_in),
        *(DraftLine(name, value, sample.reasons.get(name, "")) for name, value in sample.options.items()),
        DraftLine("label", label.name, label_words(label, target) + _first_rows(sample)),
    ]
    if target != "class" or label.kind in ("whole", "number"):
        entries.append(DraftLine("target", target, "or class, where each value is one" if target == "number" else "or number"))
    if nested:
        rest = [name for name in sample.columns if name not in nested]
        entries.append(DraftLine("columns", rest, f"all but {', '.join(nested)}: a cell of a table is one value, not a list"))
    entries += _guarded_lines(guarded, guard)
    entries += _hints(inputs, sample)
    if switched_on(guard) and (suggested := suggest_columns(look, inputs)):
        columns, measured = as_recipe(suggested)
        entries.append(DraftLine("derive", columns, measured, off=True))
    for part, given in others.items():
        entries.append(
            DraftLine(part, _written(given, folder), "only evaluated on" if part == "validation" else "kept for the end")
        )
    if label.missing or sample.bad:
        missing = f"rows without a label: {label.missing}" if label.missing else None
        what = "; ".join(filter(None, [missing, f"in the first rows, {sample.bad}" if sample.bad else None]))
        entries.append(DraftLine("on_bad", "skip", f"{what}: bad rows are left out and counted; error stops at the first"))
    if share:
        entries += [*holdout(share, label, target, [*entries, *guarded.holdout_lines()], folder), *guarded.holdout_lines()]
    objective = "regress" if target == "number" else "binary" if label.distinct == 2 else "classify"
    facts = _facts(sample, label, target, inputs, nested, guarded, others, aside)
    return Draft(
        f"{where}: a table of {_rows(sample)} and {len(sample.columns)} columns",
        facts,
        tuple(entries),
        objective,
        size,
        tuple(findings),
    )


def _written(given: Sequence[Given], folder: Path) -> Any:
    paths = [relative(one.typed, folder) for one in given]
    return paths[0] if len(paths) == 1 else paths


def _held_out(
    held: Sequence[Given], sample: TableSample, label: SampledColumn, target: str
) -> tuple[dict[str, list[Given]], dict[str, str], list[HeldFile]]:
    """Files for validation and test, files that can't be used with the reason, and samples of the first.

    May add options for reading all files.
    """
    parts: dict[str, list[Given]] = {}
    aside: dict[str, str] = {}
    files: list[HeldFile] = []
    for given in held:
        try:
            other = sample_of([given])
        except FlatoutError as error:
            aside[given.name] = str(error)
            continue
        if label.name not in other.columns:
            aside[given.name] = f"it has no column {label.name!r}"
            continue
        if "comment" in other.options:
            sample.options["comment"], sample.reasons["comment"] = other.options["comment"], other.reasons["comment"]
        if target == "class":
            known = {value for value, _ in label.counts}
            strange = {value for value, _ in other.columns[label.name].counts} - known
            if strange and {value.rstrip(".") for value in strange} <= known:
                sample.options["strip"], sample.reasons["strip"] = " .", f"labels of {given.name} end in a dot"
            elif strange:
                aside[given.name] = f"it has the label {min(strange)!r}, which no training row has"
                continue
        part = "test" if "test" in given.name.lower() and len(held) > 1 else "validation"
        parts.setdefault(part, []).append(given)
        files.append(HeldFile(given.name, other.columns))
    if "test" in parts and "validation" not in parts:
        parts["validation"] = parts.pop("test")
    return parts, aside, files


def _guarded_lines(guarded: GuardedDraft, guard: Any) -> list[DraftLine]:
    """What the draft does about findings."""
    lines = []
    if guarded.drop:
        reasons = "; ".join(f"{name}: {why}" for name, why in guarded.drop.items())
        lines.append(DraftLine("drop", list(guarded.drop), reasons))
    if guarded.tellers:
        note = "each of these tells the label by itself: drop what is not known yet when you predict"
        lines.append(DraftLine("drop", [*guarded.drop, *guarded.tellers], note, off=True))
    if guarded.steps:
        lines.append(DraftLine("steps", guarded.steps, guarded.why_steps))
    if guard is not None:
        lines.append(DraftLine("guard", guard, "checks of the data that are switched off"))
    return lines


def _hints(inputs: Sequence[SampledColumn], sample: TableSample) -> list[DraftLine]:
    """Suggestions, written as comments."""
    hints = []
    few = [column.name for column in inputs if column.kind == "whole" and 3 <= column.distinct <= 12]
    if few and "text" not in sample.options:
        hints.append(DraftLine("text", few, "numbers of few values: as text they become categories", off=True))
    return hints


def _first_rows(sample: TableSample) -> str:
    return "" if sample.whole else f" (of the first {show_count(next(iter(sample.columns.values())).rows)} rows)"


def _rows(sample: TableSample) -> str:
    return f"{sample.rows:,} rows" if sample.exact else f"about {show_count(sample.rows, 2)} rows"


def _facts(
    sample: TableSample,
    label: SampledColumn,
    target: str,
    inputs: Sequence[SampledColumn],
    left_out: dict[str, str],
    guarded: GuardedDraft,
    others: dict[str, list[Given]],
    aside: dict[str, str],
) -> tuple[tuple[str, str], ...]:
    kinds = {"numbers": ("whole", "number"), "categories": ("text", "truth", "empty"), "dates": ("date",)}
    counts = {word: sum(column.kind in some for column in inputs) for word, some in kinds.items()}
    what = ", ".join(f"{count} {word if count != 1 else _ONE[word]}" for word, count in counts.items() if count)
    missing = sum(column.missing for column in inputs) / max(1, sum(column.rows for column in inputs))
    marks = f", written {' '.join(sample.options['na'])}" if "na" in sample.options else ""
    facts = [
        ("label", f"{label.name}, {label_words(label, target)}{_first_rows(sample)}"),
        ("inputs", what + (f"; {missing:.1%} of their values are missing{marks}" if missing else "; no value is missing")),
    ]
    files = [words.partition(":")[0] for name, words in sample.reasons.items() if name not in ("na", "strip")]
    facts += [("files", "; ".join(files))] if files else []
    facts += [("left out", "; ".join(f"{name}, {why}" for name, why in left_out.items()))] if left_out else []
    facts += guarded.said
    facts += [(part, ", ".join(one.name for one in given)) for part, given in others.items()]
    facts += [("not used", f"{name}: {why}") for name, why in aside.items()]
    facts += [("bad rows", sample.bad)] if sample.bad else []
    return tuple(facts)
