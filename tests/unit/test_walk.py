"""A reader who follows a CSV cell to its batch opens few files (benchmarks/walk.py counts them, and those of a whole run)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
import walk

MOST = 16


def test_a_csv_cell_enters_few_files_before_there_is_a_batch(tmp_path: Path) -> None:
    files = walk.to_the_first_batch(tmp_path)
    assert len(files) <= MOST, f"{len(files)} files, {MOST} at most: {', '.join(files)}"
    assert {"data/sources/tables/csv.py", "data/source.py", "data/feeds/resident.py"} <= set(files)


def test_files_about_bad_rows_are_entered_only_for_a_bad_row(tmp_path: Path) -> None:
    def skip_a_bad_row() -> None:
        data = walk.fo.data.table(tmp_path / "bad.csv", label="y", on_bad="skip")
        assert "1 bad sample was left out" in " ".join(data.notes)

    (tmp_path / "bad.csv").write_text("x,y\n" + "".join(f"{row},{'ab'[row % 2]}\n" for row in range(40)) + "1,2,3\n")
    about_bad_rows = {"data/files/bad.py", "data/sources/tables/csv_faults.py"}
    assert about_bad_rows <= set(walk.entered(skip_a_bad_row))
    assert not about_bad_rows & set(walk.to_the_first_batch(tmp_path))
