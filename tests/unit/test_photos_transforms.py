"""Crops, colours and mixes of photos: what they do, that they are keyed, and that all ways to compute them agree."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from flatout.base.errors import DataError
from flatout.data.augment.colour import ColourJitter
from flatout.data.augment.crops import CenterCrop, RandomResizedCrop, center_window, random_window
from flatout.data.augment.mixing import Cutmix, Mixup, beta_quantiles, draw_beta
from flatout.data.augment.resample import resample_on_cpu, resample_plainly
from flatout.data.augment.windows import CropWindow, Flat
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Column
from flatout.data.transforms import Normalize, parse_transforms

SIZES = [(8, 8), (40, 600), (600, 40), (33, 57), (224, 224), (1, 1), (1, 30), (300, 200)]
NUMBER = Column(torch.int64, ())
PHOTOS = {"pixels": Column(torch.uint8, (), ragged=9.0), "start": NUMBER, "height": NUMBER, "width": NUMBER, "y": NUMBER}


def keys(count: int, seed: int = 0, visit: int = 0, first: int = 0) -> Keys:
    return Keys(seed, torch.full((count,), visit), torch.arange(first, first + count))


def photos(sizes: list[tuple[int, int]] = SIZES, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    images = [torch.randint(0, 256, (height * width * 3,), dtype=torch.uint8, generator=draw) for height, width in sizes]
    lengths = torch.tensor([len(image) for image in images])
    return {
        "pixels": torch.cat(images),
        "start": lengths.cumsum(0) - lengths,
        "height": torch.tensor([height for height, _ in sizes]),
        "width": torch.tensor([width for _, width in sizes]),
        "y": torch.arange(len(sizes)),
    }


def image(batch: Batch, place: int) -> Tensor:
    """[3, H, W]"""
    start, height, width = (int(batch[name][place]) for name in ("start", "height", "width"))
    return batch["pixels"][start : start + height * width * 3].view(height, width, 3).permute(2, 0, 1)


def far(one: Tensor, other: Tensor) -> int:
    return int((one.int() - other.int()).abs().max())


# Resampling


def boxes(batch: Batch, size: int, seed: int) -> CropWindow:
    """Any box of each image, scaled to any sides, with the square anywhere in that: up and down by factors of hundreds."""
    draw = np.random.default_rng(seed)
    high, wide = batch["height"].numpy(), batch["width"].numpy()
    height, width = draw.integers(1, high + 1), draw.integers(1, wide + 1)
    top, left = draw.integers(0, high - height + 1), draw.integers(0, wide - width + 1)
    tall, across_all = draw.integers(size, size + 40, len(high)), draw.integers(size, size + 40, len(high))
    down, across = draw.integers(0, tall - size + 1), draw.integers(0, across_all - size + 1)
    return CropWindow(*(torch.from_numpy(column) for column in (top, left, height, width, tall, across_all, down, across)))


@pytest.mark.parametrize("size", [5, 32, 96])
def test_the_plain_sums_agree_with_torchs_kernel(size: int) -> None:
    batch = photos()
    flat = Flat(batch["pixels"], batch["start"], batch["width"])
    for seed in range(3):
        window = boxes(batch, size, seed)
        fast, plain = resample_on_cpu(flat, window, size), resample_plainly(flat, window, size)
        assert fast.shape == plain.shape == (len(SIZES), 3, size, size) and fast.dtype == plain.dtype == torch.uint8
        assert fast.is_contiguous(memory_format=torch.channels_last) and plain.is_contiguous(memory_format=torch.channels_last)
        assert far(fast, plain) <= 1


def test_a_crop_is_torchs_antialiased_resize_of_the_box() -> None:
    batch = photos()
    window = boxes(batch, 32, 7)
    cut = resample_on_cpu(Flat(batch["pixels"], batch["start"], batch["width"]), window, 32)
    for place in range(len(SIZES)):
        top, left, height, width, tall, wide, down, across = (int(column[place]) for column in window)
        box = image(batch, place)[:, top : top + height, left : left + width].float()
        scaled = functional.interpolate(box[None], (tall, wide), mode="bilinear", antialias=True)[0]
        assert far(cut[place], scaled[:, down : down + 32, across : across + 32].round()) <= 1


def test_threads_and_where_the_pixels_lie_change_nothing() -> None:
    batch = photos(SIZES * 3)
    window = boxes(batch, 24, 1)
    alone = resample_on_cpu(Flat(batch["pixels"], batch["start"], batch["width"]), window, 24)
    shifted = torch.cat([torch.zeros(1001, dtype=torch.uint8), batch["pixels"]])[1001:]  # a slice of something larger
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert resample_on_cpu(Flat(shifted, batch["start"], batch["width"]), window, 24).equal(alone)
    finally:
        torch.set_num_threads(threads)


# Crops


def test_random_boxes_follow_the_rule() -> None:
    count = 20_000
    height, width = torch.full((count,), 300), torch.full((count,), 400)
    window = random_window(height, width, keys(count), (0.08, 1.0), (3 / 4, 4 / 3), 224)
    assert (window.top >= 0).all() and (window.top + window.height <= 300).all() and (window.height >= 1).all()
    assert (window.left >= 0).all() and (window.left + window.width <= 400).all() and (window.width >= 1).all()
    area = window.height * window.width / 120_000
    ratio = window.width / window.height
    assert area.min() < 0.1 and area.max() > 0.95 and 0.74 < ratio.min() < 0.76 and 1.32 < ratio.max() < 1.35
    small = area < 0.4  # these always fit, so their area is uniform and the logarithm of their ratio symmetric
    assert abs(float(area[small].mean()) - 0.24) < 0.005 and abs(float(ratio[small].log().mean())) < 0.005
    room = (window.top / (300 - window.height).clamp(min=1))[small]
    assert abs(float(room.mean()) - 0.5) < 0.01 and room.min() < 0.01 and room.max() > 0.99


def test_a_photo_that_no_box_fits_gives_its_middle() -> None:
    height, width = torch.tensor([1000, 10, 100, 1]), torch.tensor([10, 1000, 100, 1])
    window = random_window(height, width, keys(4), (1.0, 1.0), (3 / 4, 4 / 3), 224)
    assert window.height.tolist() == [13, 10, 100, 1] and window.width.tolist() == [10, 13, 100, 1]
    assert window.top.tolist() == [493, 0, 0, 0] and window.left.tolist() == [0, 493, 0, 0]
    drawn = [random_window(height, width, keys(4, seed), (0.08, 1.0), (3 / 4, 4 / 3), 8) for seed in range(50)]
    assert all((one.height >= 1).all() and (one.top + one.height <= height).all() for one in drawn)


def test_the_middle_is_that_of_torchvision() -> None:
    window = center_window(torch.tensor([300, 500, 224]), torch.tensor([400, 375, 224]), 224, 256)
    assert window.tall.tolist() == [256, 341, 256] and window.wide.tolist() == [341, 256, 256]
    assert window.down.tolist() == [16, 58, 16] and window.across.tolist() == [58, 16, 16]
    batch = photos([(60, 80)])
    x = CenterCrop(14, 16)(batch, keys(1))["x"]
    scaled = functional.interpolate(image(batch, 0)[None].float(), (16, 21), mode="bilinear", antialias=True)
    assert far(x[0], scaled[0, :, 1:15, 4:18].round()) <= 1


def test_a_crop_makes_x_and_drops_what_it_used() -> None:
    for crop in (RandomResizedCrop(16), CenterCrop(16)):
        made = crop(photos(), keys(len(SIZES)))
        described = crop.describe(PHOTOS)
        assert list(made) == list(described) == ["x", "y"]
        assert made["x"].shape[1:] == described["x"].shape == (3, 16, 16) and made["x"].dtype == described["x"].dtype
        with pytest.raises(DataError, match="must come first and only once"):
            crop.describe(described)
        with pytest.raises(DataError, match="needs a size"):
            type(crop)().describe(PHOTOS)


def test_a_sample_gets_the_same_crop_whatever_it_is_batched_with() -> None:
    batch, crop = photos(), RandomResizedCrop(16)
    whole = crop(batch, keys(len(SIZES)))["x"]
    for place in range(len(SIZES)):
        one = {name: column[place : place + 1] for name, column in batch.items() if name != "pixels"}
        alone = crop({**one, "pixels": batch["pixels"]}, keys(1, first=place))["x"]
        assert alone[0].equal(whole[place])
    assert not crop(batch, keys(len(SIZES), visit=1))["x"].equal(whole)
    assert not crop(batch, keys(len(SIZES), seed=1))["x"].equal(whole)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: RandomResizedCrop(0), "size .* 1 or more, got 0"),
        (lambda: RandomResizedCrop(8, scale=(0.5, 0.1)), r"scale .* 1 at most; got \(0.5, 0.1\)"),
        (lambda: RandomResizedCrop(8, scale=0.3), r"scale .* got 0.3"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(8, ratio=(0, 1)), r"ratio .* got \(0, 1\)"),
        (lambda: CenterCrop(32, 16), "resize must be 32 .* or more, got 16"),
        (lambda: ColourJitter(brightness=-1), "brightness .* got -1"),
        (lambda: ColourJitter(hue=0.7), "hue .* -0.5 and 0.5, got 0.7"),
        (lambda: ColourJitter(contrast=(2, 1)), r"contrast .* 0 and inf, got \(2, 1\)"),
        (lambda: Mixup(0), "mixup: alpha .* 0.01 and 100, got 0"),
        (lambda: Cutmix(-1), "cutmix: alpha"),
    ],
)
def test_wrong_options_are_said(make: Any, why: str) -> None:
    with pytest.raises(DataError, match=why):
        make()


@pytest.mark.parametrize(
    "transform",
    [RandomResizedCrop(32, (0.2, 0.9)), RandomResizedCrop(), CenterCrop(32), ColourJitter(hue=0.1), Mixup(0.3), Cutmix()],
    ids=lambda transform: type(transform).__name__,
)
def test_the_written_form_brings_a_transform_back(transform: Any) -> None:
    written = json.loads(json.dumps(transform.written()))
    assert parse_transforms([written]) == (transform,)
    assert parse_transforms([next(iter(written))])[0].__class__ is type(transform)


# Colours


def pictures(count: int = 4, size: int = 12) -> Tensor:
    x = torch.randint(60, 180, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return x.contiguous(memory_format=torch.channels_last)


def jitter(x: Tensor, **options: Any) -> Tensor:
    off = {"brightness": 0, "contrast": 0, "saturation": 0, "hue": 0}
    changed = ColourJitter(**{**off, **options})({"x": x}, keys(len(x)))["x"]
    assert changed.dtype == torch.uint8 and changed.stride() == x.stride()
    return changed


def grey(x: Tensor) -> Tensor:
    return (x.float() * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)


def test_each_colour_change_is_what_its_name_says() -> None:
    x = pictures()
    assert jitter(x).equal(x)
    assert far(jitter(x, brightness=(1.2, 1.2)), (x * 1.2).round()) <= 1
    mean = grey(x).mean((1, 2, 3), keepdim=True)
    assert far(jitter(x, contrast=(0.5, 0.5)), (0.5 * x + 0.5 * mean).round()) <= 1
    assert far(jitter(x, saturation=(0.3, 0.3)), (0.3 * x + 0.7 * grey(x)).round()) <= 1
    assert far(jitter(x, saturation=(0, 0)), grey(x).round().expand_as(x)) <= 1
    turned = jitter(x, hue=(0.25, 0.25))
    assert (grey(turned) - grey(x)).abs().max() < 1.5 and far(turned, x) > 20
    twice = jitter(jitter(x, hue=(0.1, 0.1)), hue=(-0.1, -0.1))
    assert far(twice, x) <= 2
    assert far(jitter(pictures(size=3), brightness=(9, 9)), torch.full((4, 3, 3, 3), 255)) == 0


def test_colours_are_drawn_for_each_sample() -> None:
    x = torch.full((4000, 3, 2, 2), 100, dtype=torch.uint8)
    made = jitter(x, brightness=0.4)[:, 0, 0, 0].float() / 100
    assert 0.59 <= made.min() < 0.62 and 1.38 < made.max() <= 1.41 and abs(float(made.mean()) - 1) < 0.01


def test_colours_need_bytes_in_three_colours() -> None:
    with pytest.raises(DataError, match="put it before normalize"):
        ColourJitter().describe({"x": Column(torch.float32, (3, 8, 8))})
    with pytest.raises(DataError, match=r"\[3, H, W\]; got \[1, 8, 8\]"):
        ColourJitter().describe({"x": Column(torch.uint8, (1, 8, 8))})


# Mixes


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0, 2.0, 4.0])
def test_beta_draws_have_its_distribution(alpha: float) -> None:
    uniform = (torch.arange(100_000) + 0.5) / 100_000
    drawn = draw_beta(alpha, uniform).double()
    assert (drawn.diff() >= 0).all() and drawn.min() >= 0 and drawn.max() <= 1
    assert abs(float(drawn.mean()) - 0.5) < 1e-3
    assert float(drawn.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.01)
    assert float((drawn - 0.5).pow(4).mean()) == pytest.approx(3 / (16 * (2 * alpha + 1) * (2 * alpha + 3)), rel=0.02)
    if alpha == 1.0:
        assert np.abs(beta_quantiles(1.0) - np.linspace(0, 1, 4097)).max() < 1e-6
    if alpha == 0.5:  # the arcsine law
        assert np.abs(beta_quantiles(0.5) - np.sin(np.linspace(0, 1, 4097) * math.pi / 2) ** 2).max() < 1e-6


def test_mixup_blends_with_the_next_sample() -> None:
    x, y = torch.randn(64, 3, 4, 4), torch.arange(64)
    made = Mixup(1.0)({"x": x, "y": y}, keys(64))
    mix = made["mix"].view(-1, 1, 1, 1)
    assert made["y_other"].equal(y.roll(-1)) and made["y"].equal(y) and made["mix"].dtype == torch.float32
    assert torch.allclose(made["x"], mix * x + (1 - mix) * x.roll(-1, 0), atol=1e-6)
    assert mix.min() < 0.1 and mix.max() > 0.9 and len(mix.unique()) > 60
    described = Mixup(1.0).describe({"x": Column(torch.float32, (3, 4, 4)), "y": NUMBER})
    assert described["y_other"] == NUMBER and described["mix"] == Column(torch.float32, ()) and made.keys() == described.keys()


def test_cutmix_pastes_a_box_of_the_next_sample() -> None:
    count, size = 2000, 16
    x = torch.arange(count).view(-1, 1, 1, 1).expand(-1, 3, size, size).contiguous()
    made = Cutmix(1.0)({"x": x, "y": torch.arange(count)}, keys(count))
    own = made["x"] == x
    assert (own | (made["x"] == x.roll(-1, 0))).all() and (own == own[:, :1]).all()
    assert torch.allclose(own[:, 0].float().mean((1, 2)), made["mix"], atol=1e-6)
    other = ~own[:, 0]
    boxes = other.any(2).sum(1) * other.any(1).sum(1)
    assert boxes.equal(other.sum((1, 2)))  # a rectangle, without holes
    assert other.any(0).all() and made["mix"].min() < 0.15 and made["mix"].max() == 1


def test_mixing_twice_or_without_targets_is_said() -> None:
    x = Column(torch.float32, (3, 8, 8))
    once = Mixup().describe({"x": x, "y": NUMBER})
    with pytest.raises(DataError, match=r"cutmix: .* already mixed"):
        Cutmix().describe(once)
    with pytest.raises(DataError, match=r"mixup .* no column y"):
        Mixup().describe({"x": x})
    with pytest.raises(DataError, match="put normalize before it"):
        Mixup().describe({"x": Column(torch.uint8, (3, 8, 8)), "y": NUMBER})
    assert Normalize().describe({"x": Column(torch.uint8, (3, 8, 8)), "y": NUMBER})["x"].dtype == torch.float32
