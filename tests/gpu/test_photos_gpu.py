"""On a GPU: photos are cut as on the host within one level, nothing waits, graphs hold it, and each tier gives equal bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from flatout.data.augment.resample import resample, resample_on_cpu, resample_plainly
from flatout.data.augment.windows import CropWindow, Flat
from flatout.data.decoding.decoders import make_decoder
from flatout.data.feeds.feed import PinnedFeed, feed, feed_options
from flatout.data.feeds.resident import ResidentFeed
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, apply
from flatout.data.sources.photos.images import images
from flatout.data.transforms import parse_transforms

SIZES = [(8, 8), (40, 600), (600, 40), (33, 57), (224, 224), (1, 1), (1, 30), (375, 500), (300, 200), (17, 512)]
CHAIN = [{"random_resized_crop": 64}, "flip", {"colour_jitter": {"hue": 0.1}}, {"normalize": {"scale": 0.01}}, {"mixup": 0.2}]


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def photos(sizes: list[tuple[int, int]], seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([height * width * 3 for height, width in sizes])
    return {
        "pixels": torch.randint(0, 256, (int(lengths.sum()),), dtype=torch.uint8, generator=draw),
        "start": lengths.cumsum(0) - lengths,
        "height": torch.tensor([height for height, _ in sizes]),
        "width": torch.tensor([width for _, width in sizes]),
        "y": torch.arange(len(sizes)),
    }


def boxes(batch: Batch, size: int, seed: int) -> CropWindow:
    """Any box of each image, scaled up or down, with the square anywhere in that."""
    draw = np.random.default_rng(seed)
    high, wide = batch["height"].numpy(), batch["width"].numpy()
    height, width = draw.integers(1, high + 1), draw.integers(1, wide + 1)
    top, left = draw.integers(0, high - height + 1), draw.integers(0, wide - width + 1)
    tall, broad = draw.integers(size, size + 40, len(high)), draw.integers(size, size + 40, len(high))
    down, across = draw.integers(0, tall - size + 1), draw.integers(0, broad - size + 1)
    return CropWindow(*(torch.from_numpy(column) for column in (top, left, height, width, tall, broad, down, across)))


def to_device(batch: Batch) -> Batch:
    return {name: column.cuda() for name, column in batch.items()}


def flat(batch: Batch) -> Flat:
    return Flat(batch["pixels"], batch["start"], batch["width"])


def far(one: Tensor, other: Tensor) -> int:
    return int((one.cpu().int() - other.cpu().int()).abs().max())


@pytest.mark.parametrize("size", [5, 32, 224])
def test_crops_are_those_of_the_host_within_one_level(size: int) -> None:
    batch = photos(SIZES)
    for seed in range(4):
        window = boxes(batch, size, seed)
        host = resample_on_cpu(flat(batch), window, size)
        there = CropWindow(*(column.cuda() for column in window))
        device = resample(flat(to_device(batch)), there, size)
        assert device.shape == host.shape and device.dtype == torch.uint8
        assert device.is_contiguous(memory_format=torch.channels_last)
        assert far(device, host) <= 1
        assert far(resample_plainly(flat(to_device(batch)), there, size), device) <= 1


def test_a_store_beyond_two_gigabytes_is_read_at_its_end() -> None:
    batch = to_device(photos([(50, 70)]))
    before = (1 << 31) + 12_345
    pixels = torch.empty(before + len(batch["pixels"]), dtype=torch.uint8, device="cuda")
    pixels[before:] = batch["pixels"]
    window = CropWindow(*(column.cuda() for column in boxes(photos([(50, 70)]), 32, 0)))
    far_away = resample(Flat(pixels, batch["start"] + before, batch["width"]), window, 32)
    assert far_away.equal(resample(flat(batch), window, 32))


def _chained(batch: Batch, device: str) -> Batch:
    rows = torch.arange(len(batch["y"]), device=device)
    return apply(parse_transforms(CHAIN), batch, Keys(3, torch.ones_like(rows), rows))


def test_the_whole_chain_draws_what_the_host_draws() -> None:
    batch = photos(SIZES * 3)
    host, device = _chained(batch, "cpu"), _chained(to_device(batch), "cuda")
    assert device["y_other"].cpu().equal(host["y_other"]) and torch.allclose(device["mix"].cpu(), host["mix"], atol=1e-6)
    assert (device["x"].cpu() - host["x"]).abs().max() < 0.06  # levels of 0.01: a few for two roundings and the colours' gain


def test_nothing_waits_and_a_graph_holds_it() -> None:
    batch = to_device(photos(SIZES))
    first = _chained(batch, "cuda")  # compiles, and puts constants on the device
    with no_waiting():
        again = _chained(batch, "cuda")
    assert all(again[name].equal(first[name]) for name in first)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _chained(batch, "cuda")
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        captured = _chained(batch, "cuda")
    captured["x"].zero_()
    graph.replay()
    assert all(captured[name].equal(first[name]) for name in first)


def test_resident_photos_and_uploaded_ones_give_equal_bits(shared_data: Callable[[str], Path]) -> None:
    data = images(shared_data("photos/hymenoptera"), size=96, augment=["random_resized_crop", "flip", {"cutmix": 1.0}])
    assert data.training is not None
    resident = ResidentFeed(data.train, data.sampler(1), feed_options(16, "cuda", data.transforms(), 1))
    for turn in range(9):
        rows, visits = (sample(16 * turn, 16 * turn + 16) for sample in (data.sampler(1).rows, data.sampler(1).visits))
        uploaded = to_device(data.train.read(rows))
        wanted = apply(data.training, uploaded, Keys(1, visits.cuda(), rows.cuda()))
        served = resident.next()
        assert served.keys() == wanted.keys() and all(served[name].equal(wanted[name]) for name in wanted)


def test_a_device_that_is_filled_on_the_way_serves_what_the_host_would(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for number in range(96):
        path = tmp_path / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        height, width = draw.integers(180, 400, 2)
        Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
    data = images(tmp_path, size=160, augment=["random_resized_crop", "flip", {"cutmix": 1.0}])
    filled, pinned = feed(data, "resident", 20, "cuda", 3), feed(data, "pinned", 20, "cuda", 3)
    assert isinstance(filled, PinnedFeed) and isinstance(pinned, PinnedFeed)
    for _ in range(15):  # three epochs
        one, other = filled.next(), pinned.next()
        assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
    filled.load()
    pinned.load()
    for _ in range(15):
        filled.bring()
        pinned.bring()
        one, other = filled.capture_next(), pinned.capture_next()
        assert all(one[name].equal(other[name]) for name in one)
    assert filled.stats()["rows_read"] < 96 + 20 * 10  # those of the first epoch, and what was read ahead when it was stopped
    filled.release()
    pinned.release()


def test_nvjpeg_gives_nearly_the_pixels_of_turbo(shared_data: Callable[[str], Path]) -> None:
    pytest.importorskip("torchvision")
    path = shared_data("photos/hymenoptera")
    options: dict[str, Any] = {"size": 96, "normalize": None}
    turbo, nvjpeg = images(path, **options), images(path, decoder="nvjpeg", **options)
    assert make_decoder("nvjpeg").id.startswith("nvjpeg rule") and turbo.train.made_by != nvjpeg.train.made_by
    rows = torch.arange(20)
    one, other = turbo.train.read(rows), nvjpeg.train.read(rows)
    assert all(one[name].equal(other[name]) for name in ("start", "height", "width", "y"))
    assert (one["pixels"].float() - other["pixels"].float()).abs().mean() < 8
