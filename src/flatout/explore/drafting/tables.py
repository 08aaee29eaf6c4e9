"""A recipe for a table: the label, the columns to leave out, and how its files are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import DataError, FlatoutError
from flatout.base.units import show_count
from flatout.explore.drafting.columns import SampledColumn, tells_label
from flatout.explore.drafting.draft import Draft
from flatout.explore.drafting.kinds import Given, relative, split_by_name
from flatout.explore.drafting.labels import choose_label, label_words, target_of
from flatout.explore.drafting.rare import holdout
from flatout.explore.drafting.sample import TableSample, sample_of
from flatout.explore.drafting.sizes import for_table
from flatout.explore.drafting.writing import DraftLine

_ONE = {"numbers": "number", "categories": "category", "dates": "date"}


def draft_table(
    found: Sequence[Given], asked: str | None, folder: Path, known: TableSample | None = None, held_in: Any = None
) -> Draft:
    """`known` is a sample of the files, if there is one already; `held_in` is the table itself, if it is in memory."""
    training, held = split_by_name(found)
    where = training[0].name if len(training) == 1 else f"{training[0].name} and {len(training) - 1} more"
    sample = sample_of(training) if known is None or held else known
    label = choose_label(sample, asked, where)
    if label.marks:  # "maybe" among 0 and 1 is a wrong label, not a missing one
        sample = sample_of(training, label.name)
        label = sample.columns[label.name]
    target = target_of(label)
    inputs = [column for column in sample.columns.values() if column is not label]
    left_out = {column.name: "another value in every row" for column in inputs if column.is_id}
    nested = {column.name: "lists in its cells" for column in inputs if column.kind == "nested"}
    inputs = [column for column in inputs if column.name not in {**left_out, **nested}]
    if not inputs:
        raise DataError(f"{where}: beside the label {label.name!r} there is no column to learn from")
    others, aside = _held_out(held, sample, label, target)
    share = 0.0 if "validation" in others else 0.2 if sample.rows < 200_000 else 0.1
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
    if left_out:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        entries.append(DraftLine("drop", list(left_out), reasons))
    tellers = [column.name for column in inputs if target == "class" and tells_label(column, label)]
    if tellers:
        note = "each of these tells the label by itself: drop what is not known yet when you predict"
        entries.append(DraftLine("drop", [*left_out, *tellers], note, off=True))
    entries += _hints(inputs, sample)
    for part, given in others.items():
        entries.append(
            DraftLine(part, _written(given, folder), "only evaluated on" if part == "validation" else "kept for the end")
        )
    if label.missing or sample.bad:
        missing = f"rows without a label: {label.missing}" if label.missing else None
        what = "; ".join(filter(None, [missing, f"in the first rows, {sample.bad}" if sample.bad else None]))
        entries.append(DraftLine("on_bad", "skip", f"{what}: bad rows are left out and counted; error stops at the first"))
    if share:
        entries += holdout(share, label, target, entries, folder)
    objective = "regress" if target == "number" else "binary" if label.distinct == 2 else "classify"
    facts = _facts(sample, label, target, inputs, {**left_out, **nested}, tellers, others, aside)
    return Draft(
        f"{where}: a table of {_rows(sample)} and {len(sample.columns)} columns", facts, tuple(entries), objective, size
    )


def _written(given: Sequence[Given], folder: Path) -> Any:
    paths = [relative(one.typed, folder) for one in given]
    return paths[0] if len(paths) == 1 else paths


def _held_out(
    held: Sequence[Given], sample: TableSample, label: SampledColumn, target: str
) -> tuple[dict[str, list[Given]], dict[str, str]]:
    """Files for validation and test, and files that can't be used, with the reason. May add options for reading all files."""
    parts: dict[str, list[Given]] = {}
    aside: dict[str, str] = {}
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
    if "test" in parts and "validation" not in parts:
        parts["validation"] = parts.pop("test")
    return parts, aside


def _hints(inputs: Sequence[SampledColumn], sample: TableSample) -> list[DraftLine]:
    """Suggestions, written as comments."""
    hints = []
    few = [column.name for column in inputs if column.kind == "whole" and 3 <= column.distinct <= 12]
    if few and "text" not in sample.options:
        hints.append(DraftLine("text", few, "numbers of few values: as text they become categories", off=True))
    tails = [column.name for column in inputs if column.has_tail][:4]
    if tails:
        steps = {name: ["log", "standardise"] for name in tails}
        hints.append(DraftLine("steps", steps, "a few values far from the rest: the logarithm brings them closer", off=True))
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
    tellers: Sequence[str],
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
    facts += [("look at", f"{', '.join(tellers)}: tells the label by itself")] if tellers else []
    facts += [(part, ", ".join(one.name for one in given)) for part, given in others.items()]
    facts += [("not used", f"{name}: {why}") for name, why in aside.items()]
    facts += [("bad rows", sample.bad)] if sample.bad else []
    return tuple(facts)
