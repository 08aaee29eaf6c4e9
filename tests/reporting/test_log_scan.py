"""The quick reading of a log finds what the careful reading finds."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.base.events import read_events
from flatout.base.sealed import TORN, sealed
from flatout.reporting.log_scan import FIELDS, LogScan, number_of, scan_log
from flatout.reporting.thinning import extremes

ODD = [
    0.0,
    -0.0,
    1e-100,
    1e100,
    1e22,
    3e-05,
    -7.25e-12,
    123456789012345,
    12345678901234.5,
    math.nan,
    math.inf,
    -math.inf,
    None,
    7,
]


def step(number: int, **fields: Any) -> dict[str, Any]:
    values = {name: None for name in FIELDS} | {"step": number} | fields
    return {"kind": "step", "t": number / 10, "at": 1.7e9 + number / 10, **values}


def written(path: Path, lines: list[bytes], end: bytes = b"\n") -> LogScan:
    path.write_bytes(b"\n".join(lines) + end)
    return scan_log(path)


def test_every_number_is_the_one_of_the_log(tmp_path: Path) -> None:
    rng = random.Random(0)
    events = [step(n, loss=rng.gauss(0, 1) * 10 ** rng.randint(-9, 9), lr=ODD[n % len(ODD)], memory_bytes=rng.randrange(10**11))
              for n in range(3000)]  # fmt: skip
    scan = written(tmp_path / "events.jsonl", [sealed(event) for event in events])
    assert scan.count == len(events)
    for name in FIELDS:
        expected = [number_of(event[name]) for event in events]
        assert np.allclose(scan.numbers[name], expected, rtol=1e-6, atol=0, equal_nan=True), name
    assert scan.exact([7, 2999])[2999]["loss"] == events[2999]["loss"]


def test_events_keep_their_place_among_the_steps(tmp_path: Path) -> None:
    lines = [sealed(step(n)) for n in range(500)]
    lines[200:200] = [sealed({"kind": "degraded", "t": 1.0, "at": 2.0, "what": "a, b", "why": '{"kind": "step", "c": 1}'})]
    scan = written(tmp_path / "events.jsonl", lines)
    assert [(before, event["what"]) for before, event in scan.others] == [(200, "a, b")]
    assert scan.count == 500 and scan.numbers["step"][200] == 200


def test_a_log_of_two_versions_is_read_whole(tmp_path: Path) -> None:
    """A newer version may log another field, or the same in another order."""
    old = [json.dumps({"kind": "step", "t": n / 10, "step": n, "loss": 1.0 + n}).encode() for n in range(50)]
    new = [sealed(step(n, loss=1.0 + n)) for n in range(50, 100)]
    other = [sealed({"kind": "step", "loss": 1.0 + n, "step": n, "t": n / 10, "more": [1, 2]}) for n in range(100, 150)]
    scan = written(tmp_path / "events.jsonl", [*old, *new, *other])
    assert scan.numbers["step"].tolist() == list(range(150)) and scan.numbers["loss"].tolist() == [1.0 + n for n in range(150)]


def test_torn_and_damaged_lines_count_as_in_the_careful_reading(tmp_path: Path) -> None:
    lines = [sealed(step(n, loss=1.0 / (n + 1))) for n in range(100)]
    lines[30] = lines[30][:40] + TORN
    lines[60] = lines[60].replace(b'"step": 60', b'"step": 61')
    path = tmp_path / "events.jsonl"
    scan = written(path, lines, end=b"\n" + lines[5][:33])
    careful = [event for event in read_events(path) if event["kind"] == "step"]
    assert scan.count == len(careful) + 1  # of a line that still looks whole, its checksum is compared when it is shown
    assert scan.exact([59])[59] == {"kind": "damaged", "line": 61, "what": "events.jsonl", "why":
                                    "line 61 does not match its checksum: its content is missing here"}  # fmt: skip


def test_without_a_log_there_is_nothing(tmp_path: Path) -> None:
    assert scan_log(tmp_path / "events.jsonl").count == 0


@pytest.mark.parametrize("count", [0, 1, 5, 200, 10_000])
def test_thinning_keeps_the_ends_and_every_extreme(count: int) -> None:
    rng = np.random.default_rng(count)
    steps, values = np.cumsum(rng.integers(1, 9, count)).astype(np.float64), rng.normal(size=count)
    chosen = extremes(steps, values, 50)
    assert len(chosen) <= 2 * 50 + 2 and (np.diff(chosen) > 0).all()
    if count:
        assert {0, count - 1, int(values.argmin()), int(values.argmax())} <= set(chosen.tolist())
    if count > 100:
        stretch = np.minimum((steps - steps[0]) * 50 / (steps[-1] - steps[0]), 49).astype(int)
        for number in range(50):
            inside = values[stretch == number]
            assert {inside.min(), inside.max()} <= set(values[chosen][stretch[chosen] == number])
