"""Transforms: what they do to images, how often, and that their written form brings them back."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data import arrays
from flatout.data.order.keyed import Keys, hash32, keyed
from flatout.data.source import Column, Transform, describe_all
from flatout.data.transforms import Crop, Cutout, Flip, Normalize, parse_transforms


def _keys(count: int, seed: int = 0) -> Keys:
    return Keys(seed, torch.zeros(count, dtype=torch.int64), torch.arange(count))


def _run(transform: Transform, x: Tensor) -> Tensor:
    return transform({"x": x}, _keys(len(x)))["x"]


def test_hashes_spread_single_bit_changes_over_all_bits() -> None:
    values = torch.arange(4096) * 7
    key = keyed(3, "test")
    for bit in (0, 3, 11, 31):
        changed = hash32(values, key) ^ hash32(values ^ (1 << bit), key)
        flipped = torch.stack([(changed >> place) & 1 for place in range(32)]).double().mean(1)
        assert flipped.min() > 0.42 and flipped.max() < 0.58
    assert len(hash32(torch.arange(100_000), key).unique()) == 100_000
    assert not hash32(values, key).equal(hash32(values, keyed(3, "other")))


def test_keyed_numbers_are_uniform_and_streams_unrelated() -> None:
    keys = _keys(20_000)
    u, v = keys.uniform("a", 3), keys.uniform("b", 3)
    assert u.dtype == torch.float32 and u.shape == (20_000, 3) and u.min() >= 0 and u.max() < 1
    columns = torch.cat([u, v], 1).T
    assert (columns.mean(1) - 0.5).abs().max() < 0.01 and (columns.std(1) - 12**-0.5).abs().max() < 0.01
    assert (torch.corrcoef(columns) - torch.eye(6)).abs().max() < 0.03
    whole = keys.integers("c", -2, 3)
    assert (torch.bincount(whole + 2) / 20_000 - 0.2).abs().max() < 0.015


def test_normalize_is_fitted_per_channel_and_stands_a_large_mean() -> None:
    images = torch.randint(0, 256, (300, 3, 5, 5), dtype=torch.uint8)
    images[:, 2] = 7
    fitted = Normalize.fit(arrays(images).train, rows_at_once=64)
    x = _run(fitted, images)
    assert x.dtype == torch.float32
    assert x.mean((0, 2, 3)).abs().max() < 1e-4 and (x.std((0, 2, 3))[:2] - 1).abs().max() < 1e-3
    assert x[:, 2].abs().max() < 1e-5  # constant: no noise blown up
    far = torch.randn(1000, 2) * torch.tensor([1.0, 100.0]) + 1e5
    assert (_run(Normalize.fit(arrays(far).train), far).std(0) - 1).abs().max() < 0.02
    one = _run(Normalize(scale=0.5, mean=(1.0,), std=(2.0,)), torch.full((2, 4), 6))
    assert one.equal(torch.ones(2, 4))


@pytest.mark.parametrize("shape", [(16, 16), (3, 16, 16)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_flip_mirrors_its_share(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(0, 256, (2000, *shape)).to(dtype)
    y = _run(Flip(0.3), x)
    mirrored = (y == x.flip(-1)).flatten(1).all(1)
    assert ((y == x).flatten(1).all(1) | mirrored).all()
    assert 0.26 < mirrored.double().mean() < 0.34


@pytest.mark.parametrize("mode", ["reflect", "zero"])
@pytest.mark.parametrize("shape", [(9, 7), (2, 9, 7)])
def test_crop_equals_padding_then_cutting(mode: str, shape: tuple[int, ...]) -> None:
    x = torch.rand(200, *shape)
    y = _run(Crop(3, mode), x)
    planes = x.view(200, -1, 9, 7)
    padded = torch.nn.functional.pad(planes, (3,) * 4, mode="reflect" if mode == "reflect" else "constant")
    windows = torch.stack([padded[:, :, i : i + 9, j : j + 7] for i in range(7) for j in range(7)], 1)
    match = (windows == y.view(200, 1, -1, 9, 7)).flatten(2).all(2)
    assert match.any(1).all(), "each image is one of the 49 cuts"
    assert match.any(0).sum() > 40, "and nearly all cuts occur"


def test_cutout_clears_one_square_that_may_hang_over_the_edge() -> None:
    x = torch.ones(3000, 3, 10, 10, dtype=torch.uint8)
    y = _run(Cutout(4), x)
    cleared = (y == 0).sum((2, 3))
    assert (cleared[:, 0] == cleared[:, 2]).all()
    assert cleared.max() == 16 and cleared.min() >= 4
    assert (y == 0).double().mean((0, 1)).min() > 0.02, "every pixel is hit at times"


def test_written_forms_bring_equal_transforms_back() -> None:
    made = (Normalize(1 / 255, (0.1, 0.2), (0.3, 0.4)), Flip(0.25), Crop(3, "zero"), Cutout(5))
    written = json.loads(json.dumps([transform.written() for transform in made]))
    assert parse_transforms(written) == made
    mixed = parse_transforms(["flip", {"crop": 2}, {"cutout": {"size": 3}}, Flip(1.0)])
    assert mixed == (Flip(), Crop(2), Cutout(3), Flip(1.0))
    assert parse_transforms("flip") == (Flip(),)


def test_schemas_are_known_before_anything_runs() -> None:
    after = describe_all((Normalize(), Flip(), Crop(), Cutout()), {"x": Column(torch.uint8, (3, 32, 32))})
    assert after == {"x": Column(torch.float32, (3, 32, 32))} and after["x"].row_bytes == 12_288


@pytest.mark.parametrize(
    ("written", "error", "message"),
    [
        (["flop"], UsageError, "did you mean 'flip'"),
        ([{"crop": {"pading": 4}}], UsageError, "did you mean 'padding'"),
        ([{"flip": 1.5}], DataError, "between 0 and 1"),
        ([{"crop": {"mode": "wrap"}}], DataError, "'reflect' or 'zero', got 'wrap'"),
        ([{"crop": 0}], DataError, "1 pixel or more"),
        ([{"cutout": 0}], DataError, "1 pixel or more"),
        ([{"crop": "four"}], UsageError, "crop"),
        ([{"normalize": {"mean": [0, 1], "std": [1]}}], DataError, "2 and 1"),
        ([3], UsageError, "expected a name"),
    ],
)
def test_bad_transforms_are_said(written: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_transforms(written)
