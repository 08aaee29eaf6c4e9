"""The order of samples: every row once an epoch, no visible structure, the same from wherever one starts to read."""

from __future__ import annotations

import copy

import pytest
import torch

from flatout.base.errors import DataError
from flatout.data.order.draws import Balanced, Sequential, Weighted
from flatout.data.order.keyed import Order, Permutations

AWKWARD = [1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17, 97, 99, 100, 101, 1023, 1024, 1025, 1797, 4095, 4097, 10_007, 65_536, 65_537]


@pytest.mark.parametrize("n", AWKWARD)
def test_an_epoch_visits_every_row_once(n: int) -> None:
    rows = Order(7, (n,)).rows(0, 3 * n).view(3, n)
    assert rows.sort(dim=1).values.equal(torch.arange(n).expand(3, n))


def test_epochs_and_seeds_differ() -> None:
    first, second = Order(0, (1000,)).rows(0, 2000).view(2, 1000)
    other = Order(1, (1000,)).rows(0, 1000)
    for a, b in ((first, second), (first, other)):
        assert (a == b).sum() < 10  # one row in a thousand agrees by chance


@pytest.mark.parametrize(("blocks", "window"), [((1797,), None), ((5, 1, 30, 12, 7, 100, 3), 2), ((40,) * 9, 4)])
def test_any_stretch_is_read_alone(blocks: tuple[int, ...], window: int | None) -> None:
    whole = Order(3, blocks, window).rows(0, 3000)
    for start, stop in ((0, 1), (150, 170), (1700, 1900), (2999, 3000), (10, 10)):
        assert Order(3, blocks, window).rows(start, stop).equal(whole[start:stop])
    pieces = Order(3, blocks, window)
    assert torch.cat([pieces.rows(start, start + 37) for start in range(0, 37 * 81, 37)]).equal(whole[: 37 * 81])


def test_a_far_position_costs_no_more_and_is_right() -> None:
    n = 10**9 + 7
    rows = Order(5, (n,)).rows(10**15, 10**15 + 1000)
    assert rows.min() >= 0 and rows.max() < n and len(rows.unique()) == 1000


