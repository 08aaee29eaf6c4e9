"""A folder for a pipeline, with a cache of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipelines_here import COPY, Here


@pytest.fixture
def here(tmp_path: Path) -> Here:
    (tmp_path / "project").mkdir()
    found = Here(tmp_path / "project", tmp_path / "cache")
    found.write("twice.py", COPY)
    found.write("a.txt", "a\n")
    return found
