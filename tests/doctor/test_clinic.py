"""Small programs with one fault each, and healthy ones: is the fault found, and found first?"""

from __future__ import annotations

from pathlib import Path

import pytest
from clinic import HERE, examined

SICK = sorted((HERE / "sick").glob("*.py"))
HEALTHY = sorted((HERE / "healthy").glob("*.py"))


@pytest.mark.parametrize("path", SICK, ids=lambda path: path.stem)
def test_the_planted_fault_comes_first(path: Path) -> None:
    found = examined(path)
    assert found["exit"] == 0
    assert found["findings"], found["text"]
    first = found["findings"][0]
    assert path.stem.startswith(first["id"]), found["text"]
    assert path.name in first["where"], found["text"]  # a line of the script, not of a library
    _check_ledger(found)


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_healthy_programs_are_left_in_peace(path: Path) -> None:
    found = examined(path)
    assert found["exit"] == 0
    assert [one for one in found["findings"] if one["share"] > 0.05] == [], found["text"]
    _check_ledger(found)


def _check_ledger(found: dict[str, object]) -> None:
    ledger = {row["row"]: row["ms"] for row in found["ledger"]}  # type: ignore[attr-defined]
    assert sum(ledger.values()) == pytest.approx(found["step_ms"], rel=0.01)
    assert ledger["unattributed"] < 0.1 * sum(ledger.values())
