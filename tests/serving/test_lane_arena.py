"""Shared memory of a front: blocks never overlap, and freed ones become large again."""

from __future__ import annotations

import numpy as np
import pytest

from flatout.serving.arena import Arena
from flatout.serving.asking import NoRoom

MB = 1 << 20


@pytest.mark.parametrize("seed", range(3))
def test_blocks_never_overlap_and_all_memory_comes_back(seed: int) -> None:
    draw = np.random.default_rng(seed)
    arena = Arena(4 * MB)
    owner = np.zeros(4 * MB // 256, dtype=np.int64)  # of each smallest block
    held: dict[int, tuple[int, int]] = {}
    full = 0
    for request in range(1, 6000):
        if held and draw.random() < 0.5:
            freed = int(draw.choice(list(held)))
            offset, power = held.pop(freed)
            assert (owner[offset // 256 : (offset + (1 << power)) // 256] == freed).all()
            owner[offset // 256 : (offset + (1 << power)) // 256] = 0
            arena.free(offset, power)
            continue
        power = arena.power_for(int(2 ** draw.uniform(1, 20)))
        try:
            offset = arena.allocate(power)
        except NoRoom as error:
            assert error.ever
            full += 1
            continue
        assert offset % (1 << power) == 0
        taken = owner[offset // 256 : (offset + (1 << power)) // 256]
        assert not taken.any()
        taken[:] = request
        held[request] = (offset, power)
    assert full  # the memory was full at times
    for offset, power in held.values():
        arena.free(offset, power)
    assert arena.free_bytes == 4 * MB
    assert arena.allocate(arena.power_for(4 * MB)) == 0  # one block again
    arena.close()


def test_a_request_that_never_fits_is_told_apart_from_a_full_memory() -> None:
    arena = Arena(MB)
    with pytest.raises(NoRoom, match=r"all shared memory is 1\.05 MB") as never:
        arena.power_for(MB + 1)
    assert not never.value.ever
    whole = arena.allocate(arena.power_for(MB))
    with pytest.raises(NoRoom, match="too many requests are under way") as later:
        arena.allocate(8)
    assert later.value.ever
    arena.free(whole, arena.power_for(MB))
    assert arena.allocate(8) == 0
    arena.close()


def test_requests_of_one_kind_use_the_same_few_pages() -> None:
    arena = Arena(64 * MB)
    offsets = set()
    for _ in range(1000):
        offset = arena.allocate(8)
        offsets.add(offset)
        arena.free(offset, 8)
    assert len(offsets) == 1
    arena.close()
