"""Small programs with one fault each, and healthy ones: is the fault found, and found first?"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clinic import HERE, examined

from flatout.machine.paging import GLIBC, host_allocator

SICK = sorted((HERE / "sick").glob("*.py"))
_LOOKS = 3
HEALTHY = sorted((HERE / "healthy").glob("*.py"))


@pytest.mark.parametrize("path", SICK, ids=lambda path: path.stem)
def test_the_planted_fault_comes_first(path: Path) -> None:
    if path.stem == "allocator_thrash" and host_allocator() != GLIBC:
        pytest.skip("what it does to glibc is no fault of the allocator that torch has here")
    planted = "slow_convolutions" if path.stem == "channels_first" and platform.machine() == "aarch64" else path.stem
    found = _until(path, lambda found: found["findings"] and planted.startswith(found["findings"][0]["id"]))
    assert path.name in found["findings"][0]["where"], found["text"]  # a line of the script, not of a library
    _check_ledger(found)


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_healthy_programs_are_left_in_peace(path: Path) -> None:
    found = _until(path, lambda found: not [one for one in found["findings"] if one["share"] > 0.05])
    _check_ledger(found)


def _until(path: Path, right: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The rest of the suite runs beside it, and takes cores away from some steps and not from others: it may look again."""
    for _ in range(_LOOKS):
        found = examined(path)
        assert found["exit"] == 0
        if right(found):
            return found
    raise AssertionError(found["text"])


def _check_ledger(found: dict[str, Any]) -> None:
    ledger = {row["row"]: row["ms"] for row in found["ledger"]}
    assert sum(ledger.values()) == pytest.approx(found["step_ms"], rel=0.01)
    assert ledger["unattributed"] < 0.1 * sum(ledger.values())
