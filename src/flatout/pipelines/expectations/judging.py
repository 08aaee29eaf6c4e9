"""Whether a table is as expected: each sentence names a column, what was expected and what came."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flatout.base.errors import did_you_mean
from flatout.pipelines.expectations.columns import look_at, read_table

_TYPES = {"number": ("number", "whole"), "whole": ("whole",), "text": ("text",), "date": ("date",), "truth": ("truth",)}
_MOST_SHOWN, _FEW = 5, 50
_NOISE_SDS = 3.0


def judge(spec: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """`problems` is empty if all is as expected. `columns` is what a later version is compared with."""
    table = read_table(home / spec["table"], spec.get("delimiter"))
    reference = spec.get("reference") or {}
    earlier: Mapping[str, Any] = reference.get("columns") or {}
    columns = {
        name: look_at(table[name], (earlier.get(name) or {}).get("edges"))
        for name in dict.fromkeys(table.column_names)
        if table.column_names.count(name) == 1
    }
    problems = list(_problems(spec, table, columns))
    both = [name for name in columns if name in earlier and not (_is_id(columns[name]) or _is_id(earlier[name]))]
    moved = {name: _moved(columns[name], earlier[name]) for name in both}
    drift = spec.get("drift")
    if drift is not None and earlier:
        problems += _drifted(columns, earlier, moved, float(drift))
    else:
        moved = {}
    words = f"{len(table):,} rows, {len(columns)} columns as expected" + _drift_words(drift, earlier, moved)
    # bins by the edges of the first version would lose their meaning slowly: each version that passes gets its own
    kept = {name: look_at(table[name]) for name in columns} if not problems else columns
    return {"rows": len(table), "columns": kept, "problems": problems, "moved": moved, "words": words}


def _drift_words(drift: Any, earlier: Mapping[str, Any], moved: Mapping[str, float]) -> str:
    if drift is None:
        return ""
    if not earlier:
        return "; no earlier version to compare with"
    if not moved:
        return ""
    worst = max(moved, key=lambda name: moved[name])
    return f"; since the last version {moved[worst]:.1%} of {worst} moved, the most of all columns"


def _problems(spec: Mapping[str, Any], table: Any, columns: Mapping[str, Any]) -> Iterator[str]:
    names = table.column_names
    for name in sorted({one for one in names if names.count(one) > 1}):
        yield f"{name}: {names.count(name)} columns have this name"
    least, most = spec.get("rows") or (None, None)
    if (least is not None and len(table) < least) or (most is not None and len(table) > most):
        yield f"rows: expected {_between(least, most)}, got {len(table):,}"
    for name, rule in spec["expect"].items():
        if name not in columns:
            if name not in names:
                yield f"{name}: there is no such column; {did_you_mean(name, names)}"
            continue
        yield from (f"{name}: {one}" for one in _wrong(rule, columns[name]))


def _wrong(rule: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    if (wanted := rule.get("type")) is not None and found["kind"] not in _TYPES[wanted]:
        yield f"expected type {wanted}, got {_with_examples(found)}"
    if (between := rule.get("range")) is not None:
        least, most = between
        if found["kind"] not in ("number", "whole"):
            yield f"a range needs numbers, got {_with_examples(found)}"
        elif "low" in found and ((least is not None and found["low"] < least) or (most is not None and found["high"] > most)):
            yield f"expected {_between(least, most)}, got {found['low']:g} to {found['high']:g}"
    if (allowed := rule.get("values")) is not None:
        other = [one for one in found.get("values", {}) if one not in allowed]
        if "values" not in found:
            yield f"expected {', '.join(allowed)}, got {found.get('different', 0):,} different values of type {found['kind']}"
        elif other:
            more = f" and {len(other) - _MOST_SHOWN} more" if len(other) > _MOST_SHOWN else ""
            yield f"expected {', '.join(allowed)}, got also {', '.join(map(repr, other[:_MOST_SHOWN]))}{more}"
    share = found["missing"] / found["rows"] if found["rows"] else 0.0
    if (most := rule.get("missing")) is not None and share > most:
        yield f"expected at most {most:.3g} of the rows to lack a value, got {share:.3g} ({found['missing']:,} rows)"
    if rule.get("unique") and "different" in found and found["different"] < found["rows"] - found["missing"]:
        yield f"expected each value once, got {found['rows'] - found['missing'] - found['different']:,} repeats"


def _with_examples(found: Mapping[str, Any]) -> str:
    some = [repr(one) for one in list(found.get("values", ()))[:3]]
    return str(found["kind"]) + (f", such as {', '.join(some)}" if some else "")


def _between(least: Any, most: Any) -> str:
    if least is None or most is None:
        return f"at most {most:,}" if least is None else f"at least {least:,}"
    return f"{least:,} to {most:,}"


def _drifted(columns: Mapping[str, Any], earlier: Mapping[str, Any], moved: Mapping[str, float], limit: float) -> Iterator[str]:
    for name in earlier:
        if name not in columns:
            yield f"{name}: was in the last version and is gone"
        elif columns[name]["kind"] != earlier[name]["kind"] and "none" not in (columns[name]["kind"], earlier[name]["kind"]):
            yield f"{name}: was of type {earlier[name]['kind']} in the last version, now {columns[name]['kind']}"
        elif moved.get(name, 0.0) > limit + (noise := _noise(columns[name], earlier[name])):
            yield (
                f"{name}: {moved[name]:.1%} of the rows moved since the last version, at most {limit:.1%} is allowed "
                f"(beyond {noise:.1%} of noise); --accept takes this version as it is"
            )


def _is_id(found: Mapping[str, Any]) -> bool:
    """Each row has a value of its own, as numbers that count rows do: they always move."""
    present = found["rows"] - found["missing"]
    return found["kind"] in ("whole", "text") and present > _FEW and found.get("different") == present


def _shares(found: Mapping[str, Any]) -> dict[str, float]:
    """Of all rows, by bin or value; rows that lack a value are one more."""
    rows = max(found["rows"], 1)
    counts = dict(enumerate(found["bins"])) if "bins" in found else dict(found.get("values", {}))
    shares = {str(name): count / rows for name, count in counts.items()}
    return {**shares, "\0missing": found["missing"] / rows}


def _moved(now: Mapping[str, Any], before: Mapping[str, Any]) -> float:
    """The share of rows that would have to change for both versions to be spread alike."""
    ours, theirs = _shares(now), _shares(before)
    return sum(abs(ours.get(name, 0.0) - theirs.get(name, 0.0)) for name in {**ours, **theirs}) / 2


def _noise(now: Mapping[str, Any], before: Mapping[str, Any]) -> float:
    """By how much samples of one source differ: the expected distance, and three standard deviations."""
    parts = len({**_shares(now), **_shares(before)})
    rows = 1 / max(now["rows"], 1) + 1 / max(before["rows"], 1)
    return math.sqrt(max(parts - 1, 0) * rows / (2 * math.pi)) + _NOISE_SDS * math.sqrt(rows) / 4
