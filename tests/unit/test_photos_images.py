"""Images as data: splits, classes, chains of transforms, and equal batches whatever serves them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.augment.colour import ColourJitter
from flatout.data.augment.crops import CenterCrop, RandomResizedCrop
from flatout.data.augment.mixing import Cutmix, Mixup
from flatout.data.augment.pixels import Cutout, Flip
from flatout.data.cache.cache import Cache, cache_key
from flatout.data.cache.filling import FillingSource
from flatout.data.cache.memory import MemoryStore
from flatout.data.data import Data
from flatout.data.decoding.decode import Turbo
from flatout.data.feeds.evaluation import EvalFeed
from flatout.data.feeds.feed import feed_options
from flatout.data.feeds.pinned import PinnedFeed
from flatout.data.feeds.resident import ResidentFeed
from flatout.data.normalize import Normalize
from flatout.data.order.keyed import Keys
from flatout.data.source import Source, apply
from flatout.data.sources.photos import source as photo_source
from flatout.data.sources.photos.images import IMAGENET, images
from flatout.data.sources.photos.opening import read_photo
from flatout.data.sources.photos.source import PhotoSource

Shared = Callable[[str], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve ants and eight bees, in one colour each."""
    for name, count, blue in (("ants", 12, 40), ("bees", 8, 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(count):
            image = Image.new("RGB", (30 + number, 44 - number), (10 * number, 90, blue))
            image.save(tmp_path / "photos" / name / f"{number:02}.png")
    return tmp_path / "photos"


def names(source: Source | None) -> list[str]:
    assert isinstance(source, PhotoSource)
    return list(source._photos.names)


def evaluated(data: Data, source: Source, rows: Tensor) -> Tensor:
    return apply(data.prepare, source.read(rows), Keys(0, torch.zeros_like(rows), rows))["x"]


def test_a_folder_becomes_data_that_evaluates_a_center_crop(folder: Path) -> None:
    data = images(folder, size=16, augment=["random_resized_crop", "flip"])
    assert data.classes == 2 and data.labels == ("ants", "bees") and len(data.train) == 20 and data.validation is None
    assert data.prepare == (CenterCrop(16, 17), IMAGENET)
    assert data.training == (RandomResizedCrop(16), Flip(), IMAGENET)
    assert data.shapes_x() == (3, 16, 16) and data.schema()["x"].dtype == torch.float32
    x = evaluated(data, data.train, torch.tensor([3, 15]))
    assert x.shape == (2, 3, 16, 16) and x.is_contiguous(memory_format=torch.channels_last)
    blue = (torch.tensor([40, 200]) / 255 - 0.406) / 0.225
    assert torch.allclose(x[:, 2], blue.view(2, 1, 1).expand(2, 16, 16), atol=1e-5)


def test_the_order_of_augment_is_kept_and_normalize_comes_before_mixing(folder: Path) -> None:
    def chain(*augment: Any, **options: Any) -> list[type]:
        training = images(folder, size=16, augment=augment, **options).training
        assert training is not None
        return [type(transform) for transform in training]

    crop: Any = "random_resized_crop"
    assert chain() == [CenterCrop, Normalize] and chain("flip") == [CenterCrop, Flip, Normalize]
    assert chain(crop, "flip", {"mixup": 0.2}) == [RandomResizedCrop, Flip, Normalize, Mixup]
    assert chain(crop, "colour_jitter", "cutout", "flip") == [RandomResizedCrop, ColourJitter, Normalize, Cutout, Flip]
    assert chain(crop, {"cutmix": 1.0}, normalize=None) == [RandomResizedCrop, Cutmix]
    assert chain({"random_resized_crop": {"scale": [0.5, 1]}}, {"normalize": {"scale": 0.1}}, "flip") == [
        RandomResizedCrop, Normalize, Flip,
    ]  # fmt: skip
    with pytest.raises(DataError, match="must come first and only once"):
        chain(crop, "center_crop")
    with pytest.raises(DataError, match="put it before normalize"):
        chain(crop, "cutout", "colour_jitter")
    with pytest.raises(DataError, match="makes images of 32 pixels, and size is 16"):
        chain({"random_resized_crop": 32})
    with pytest.raises(UsageError, match="unknown transform 'flp'; did you mean 'flip'"):
        chain(crop, "flp")


def test_crop_that_is_not_first_is_said(folder: Path) -> None:
    with pytest.raises(DataError, match="random_resized_crop comes first in augment"):
        images(folder, size=16, augment=["flip", "random_resized_crop"])


def test_holdout_is_by_name_and_stays_when_files_are_added(folder: Path, tmp_path: Path) -> None:
    data = images(folder, size=16, holdout=0.25)
    train, held = names(data.train), names(data.validation)
    assert len(held) == 5 and not set(train) & set(held) and len(train) == 15
    again = images(shutil.copytree(folder, tmp_path / "moved"), size=16, holdout=0.25)
    assert names(again.validation) == held and again.fingerprint() == data.fingerprint()
    assert names(images(folder, size=16, holdout=0.25, seed=1).validation) != held
    pairs = [(str(path.relative_to(folder)), path.parent.name) for path in sorted(folder.glob("*/*"), reverse=True)]
    (folder / "list.csv").write_text("\n".join(["path,label", *(f"{path},{label}" for path, label in pairs)]))
    assert set(names(images(folder / "list.csv", size=16, holdout=0.25).validation)) == set(held)


def test_train_and_val_folders_are_the_split(shared_data: Shared) -> None:
    data = images(shared_data("photos/hymenoptera"), size=64, augment=["random_resized_crop"])
    assert data.labels == ("ants", "bees") and len(data.train) == 120 and len(data.validation or ()) == 50
    other = images(shared_data("photos/hymenoptera/train"), size=64, validation=shared_data("photos/hymenoptera/val"))
    assert len(other.validation or ()) == 50
    assert other.validation and data.validation and other.validation.fingerprint() == data.validation.fingerprint()


def test_given_validation_and_test_have_the_classes_of_training(folder: Path, tmp_path: Path) -> None:
    held = tmp_path / "held"
    shutil.copytree(folder / "bees", held / "bees")
    data = images(folder, size=16, validation=held, test=held)
    assert data.validation and data.validation.read(torch.tensor([0]))["y"].tolist() == [1]
    assert data.test and len(data.test) == 8
    shutil.copytree(folder / "bees", held / "wasps")
    with pytest.raises(DataError, match=r"wasps/00.png has label 'wasps', .*: ants, bees"):
        images(folder, size=16, validation=held)
    with pytest.raises(DataError, match="holdout and validation"):
        images(folder, size=16, validation=held, holdout=0.1)


def test_one_class_is_said_unless_classes_are_told(folder: Path) -> None:
    shutil.rmtree(folder / "bees")
    with pytest.raises(DataError, match="all have the same label, 'ants'"):
        images(folder, size=16)
    data = images(folder, size=16, classes=["bees", "ants"])
    assert data.classes == 2 and data.train.read(torch.tensor([0]))["y"].tolist() == [1]


def test_normalize_is_fitted_given_or_left_out(folder: Path) -> None:
    fitted = images(folder, size=16, normalize="auto").prepare[-1]
    assert isinstance(fitted, Normalize)
    mean_blue = (12 * 40 + 8 * 200) / 20 / 255
    assert fitted.mean[2] == pytest.approx(mean_blue, abs=1e-6) and fitted.mean[1] == pytest.approx(90 / 255, abs=1e-6)
    assert images(folder, size=16, normalize={"scale": 0.5, "mean": 1, "std": 2}).prepare[-1] == Normalize(0.5, (1.0,), (2.0,))
    assert images(folder, size=16, normalize=None).prepare == (CenterCrop(16),)
    with pytest.raises(DataError, match="normalize is 'imagenet', 'auto', or scale, mean and std; got 'imgnet'"):
        images(folder, size=16, normalize="imgnet")


def test_bad_files_are_an_error_or_left_out_and_counted(folder: Path) -> None:
    (folder / "ants" / "99.jpg").write_text("this is a note, not an ant")
    with pytest.raises(DataError, match=r"ants/99\.jpg: is text, not an image"):
        images(folder, size=16)
    data = images(folder, size=16, on_bad="skip", holdout=0.2)
    assert len(data.train) + len(data.validation or ()) == 20
    assert isinstance(data.train, PhotoSource) and data.train.bad.count == 1
    with pytest.raises(UsageError, match="on_bad is 'error' or 'skip', got 'ignore'"):
        images(folder, size=16, on_bad="ignore")


def test_draws_by_class_or_weight(folder: Path) -> None:
    data = images(folder, size=16, draw="balanced")
    rows = data.sampler(0).rows(0, 400)
    assert abs(int((rows < 12).sum()) - 200) < 40
    weights = torch.cat([torch.ones(12), torch.zeros(8)])
    weighted = images(folder, size=16, draw=weights, holdout=0.25)
    assert weighted.train.read(weighted.sampler(0).rows(0, 50))["y"].sum() == 0


def test_size_and_cover_are_part_of_what_the_data_is_and_the_decoder_of_what_a_cache_keeps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = images(folder, size=16).fingerprint()
    assert images(folder, size=16).fingerprint() == first
    assert images(folder, size=15).fingerprint() != first and images(folder, size=16, cover=30).fingerprint() != first
    source = images(folder, size=16).train
    key = cache_key(source)
    monkeypatch.setattr(Turbo, "id", "turbo of another version")
    assert cache_key(source) != key and images(folder, size=16).fingerprint() == first
    for wrong in (0, -3, "x", 2.5):
        with pytest.raises(DataError, match=r"size .* whole number of pixels"):
            images(folder, size=wrong)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="cover is a whole number of pixels, 1 or more, got 0"):
        images(folder, size=16, cover=0)


def test_decoded_photos_in_memory_give_the_same_batches_as_files(shared_data: Shared) -> None:
    data = images(shared_data("photos/hymenoptera"), size=48, augment=["random_resized_crop", "flip", "colour_jitter", "mixup"])
    stored = data.train.stored()
    rows = data.sampler(3).rows(0, 24)
    keys = Keys(3, torch.zeros_like(rows), rows)
    assert data.training is not None
    one = apply(data.training, data.train.read(rows), keys)
    other = apply(data.training, data.train.gather(stored, rows), keys)
    assert one.keys() == other.keys() == data.schema().keys()
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("piece_rows", [2, 5, 16])  # a batch of 6 in three pieces, in two, in one
@pytest.mark.parametrize("policy", ["error", "skip"])
def test_every_tier_serves_the_same_bits(folder: Path, policy: str, piece_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PhotoSource, "piece_rows", piece_rows)
    if policy == "skip":  # a photo that turns out bad while training: its stand-in is of another size
        cut = (folder / "bees" / "03.png").read_bytes()
        (folder / "bees" / "03.png").write_bytes(cut[:-30])
    options: dict[str, Any] = {"size": 16, "augment": ["random_resized_crop", "flip", {"cutmix": 1.0}], "on_bad": policy}

    def batches(make: Callable[[Data], Source], feed: Any, **more: Any) -> list[dict[str, Tensor]]:
        data = images(folder, **options)
        served = feed(make(data), data.sampler(5), feed_options(6, "cpu", data.transforms(), 5, **more))
        try:
            return [served.next() for _ in range(8)]  # more than two epochs
        finally:
            served.close()

    plain = batches(lambda data: data.train, PinnedFeed, workers=0)
    others = [
        batches(lambda data: data.train, ResidentFeed),
        batches(lambda data: data.train, PinnedFeed, workers=2),
        batches(lambda data: data.train, PinnedFeed, workers=5, prefetch=1),
        batches(lambda data: FillingSource(data.train, MemoryStore(data.train)), PinnedFeed, workers=2),
    ]
    for other in others:
        for one, two in zip(plain, other, strict=True):
            assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


@pytest.mark.parametrize("tier", ["pinned", "mapped", "streamed"])
def test_what_evaluation_read_is_kept_where_the_tier_keeps_rows(
    folder: Path, tmp_path: Path, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = images(folder, size=16)
    opened: list[str] = []
    monkeypatch.setattr(photo_source, "read_photo", lambda path: opened.append(path) or read_photo(path))  # type: ignore[func-returns-value]
    feed = EvalFeed(data.train, data.prepare, 6, "cpu", tier, keep=True, cache=Cache(tmp_path / "cache"))
    first = list(feed)
    if isinstance(feed._source, FillingSource) and feed._source.store is not None:
        feed._source.store.flush()  # a cache on disk is written beside reading
    begun = len(opened)
    second = list(feed)
    assert begun >= len(data.train) and len(opened) - begun == (len(data.train) if tier == "streamed" else 0)
    assert all(one[name].equal(two[name]) for one, two in zip(first, second, strict=True) for name in one)
    plain = list(EvalFeed(data.train, data.prepare, 6, "cpu", "streamed"))
    assert all(one[name].equal(two[name]) for one, two in zip(first, plain, strict=True) for name in one)
    feed.close()
