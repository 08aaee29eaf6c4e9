"""Shared by all tests: where real data is, and runs that stay in a temporary folder."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

# Ranks are forked off a process that has imported these and done nothing else: importing takes longer than most of the tests.
multiprocessing.get_context("forkserver").set_forkserver_preload(
    [
        "flatout.runs.train", "flatout.engine.loop", "flatout.engine.parallel.spread", "flatout.engine.parallel.piped",
        "flatout.engine.parallel.context", "flatout.engine.parallel.local", "flatout.engine.parallel.shared_evaluation",
        "flatout.store.sharded", "flatout.world.joining", "torch.distributed.checkpoint", "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel", "torch.distributed.pipelining", "safetensors.torch", "torch._dynamo",
    ]
)  # fmt: skip


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
