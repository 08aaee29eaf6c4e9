"""A CSV file that is kept from its survey gives the rows that reading it again gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.data.sources.tables.scan import scan

FILES = {
    "plain": ["a,b\n1,x\n2,y\n"],
    "widens later": ["a,b\n" + "1,x\n" * 70000 + "1.5,y\n"],
    "another file widens": ["a,b\n1,x\n2,y\n", "a,b\n2.5,z\n"],
    "bad rows": ["a,b\n1,x\n2\noops,q\n" + "3,y\n" * 200 + "4,z,9\n5,w\n"],
    "missing": ["a,b\n,x\n2,\nNA,y\n"],
    "no rows": ["a,b\n"],
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("keep_bytes", [1 << 30, 1000])
def test_the_same_rows_from_the_same_places(case: str, keep_bytes: int, tmp_path: Path) -> None:
    for number, content in enumerate(FILES[case]):
        (tmp_path / f"{number}.csv").write_text(content)
    if case == "no rows":
        (tmp_path / "1.csv").write_text("a,b\n7,x\n")
    again, kept = (scan(str(tmp_path), on_bad="skip", keep_bytes=some) for some in (0, keep_bytes))
    assert again.columns == kept.columns
    for columns in (["a", "b"], ["b"]):
        rows = []
        for found in (again, kept):
            rows.append([
                (where.of(row), values)
                for batch, where in found.batches(columns, 1000)
                for row, values in enumerate(batch.to_pylist())
            ])  # fmt: skip
        assert rows[0] == rows[1]
        assert rows[0]
