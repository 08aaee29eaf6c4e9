"""Images as data: a folder of class folders or a list of files, cropped to squares of one size."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flatout.base.errors import DataError
from flatout.data.augment.crops import CenterCrop, RandomResizedCrop
from flatout.data.augment.mixing import Cutmix, Mixup
from flatout.data.augment.pixels import Cutout
from flatout.data.data import Data
from flatout.data.decoding.decoders import make_decoder
from flatout.data.files.bad import Bad, OnBad
from flatout.data.fitted.fitted import Fitted
from flatout.data.fitted.photo_rows import PhotoHost
from flatout.data.fitted.tensors import to_tensor
from flatout.data.normalize import Normalize
from flatout.data.order.keyed import Keys
from flatout.data.order.split import hash_strings, held_out
from flatout.data.source import ArraySource, Transform
from flatout.data.sources.photos.labels import Labels
from flatout.data.sources.photos.listing import Photos, find_photos, find_unlabelled, look_into
from flatout.data.sources.photos.opening import is_remote, read_photo
from flatout.data.sources.photos.source import PhotoSource
from flatout.data.transforms import parse_transforms

IMAGENET = Normalize(1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_FIT_ROWS = 1024
_VALIDATION_NAMES = ("val", "valid", "validation")
_TEST_NAMES = ("test",)


def images(
    path: Any,
    *,
    size: int,
    augment: Sequence[Any] = (),
    holdout: float = 0.0,
    validation: Any = None,
    test: Any = None,
    on_bad: str = "error",
    decoder: str = "auto",
    normalize: str | Mapping[str, Any] | Transform | None = "imagenet",
    draw: str | Any = "shuffle",
    classes: int | Sequence[str] | None = None,
    cover: int | None = None,
    resize: int | None = None,
    interpolation: str = "bilinear",
    seed: int = 0,
) -> Data:
    """A folder with a folder for each class, a list (.csv, .parquet) with columns path and label, or a pair (paths, labels).

    A folder with only the folders train and val (or valid, validation), and perhaps test, is used as that split. `holdout` sets
    a share aside for validation by a hash of file names: adding files moves hardly any to the other side.

    Training uses `augment`, in its order; evaluation uses a center crop of photos whose short side is scaled to `resize`, by
    default 29/28 of `size`. `interpolation` is bilinear or bicubic. Photos are decoded to at least `cover` pixels on the short
    side, by default `resize`; more keeps small crops sharp, and costs time and memory.
    """
    if holdout and validation is not None:
        raise DataError("holdout and validation are two ways to get validation rows: give one of them")
    path, validation, test = _given_split(path, validation, test, holdout)
    bad, decode = Bad(OnBad(on_bad)), make_decoder(decoder)
    prepare = _center(size, resize, interpolation)
    cover = _checked_cover(cover, prepare)
    listing = find_photos(path)
    photos = look_into(listing, bad)
    labels = Labels.of(photos.targets, classes, words=listing.from_folders)

    def source(some: Photos) -> PhotoSource:
        y = labels.targets(some.targets, [some.path(file) for file in range(len(some))])
        return PhotoSource(some, y, cover, decode, bad)

    others = {"validation": validation, "test": test}
    listings = {part: find_photos(given) for part, given in others.items() if given is not None}
    held = look_into(listings["validation"], bad) if "validation" in listings else None
    kept = None
    if holdout:
        aside = held_out(hash_strings(photos.names, seed), holdout)
        kept = torch.from_numpy(~aside)
        photos, held = photos.select(~aside), photos.select(aside)
    train = source(photos)
    weights = _weights(draw, kept)
    normalizer = _normalizer(normalize, train, prepare)
    return Data(
        train=train,
        validation=None if held is None else source(held),
        test=source(look_into(listings["test"], bad)) if "test" in listings else None,
        prepare=(prepare, *normalizer),
        training=training_chain(parse_transforms(augment), size, prepare, normalizer),
        notes=tuple(filter(None, [bad.summary(), *(found.note() for found in (listing, *listings.values()))])),
        bad=(bad,),
        draw=weights,
        classes=labels.classes,
        labels=labels.names,
        host=PhotoHost(cover, decoder, labels.names, labels.classes),
        reading={"on_bad": on_bad},
        raw=partial(_contents, photos if held is None else held),
    )


def _weights(draw: str | Any, kept: torch.Tensor | None) -> str | torch.Tensor:
    """`kept`: whether each photo is left to train on, if some are held out."""
    weights = draw if isinstance(draw, str) else to_tensor(draw, "draw")
    return weights[kept] if kept is not None and not isinstance(weights, str) and len(weights) == len(kept) else weights


def _contents(photos: Photos, rows: int) -> list[bytes]:
    return [read_photo(photos.path(file)) for file in range(min(rows, len(photos)))]


def other_images(fitted: Fitted, path: str, targets: bool) -> PhotoSource:
    """Other photos, decoded like those of `images`. Without `targets`, any folder of images or a single file will do."""
    host, bad = fitted.host, Bad(OnBad(fitted.reading["on_bad"]))
    assert isinstance(host, PhotoHost)
    listing = find_photos(path) if targets else find_unlabelled(path)
    photos = look_into(listing, bad)
    if targets:
        labels = Labels.of(photos.targets, host.class_names or host.classes)
        y = labels.targets(photos.targets, [photos.path(file) for file in range(len(photos))])
    else:
        y = torch.zeros(len(photos), dtype=torch.int64)
    return PhotoSource(photos, y, host.cover, make_decoder(host.decoder), bad)


def training_chain(
    augment: Sequence[Transform], size: int, center: CenterCrop, normalizer: tuple[Transform, ...]
) -> tuple[Transform, ...]:
    """Order: the crop, colours and shapes on bytes, then normalize, then mixing and cutout; otherwise as given."""
    sized = [_sized(transform, size, center.interpolation) for transform in augment]
    crops = [place for place, transform in enumerate(sized) if isinstance(transform, RandomResizedCrop | CenterCrop)]
    if not crops:
        sized.insert(0, center)
    elif crops[0] != 0:
        name = next(iter(sized[crops[0]].written()))
        raise DataError(f"{name} comes first in augment: it gives all photos one size, which what follows needs")
    if any(isinstance(transform, Normalize) for transform in sized):
        return tuple(sized)
    after = [place for place, transform in enumerate(sized) if isinstance(transform, Mixup | Cutmix | Cutout)]
    cut = after[0] if after else len(sized)
    return (*sized[:cut], *normalizer, *sized[cut:])


def _sized(transform: Transform, size: int, interpolation: str) -> Transform:
    """A crop without a size gets the size and the interpolation of the data."""
    if isinstance(transform, RandomResizedCrop | CenterCrop):
        if transform.size is None:
            return replace(transform, size=size, interpolation=interpolation)
        if transform.size != size:
            raise DataError(
                f"a crop in augment makes images of {transform.size} pixels, and size is {size}: leave it out there"
            )
    return transform


def _given_split(path: Any, validation: Any, test: Any, holdout: float) -> tuple[Any, Any, Any]:
    """The train, val and test folders of a folder that has nothing else; explicit arguments win."""
    if not isinstance(path, str | os.PathLike) or is_remote(path) or not os.path.isdir(Path(path).expanduser()):
        return path, validation, test
    folder = Path(path).expanduser()
    inside = {entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")}
    if "train" not in inside or len(inside) < 2 or not inside <= {"train", *_VALIDATION_NAMES, *_TEST_NAMES}:
        return path, validation, test
    held = sorted(inside & set(_VALIDATION_NAMES))
    if len(held) > 1:
        raise DataError(f"images: {folder} has {' and '.join(held)}; give the folder to validate on as validation=")
    if validation is None and not holdout and held:
        validation = folder / held[0]
    if test is None and "test" in inside:
        test = folder / "test"
    return folder / "train", validation, test


def _center(size: Any, resize: int | None, interpolation: str) -> CenterCrop:
    if size is None:
        raise DataError("images need a size, the pixels on each side of what the model gets: such as size=224")
    return CenterCrop(size, resize, interpolation)


def _checked_cover(cover: int | None, center: CenterCrop) -> int:
    assert center.resize is not None
    if cover is None:
        return center.resize
    if not isinstance(cover, int) or cover < 1:
        raise DataError(f"cover is a whole number of pixels, 1 or more, got {cover!r}")
    return cover


def _normalizer(
    given: str | Mapping[str, Any] | Transform | None, train: PhotoSource, center: CenterCrop
) -> tuple[Transform, ...]:
    if given is None:
        return ()
    if given == "imagenet":
        return (IMAGENET,)
    if given == "auto":
        return (fit_normalize(train, center),)
    if isinstance(given, Mapping):
        return parse_transforms([{"normalize": given}])
    if isinstance(given, str | bool | int | float | list | tuple):
        raise DataError(f"normalize is 'imagenet', 'auto', or scale, mean and std; got {given!r}")
    return (given,)


def fit_normalize(train: PhotoSource, center: CenterCrop, rows: int = _FIT_ROWS) -> Normalize:
    """Fitted on the center crops of up to `rows` photos, spread evenly over the training files."""
    picked = torch.arange(min(rows, len(train))) * len(train) // min(rows, len(train))
    none = torch.zeros(1, dtype=torch.int64)
    crops = [center(train.read(row), Keys(0, none, none))["x"] for row in picked.split(1)]
    return Normalize.fit(ArraySource({"x": torch.cat(crops).contiguous()}), rows_at_once=64)
