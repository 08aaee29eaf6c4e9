"""Photos that stay on the device once they were copied there: the same batches, and every file is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_filling import DECODED
from test_photos_files import encoded

import flatout as fo
from flatout.data.cache.device import DeviceStore
from flatout.data.cache.tiers import choose_tier
from flatout.data.data import Data
from flatout.data.feeds.feed import feed_options
from flatout.data.feeds.pinned import PinnedFeed
from flatout.data.feeds.resident import filled_by
from flatout.data.source import Batch
from flatout.data.sources.photos import source as photo_source

PHOTOS, BATCH = 70, 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Photos of many sizes."""
    draw = np.random.default_rng(0)
    for number in range(PHOTOS):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = draw.integers(30, 90, 2)
        path.write_bytes(encoded(Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)), "JPEG"))
    return tmp_path / "photos"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    paths: list[str] = []
    read: Callable[[str], bytes] = photo_source.read_photo

    def counted(path: str) -> bytes:
        paths.append(path)
        return read(path)

    monkeypatch.setattr(photo_source, "read_photo", counted)
    yield paths


def photos(folder: Path, **options: object) -> Data:
    return fo.data.images(folder, size=24, augment=["random_resized_crop", "flip"], **options)


def kept_feed(data: Data, workers: int | str = 3) -> PinnedFeed:
    store = DeviceStore(data.train, "cpu")  # type: ignore[arg-type]
    return PinnedFeed(data.train, data.sampler(5), feed_options(BATCH, "cpu", data.transforms(), 5, workers), kept=store)


def plain_feed(data: Data) -> PinnedFeed:
    return PinnedFeed(data.train, data.sampler(5), feed_options(BATCH, "cpu", data.transforms(), 5, workers=0))


def equal(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_the_batches_are_those_of_a_feed_that_reads_each_time(folder: Path, workers: int) -> None:
    kept, plain = kept_feed(photos(folder), workers), plain_feed(photos(folder))
    for _ in range(14):  # four epochs; batches cross from one into the next
        assert equal(kept.next(), plain.next())
    kept.seek(33)
    plain.seek(33)
    assert equal(kept.next(7), plain.next(7)) and equal(kept.next(), plain.next())
    kept.close()


def test_every_file_is_read_once(folder: Path, opened: list[str]) -> None:
    feed = kept_feed(photos(folder), workers=0)
    opened.clear()
    for _ in range(14):
        feed.next()
    assert sorted(opened) == sorted(set(opened)) and len(opened) == PHOTOS
    assert feed.stats()["rows_read"] == PHOTOS


@pytest.mark.parametrize("workers", [0, 4])
def test_what_stands_in_for_a_bad_photo_is_shown_in_every_epoch(folder: Path, workers: int) -> None:
    for name in ("a/10.jpg", "a/12.jpg", "b/69.jpg"):  # two in a row, and the last of all
        torn = folder / name
        torn.write_bytes(torn.read_bytes()[:650])
    data, other = photos(folder, on_bad="skip"), photos(folder, on_bad="skip")
    kept, plain = kept_feed(data, workers), plain_feed(other)
    for _ in range(14):
        assert equal(kept.next(), plain.next())
    kept.close()
    assert data.train.bad.count == other.train.bad.count == 3  # type: ignore[attr-defined]


def test_a_photo_that_turns_out_bad_while_its_batch_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may find that out: what was read is then not what the row shows any more."""
    data, other = photos(folder, on_bad="skip"), photos(folder, on_bad="skip")
    kept = kept_feed(data, workers=0)
    victim = int(data.sampler(5).rows(0, 1)[0])
    source, read = data.train, type(data.train).read_with
    found: list[int] = []

    def and_then_it_is_bad(self: object, rows: torch.Tensor, take: object) -> Batch:
        batch: Batch = read(self, rows, take)  # type: ignore[arg-type]
        if self is source and not found:
            found.append(victim)
            source._replace(victim, "the disk says so")  # type: ignore[attr-defined]
        return batch

    monkeypatch.setattr(type(source), "read", lambda self, rows: and_then_it_is_bad(self, rows, _own_room))
    other.train._replace(victim, "the disk says so")  # type: ignore[attr-defined]
    plain = plain_feed(other)
    for _ in range(14):
        assert equal(kept.next(), plain.next())
    assert found == [victim]


def _own_room(name: str, length: int) -> torch.Tensor:
    return torch.empty(length, dtype=torch.uint8 if name == "pixels" else torch.int64)


def test_small_photos_and_other_sources_are_put_on_the_device_beforehand(folder: Path) -> None:
    small = photos(folder).train
    assert filled_by(small, "cuda") is None and filled_by(small, "cpu") is None
    large = fo.data.images(folder, size=256).train
    large.sizes[:] = 1 << 20  # type: ignore[attr-defined]
    assert filled_by(large, "cuda") is large and filled_by(large, "cpu") is None
    assert filled_by(fo.data.digits().train, "cuda") is None


def test_nothing_speaks_against_a_device_that_is_filled_on_the_way() -> None:
    roomy = replace(DECODED, device_free_bytes=140e9)
    assert choose_tier(roomy).tier == "pinned"
    chosen = choose_tier(replace(roomy, fills=True))
    assert chosen.tier == "resident" and "when first read" in chosen.why
    assert choose_tier(replace(roomy, fills=True, epochs=1)).tier == "streamed"
    assert choose_tier(replace(DECODED, fills=True)).tier == "pinned"  # no room there
