"""One row is encoded as many are, to the bit; a row with anything unusual is left to the code for many."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import flatout as fo
from flatout.base.errors import DataError
from flatout.data.fitted.one_row import OneRow
from flatout.data.fitted.table_rows import TableHost


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> TableHost:
    draw = random.Random(0)
    file = tmp_path_factory.mktemp("table") / "rows.csv"
    lines = ["age,big,day,job,city,zip,y"]
    for _ in range(400):
        age = "" if draw.random() < 0.1 else f"{draw.uniform(18, 80):.3f}"
        job = "" if draw.random() < 0.1 else draw.choice(["cook", "nurse", "3"])
        day = f"2024-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
        place = draw.randint(1, 9)
        city = f"c{draw.randint(0, 200)}"
        lines.append(f"{age},{1e9 + draw.randint(0, 99)},{day},{job},{city},{place},{draw.choice('ab')}")
    file.write_text("\n".join(lines))
    data = fo.data.table(
        str(file),
        label="y",
        categorical=["job", "city"],
        hash_buckets=16,
        steps={"zip": [{"target_encode": {"smoothing": 10}}]},
    )
    assert isinstance(data.fitted.host, TableHost)
    return data.fitted.host


def a_row(draw: random.Random) -> dict[str, Any]:
    return {
        "age": draw.choice([None, 39, 40.5, -0.0, 3.5e38, 1e39, float("nan"), float("inf"), True, "40", 10**400, [1]]),
        "big": draw.choice([1e9, 1e9 + 1, 10**9 + 7, None, -3e38]),
        "day": draw.choice(["2024-02-29", "2024-02-29T10:30:00", "2024-02-29T10:30:00+02:00", None, "soon", 5, "1066-10-14"]),
        "job": draw.choice(["cook", "nurse", "pilot", 3, 3.0, "3", None, True, {"a": 1}, float("nan")]),
        "city": draw.choice(["c1", "", None, "a new one", 7]),
        "zip": draw.choice([1, "1", 1.0, 10, None, "x"]),
    }


def test_it_gives_what_the_code_for_many_rows_gives(host: TableHost) -> None:
    one, draw = OneRow(host), random.Random(1)
    quick = 0
    for _ in range(3000):
        row = a_row(draw)
        if draw.random() < 0.05:
            del row[draw.choice(list(row))]
        made = one.encode(row)
        if made is None:
            continue
        quick += 1
        try:
            wanted = host.rows([row])
        except (DataError, OverflowError) as error:
            raise AssertionError(f"{row} was taken, and the code for many refuses it: {error}") from error
        assert set(made) == set(wanted)
        for name, column in wanted.items():
            kind = column.numpy().dtype
            np.testing.assert_array_equal(np.array([made[name]], kind), column.numpy(), f"{name} of {row}")
    assert quick > 300


@pytest.mark.parametrize("change", [{"age": "40"}, {"age": 1e39}, {"day": "soon"}, {"job": {"a": 1}}])
def test_what_is_wrong_is_left_to_the_code_that_can_say_it(host: TableHost, change: dict[str, Any]) -> None:
    row = {"age": 39, "big": 1e9, "day": "2024-02-29", "job": "cook", "city": "c1", "zip": 1}
    assert OneRow(host).encode(row) is not None
    assert OneRow(host).encode({**row, **change}) is None
    assert OneRow(host).encode({}) is None
