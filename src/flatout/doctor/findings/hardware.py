"""Wrong machine settings, from the machine's probe."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.doctor.case import Case
from flatout.doctor.finding import Finding


def look(case: Case) -> Iterator[Finding]:
    for advice in () if case.probe is None else case.probe.advice:
        yield Finding("hardware", 0.0, "", f"{advice.name}: {advice.what}", advice.cost, advice.remedy, always=True)
