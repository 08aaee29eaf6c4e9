"""A recipe for images: a folder with a folder for each class, or a list with a path and a label a row."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from flatout.base.errors import UsageError
from flatout.data.decoding.headers import SUFFIXES
from flatout.data.files.bad import Bad, OnBad
from flatout.data.sources.photos.labels import Labels
from flatout.data.sources.photos.listing import Listing, find_photos, look_into
from flatout.data.sources.photos.opening import open_photo
from flatout.explore.drafting.draft import Draft
from flatout.explore.drafting.kinds import Given, relative
from flatout.explore.drafting.sample import TableSample
from flatout.explore.drafting.sizes import device_kind, for_images
from flatout.explore.drafting.writing import DraftLine
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.guard import switched_on
from flatout.explore.guard.photos import find_copied_photos

_LOOKED_INTO = 300  # headers to read, spread over all files
_SIZES = (224, 160, 128, 96, 64, 48, 32)
_LARGEST = {"cpu": 64, "accelerator": 224}
_HELD = ("val", "valid", "validation", "test")


def image_column(sample: TableSample) -> str | None:
    """The column of a table that has image file names."""
    for name, column in sample.columns.items():
        if column.kind == "text" and column.counts and all(v.lower().endswith(SUFFIXES) for v, _ in column.counts[:100]):
            return name
    return None


def check_list(sample: TableSample, column: str, where: str, asked: str | None) -> None:
    """Checks that a list of images has the columns path and label."""
    if column == "path" and "label" in sample.columns and asked in (None, "label"):
        return
    names = ", ".join(sample.columns)
    raise UsageError(
        f"{where} is a list of images, by its column {column!r}: call that column path and the one to learn label, as a list "
        f"has them (its columns are {names})"
    )


def draft_images(given: Given, asked: str | None, folder: Path, guard: Any = None) -> Draft:
    if asked not in (None, "label"):
        raise UsageError(f"--label {asked}: the class of an image is the name of its folder, or the column label of a list")
    path = Path(given.typed).expanduser()
    parts = sorted(inside.name for inside in path.iterdir() if inside.is_dir()) if os.path.isdir(path) else []
    split = "train" in parts and set(parts) <= {"train", *_HELD} and len(parts) > 1
    listing = find_photos(path / "train" if split else path)
    labels = Labels.of(listing.targets, words=listing.from_folders)
    bad = Bad(OnBad.SKIP)
    photos = look_into(_spread(listing), bad)
    height, width = int(np.median(photos.height)), int(np.median(photos.width))
    device = device_kind()
    size = next((s for s in _SIZES if s <= min(height, width, _LARGEST[device])), _SIZES[-1])
    share = 0.0 if split else 0.2
    training = for_images(round(len(listing.names) * (1 - share)), size, device)
    crops = ["random_resized_crop", "flip"] if size > 32 else ["flip"]
    entries = [
        DraftLine(
            "images", relative(given.typed, folder), "the class is the folder" if listing.from_folders else "path and label"
        ),
        DraftLine("size", size, f"pixels of a side that the model sees; the files are about {width} x {height}"),
        DraftLine("augment", crops, "no flip where left and right differ; more: colour_jitter, {mixup: 0.2}"),
    ]
    if share:
        entries.append(DraftLine("holdout", share, "this share of the files is only evaluated on; or validation: other/"))
    if bad.count:
        entries.append(DraftLine("on_bad", "skip", "some files are no images: they are left out and counted; or error"))
    classes = _class_words(listing, labels)
    facts = [("classes", classes) if labels.classes else ("label", "a number")]
    facts.append(("size", f"about {width} x {height} pixels; the model sees {size} x {size}"))
    facts += [("held out", ", ".join(name for name in parts if name != "train"))] if split else []
    facts += [("bad files", str(bad.summary()))] if bad.count else []
    findings = _copied(path, listing, [name for name in parts if name != "train"] if split else []) if _looked(guard) else []
    facts += [(one.guard, one.words) for one in findings]
    objective = "regress" if labels.classes is None else "binary" if labels.classes == 2 else "classify"
    what = "images in class folders" if listing.from_folders else "images by a list"
    head = f"{given.typed}: {len(listing.names):,} {what}{' to train on' if split else ''}"
    return Draft(head, tuple(facts), tuple(entries), objective, training, tuple(findings))


def _looked(guard: Any) -> bool:
    return "duplicate" in switched_on(guard)


def _copied(path: Path, listing: Listing, held: list[str]) -> list[GuardFinding]:
    """Photos that are in the training folder and in another one; without others, photos that are there twice."""
    training = _files(listing)
    if not held:
        return list(find_copied_photos(training, listing.targets, [], ""))
    other = ((name, _files(find_photos(path / name))) for name in held)
    return [one for name, files in other for one in find_copied_photos(training, listing.targets, files, name)]


def _files(listing: Listing) -> list[Callable[[], BinaryIO]]:
    return [partial(open_photo, os.path.join(listing.folder, name)) for name in listing.names]


def _spread(listing: Listing) -> Listing:
    every = max(1, len(listing.names) // _LOOKED_INTO)
    return replace(listing, names=listing.names[::every], targets=listing.targets[::every], where=listing.where[::every])


def _class_words(listing: Listing, labels: Labels) -> str:
    counts = Counter(str(target) for target in listing.targets)
    shown = ", ".join(f"{name} {count}" for name, count in counts.most_common(5))
    return f"{labels.classes}: {shown}{' ...' if len(counts) > 5 else ''}"