def test_positions_are_uniform() -> None:
    """Where row 0 lands over many epochs, and what comes first: chi-squared over ten bins, 9 degrees of freedom."""
    for n in (50, 1000, 5000):
        rows = Order(11, (n,)).rows(0, 400 * n).view(400, n)
        for places in ((rows == 0).nonzero()[:, 1], rows[:, 0], rows[:, -1]):
            counts = torch.bincount(places * 10 // n, minlength=10).double()
            assert ((counts - 40) ** 2 / 40).sum() < 33.7  # one in ten thousand by chance


@pytest.mark.parametrize("n", [500, 5000, 50_000])
def test_neighbours_are_unrelated(n: int) -> None:
    side = round(n**0.5) + 1
    rows = torch.cat([Order(seed, (n,)).rows(0, n) for seed in range(max(1, 20_000 // n))]).double()
    for lag in (1, 2, side, side - 1):
        assert abs(torch.corrcoef(torch.stack([rows[:-lag], rows[lag:]]))[0, 1]) < 0.05
    same_step = (rows.diff()[1:] == rows.diff()[:-1]).double().mean()
    assert same_step < 0.01


def test_all_orders_of_three_rows_come_up_alike() -> None:
    rows = Order(2, (3,)).rows(0, 3 * 6000).view(6000, 3)
    counts = torch.bincount(rows @ torch.tensor([9, 3, 1]), minlength=27)
    assert (counts > 0).sum() == 6 and counts[counts > 0].min() > 800 and counts.max() < 1200


def test_rows_stay_within_their_window_of_blocks() -> None:
    order = Order(1, (50,) * 5, window_blocks=2)
    layouts = set()
    for epoch in range(8):
        block = order.rows(epoch * 250, (epoch + 1) * 250).div(50, rounding_mode="floor")
        windows = tuple(tuple(window.unique().tolist()) for window in torch.split(block, 100))
        assert [len(window) for window in windows] == [2, 2, 1]
        layouts.add(windows)
    assert len(layouts) > 3, "the blocks come in another order each epoch"


@pytest.mark.parametrize("window", [1, 2, 3, 7, 8, 100])
def test_blocks_of_uneven_size_are_all_visited(window: int) -> None:
    rows = Order(9, (5, 0, 1, 300, 12, 7, 1000, 3), window).rows(0, 4 * 1328).view(4, 1328)
    assert rows.sort(dim=1).values.equal(torch.arange(1328).expand(4, 1328))


def test_blocks_of_one_window_are_mixed() -> None:
    rows = Order(4, (100, 100, 100, 100), 2).rows(0, 200)
    changes = (rows.div(100, rounding_mode="floor").diff() != 0).sum()
    assert 60 < changes < 140  # half of the neighbours, by chance


def test_bad_layouts_are_refused() -> None:
    for blocks in ((), (0, 0), (3, -1)):
        with pytest.raises(DataError, match=r"block sizes \["):
            Order(0, blocks)
    with pytest.raises(DataError, match="window_blocks"):
        Order(0, (3, 3), 0)


def test_visits_number_the_epochs() -> None:
    assert Order(0, (3,)).visits(2, 8).tolist() == [0, 1, 1, 1, 2, 2]
    assert Sequential(3).rows(2, 8).tolist() == [2, 0, 1, 2, 0, 1]


def test_weighted_draws_follow_the_weights() -> None:
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0, 0.0, 2.0])
    draws = Weighted(3, weights)
    share = torch.bincount(draws.rows(0, 40_000), minlength=6) / 40_000
    assert share[0] == share[4] == 0
    assert (share - weights / 10).abs().max() < 0.012
    assert draws.rows(12_345, 12_400).equal(draws.rows(0, 40_000)[12_345:12_400])
    assert not draws.rows(0, 100).equal(Weighted(4, weights).rows(0, 100))


def test_balanced_draws_give_each_class_and_each_of_its_rows_the_same_chance() -> None:
    labels = torch.tensor([0] * 900 + [2] * 90 + [7] * 10)[torch.randperm(1000, generator=torch.Generator().manual_seed(0))]
    draws = Balanced(1, labels)
    rows = draws.rows(0, 60_000)
    share = torch.bincount(labels[rows], minlength=8) / 60_000
    assert (share[[0, 2, 7]] - 1 / 3).abs().max() < 0.01
    rare = torch.bincount(rows, minlength=1000)[labels == 7]
    assert rare.min() > 1700 and rare.max() < 2300
    assert draws.rows(777, 888).equal(rows[777:888])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -2.0], "row 1 has -2"),
        ([1.0, float("nan")], "row 1 has nan"),
        ([0.0, 0.0], "all 0"),
        ([[1.0], [2.0]], "one number per row"),
    ],
)
def test_bad_weights_are_named(weights: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Weighted(0, torch.tensor(weights))


@pytest.mark.parametrize("sizes", [(1,), (2, 2, 2), (3,), (5, 5), (17,) * 4, (100, 101), (1797,) * 3, (40_000,), (5, 100, 37)])
@pytest.mark.parametrize("key", [0, 7, 12345])
def test_a_device_that_may_not_look_gets_the_same_permutation(sizes: tuple[int, ...], key: int) -> None:
    """On a GPU nothing may depend on a value: every point takes as many walks as the longest needs."""
    lengths = torch.tensor(sizes)
    host = Permutations(key, torch.arange(len(sizes)), lengths, rounds=4)
    device = copy.copy(host)
    device._ends, device._first_ends = host._walks_end()
    groups = torch.arange(len(sizes)).repeat_interleave(lengths)
    points = torch.cat([torch.arange(size) for size in sizes])
    assert torch.equal(host(points, groups), device._without_looking(points, groups))
