"""300 damaged files of all formats, read in one process: each gives rows or an error in words. The benchmark reads 2,000."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from interpreters import run_forked

BENCHMARK = Path(__file__).parent.parent.parent / "benchmarks" / "fuzz_files.py"


def test_damaged_files_end_in_rows_or_in_an_error() -> None:
    for library in ("pyarrow", "duckdb", "tokenizers", "PIL", "simplejpeg", "safetensors"):
        pytest.importorskip(library)
    ended = run_forked([str(BENCHMARK), "--plain", "--cases", "300", "--seed", "7"], timeout=300)
    assert ended.returncode == 0, ended.stderr[-4000:]
    counts = json.loads(ended.stdout.splitlines()[-1])
    assert counts["rows"] + counts["error"] == counts["cases"] == 300
    assert counts["rows"] > 60 and counts["error"] > 60  # neither is every file refused, nor is none damaged
