"""The columns of a table by a sample of its rows: kinds, values and missing values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flatout.base.units import show_count
from flatout.data.sources.tables.csv import LEAD, NUMBER, converted, inferred
from flatout.data.sources.tables.dialect import NO_NUMBER

_MARKS = ("?", "(null)", "\\N", "<NA>", "#N/A", "NaN", "nan")  # missing also in a column of text
MEANS_MISSING = {
    *(mark.lower() for mark in (*_MARKS, *NO_NUMBER)), "", "-", "--", "---", ".", "..", "*", "x", "na", "n.a.", "nil", "none",
    "missing", "unknown", "unk", "undefined", "not available", "no data", "nodata", "empty", "blank", "void", "tbd",
}  # fmt: skip
"""Words that mean "missing" in any column."""
_MOST_MARKS, _LONGEST_MARK = 3, 12
WORDS = {
    "whole": "whole numbers", "number": "numbers", "truth": "true and false", "date": "dates", "text": "text",
    "empty": "nothing", "nested": "lists",
}  # fmt: skip


@dataclass(frozen=True)
class SampledColumn:
    """One column of the sample. `values` is an Arrow array; `bad` is the number of cells that do not fit its kind."""

    name: str
    kind: str
    values: Any
    bad: int = 0
    stray: str = ""  # the first bad cell, and its row
    marks: tuple[str, ...] = ()  # words taken for missing that are not the usual ones
    gaps: tuple[str, ...] = ()  # words taken for missing, also the usual ones
    zeros: bool = False  # digits with leading zeros, which a number would lose

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def missing(self) -> int:
        return int(self.values.null_count) - self.bad

    @cached_property
    def counts(self) -> list[tuple[str, int]]:
        """The values as written, the most frequent first."""
        found = self.values.drop_null().value_counts()
        pairs = zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)
        return sorted(((written_value(value), int(count)) for value, count in pairs), key=lambda pair: (-pair[1], pair[0]))

    @property
    def distinct(self) -> int:
        return len(self.counts)

    @cached_property
    def numbers(self) -> np.ndarray[Any, Any]:
        import pyarrow as pa

        return np.asarray(self.values.drop_null().cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))

    @property
    def words(self) -> str:
        """A short description, for a user who has to choose a column."""
        if self.kind in ("whole", "number") and len(self.numbers):
            return f"{WORDS[self.kind]}, {_plain(self.numbers.min())} to {_plain(self.numbers.max())}"
        few = ", ".join(value[:24] for value, _ in self.counts[:4])
        return f"{WORDS[self.kind]}: {few}{', ...' if self.distinct > 4 else ''}" if few else WORDS[self.kind]


def missing_marks(cells: Any) -> list[str]:
    """Words in a column of text (an Arrow string array) that mean "missing": a few among numbers, or the usual ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = cells.drop_null().value_counts()
    values, counts = found.field("values"), found.field("counts").to_numpy(zero_copy_only=False)
    if not len(values):
        return []
    known = pc.is_in(pc.utf8_trim_whitespace(values), value_set=pa.array([*NO_NUMBER, ""]))
    is_number = pc.match_substring_regex(pc.utf8_trim_whitespace(values), NUMBER).to_numpy(zero_copy_only=False)
    others = [str(v).strip() for v in values.filter(pc.and_not(pa.array(~is_number), known)).to_pylist()]
    if counts[is_number].sum() > 0.5 * counts.sum():
        marks = sorted(set(others))
        short = all(len(mark) <= _LONGEST_MARK and not any(map(str.isdigit, mark)) for mark in marks)
        return marks if short and len(marks) <= _MOST_MARKS else []
    return sorted({mark for mark in others if mark in _MARKS})


def seen(name: str, values: Any, marks: Sequence[str] | None = None) -> SampledColumn:
    """A column of the sample. With `marks` it is text of a CSV file: marks become missing, the rest gets its type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if marks is None:
        return SampledColumn(name, _kind(values.type), values)
    unusual: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    if marks:
        trimmed = pc.utf8_trim_whitespace(values)
        gone = pc.is_in(trimmed, value_set=pa.array(list(marks)))
        taken = set(pc.unique(trimmed.filter(gone)).to_pylist())
        unusual = tuple(mark for mark in marks if mark in taken and mark.lower() not in MEANS_MISSING)
        gaps = tuple(mark for mark in marks if mark in taken and mark not in _MARKS and any(map(str.isalpha, mark)))
        values = pc.if_else(gone, pa.scalar(None, pa.string()), values)
    kind = inferred(values.drop_null().slice(0, LEAD))
    if pa.types.is_integer(kind) and pc.any(pc.match_substring_regex(values, r"^0\d+$")).as_py():
        return SampledColumn(name, "text", values, zeros=True)
    made, bad = converted(values, kind)
    if bad is None:
        return SampledColumn(name, _kind(kind), made, marks=unusual, gaps=gaps)
    row = int(bad.argmax())
    stray = f"{_shortened(values[row].as_py())}, first in row {row + 1}"
    return SampledColumn(name, _kind(kind), made, int(bad.sum()), stray, marks=unusual, gaps=gaps)


def _kind(kind: Any) -> str:
    import pyarrow as pa

    types = pa.types
    if types.is_boolean(kind):
        return "truth"
    if types.is_integer(kind):
        return "whole"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_temporal(kind):
        return "date"
    if types.is_null(kind):
        return "empty"
    return "nested" if types.is_nested(kind) or types.is_binary(kind) else "text"


def written_value(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 24 else text[:21] + "...")


def _plain(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e6 else show_count(value)
