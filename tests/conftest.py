"""Shared by all tests: where real data is, and runs that stay in a temporary folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def shared_data() -> Callable[[str], Path]:
    """A real data set by its path below $FLATOUT_DATA, or below shared/data beside the checkout; skips where it is absent."""

    def find(name: str) -> Path:
        beside = Path(__file__).parent.parent.parent / "shared" / "data"
        path = Path(os.environ.get("FLATOUT_DATA", beside)) / name
        if not path.exists():
            pytest.skip(f"the data set {name} is not on this machine")
        return path

    return find
