"""What the cells of a text file are: whole numbers, numbers, truth values, dates, or text.

The first rows of a table decide which of these a column holds. After them a column may only become wider: whole numbers become
numbers with fractions, dates become moments. A cell that does not fit is bad: numbers never turn into text unseen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LEAD = 65536
"""So many cells, the first that aren't missing, decide what a column holds."""

_FEW = 0.1  # of the lead: fewer cells of text than this among numbers are taken for mistakes
_PROBE = 64
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_WITH_COMMA = r"^[+-]?(\d+,\d+|\d{1,3}(,\d{3})+(\.\d+)?)$"
_DATE = r"^\d{4}-\d{2}-\d{2}([ T].*)?$"
_HEX = r"^\s*[+-]?0[xX]"
NO_NUMBER = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL", "NaN", "None",
    "n/a", "nan", "null",
)  # fmt: skip
"""Ways to write a missing number. Among texts they stay as they are: "NA" is Namibia, too."""


def families() -> tuple[tuple[Any, ...], ...]:
    """Types from narrow to wide; whatever fits one fits those after it in its family."""
    import pyarrow as pa

    moments = [tuple(pa.timestamp(unit, zone) for unit in ("s", "us", "ns")) for zone in (None, "UTC")]
    return (pa.int64(), pa.float64()), (pa.bool_(),), (pa.date32(), *moments[0]), moments[1]


def inferred(cells: Any) -> Any:
    """The type of a column by its first cells (a string array, null where missing); null when all are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = pc.unique(cells)
    if _tidied(words).null_count == len(words):
        return pa.null()
    kind = _narrowest(words)
    if kind is not None:
        return kind
    tidy = _tidied(cells)
    for pattern in (_NUMBER, _DATE):
        fits = pc.fill_null(pc.match_substring_regex(tidy, pattern), False)
        alike = pc.sum(fits).as_py() or 0
        if alike and alike >= (1 - _FEW) * (len(tidy) - tidy.null_count):
            return _narrowest(pc.unique(tidy.filter(fits))) or pa.string()
    return pa.string()


def with_commas(cells: Any) -> str | None:
    """One of the cells, if nearly all are numbers with commas in them: a decimal point in one country, thousands in another."""
    import pyarrow.compute as pc

    words = cells.drop_null().slice(0, LEAD)
    fits = pc.match_substring_regex(words, _WITH_COMMA)
    whole = pc.match_substring_regex(words, _NUMBER)
    alike = pc.sum(fits).as_py() or 0
    mostly = alike and alike + (pc.sum(whole).as_py() or 0) >= (1 - _FEW) * len(words)
    return str(words.filter(fits)[0].as_py()) if mostly else None


def fitting(cells: Any, kind: Any) -> Any:
    """The narrowest type from `kind` on, within its family, that all these cells fit which fit the family at all."""
    import pyarrow as pa

    if pa.types.is_null(kind):
        kind = inferred(cells.drop_null().slice(0, LEAD))
    if pa.types.is_null(kind) or pa.types.is_string(kind):
        return kind
    wider = next(family[family.index(kind) :] for family in families() if kind in family)
    for candidate in wider:
        if _cast(cells, candidate) is not None:
            return candidate
    _, bad = converted(cells, wider[-1])
    good = cells if bad is None else cells.filter(pa.array(~bad))
    return next(candidate for candidate in wider if _cast(good, candidate) is not None)


def converted(cells: Any, kind: Any) -> tuple[Any, np.ndarray[Any, Any] | None]:
    """The cells as values of `kind`, and which of them are not (they are null in the values); None when all are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(kind):
        return pa.nulls(len(cells)), None
    if pa.types.is_string(kind):
        return cells, None
    values = _cast(cells, kind)
    if values is not None:
        return values, None
    distinct = _tidied(cells).dictionary_encode()
    unfit = np.zeros(len(distinct.dictionary), bool)
    _mark_unfit(distinct.dictionary, kind, unfit, 0)
    bad = pc.fill_null(pa.array(unfit).take(distinct.indices), False)
    fit = pc.if_else(bad, pa.scalar(None, pa.string()), distinct.cast(pa.string()))
    return _cast(fit, kind), bad.to_numpy(zero_copy_only=False)


def _mark_unfit(words: Any, kind: Any, unfit: np.ndarray[Any, Any], start: int) -> None:
    """By halves: the few that don't fit are found in a few casts."""
    if _cast(words, kind) is not None:
        return
    if len(words) == 1:
        unfit[start] = True
        return
    half = len(words) // 2
    _mark_unfit(words.slice(0, half), kind, unfit, start)
    _mark_unfit(words.slice(half), kind, unfit, start + half)


def _narrowest(words: Any) -> Any | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    for family in families():
        for kind in family:
            if _cast(words, kind) is not None:
                hexadecimal = pa.types.is_integer(kind) and pc.any(pc.match_substring_regex(words, _HEX)).as_py()
                return None if hexadecimal else kind
    return None


def _cast(cells: Any, kind: Any) -> Any | None:
    """Values of `kind`, or None if some cell is no such value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(cells) > _PROBE and _cast(cells.slice(0, _PROBE), kind) is None:
        return None  # a cast that fails for every cell takes a thousand times as long as one that succeeds
    for tidy in (False, True):  # most columns need no tidying, which takes as long as the cast
        try:
            values = (_tidied(cells) if tidy else cells).cast(kind)
        except pa.ArrowInvalid:
            continue
        if pa.types.is_floating(kind) and pc.any(pc.is_nan(values)).as_py():
            return pc.if_else(pc.is_nan(values), pa.scalar(None, kind), values)
        return values
    return None


def _tidied(cells: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(cells)
    missing = pc.is_in(trimmed, value_set=pa.array([*NO_NUMBER, ""]))
    return pc.if_else(missing, pa.scalar(None, pa.string()), trimmed)
