"""Which layout the processes that are here take."""

from __future__ import annotations

import json

from test_together import went_well
from worlds import together

LAYOUTS = [
    ([10**9, 10**9], "data=2", "full copy"),
    ([10**9, 330_000], "shard=2", "should fit"),  # the smallest device counts, and has no room for a copy
    ([20_000, 20_000], "shard=2", "probably does not fit"),
]


def test_the_layout_goes_by_memory() -> None:
    processes = together(2, "laying_out.py", {"memory_bytes": [memory_bytes for memory_bytes, *_ in LAYOUTS]})
    went_well(processes)
    assert processes[0].out == processes[1].out
    for (memory_bytes, mesh, why), line in zip(LAYOUTS, processes[0].out.splitlines(), strict=True):
        told = json.loads(line)
        assert told["mesh"] == mesh and why in told["why"], (memory_bytes, told)
