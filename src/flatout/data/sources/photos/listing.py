"""Finds image files and their labels: a folder for each class, or a list with a path and a label a row."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.decoding.headers import KINDS, SUFFIXES, PhotoHeader, image_kind, read_header
from flatout.data.files.bad import Bad
from flatout.data.files.places import open_regular
from flatout.data.sources.photos.lists import read_list
from flatout.data.sources.photos.opening import is_remote, open_photo, remote_names

Array = np.ndarray[Any, Any]
_SCAN_THREADS = 16  # most of the time is spent waiting for the disk
_SCAN_AT_ONCE = 256
_NOT_CLASSES = "__MACOSX"
_KINDS_NAMED = 5


@dataclass(frozen=True)
class Listing:
    """Files that were found, not opened yet. `where` has the place of each entry; `targets` are words or numbers."""

    folder: str
    names: list[str]
    targets: list[Any]
    where: list[str]
    from_folders: bool = False
    left_out: Counter[str] = field(default_factory=Counter)
    """Files of class folders that are not images, counted by suffix."""

    def note(self) -> str | None:
        """A sentence about the files that were left out; None if there are none."""
        count = self.left_out.total()
        if not count:
            return None
        kinds = [f"{number} {suffix}" for suffix, number in self.left_out.most_common(_KINDS_NAMED)]
        more = len(self.left_out) - _KINDS_NAMED
        listed = ", ".join(kinds) + (f" and {more} other kinds" if more > 0 else "")
        files = "1 file" if count == 1 else f"{count} files"
        return f"{files} in {self.folder} left out, not images that are read ({', '.join(KINDS)}): {listed}"


@dataclass(frozen=True)
class Photos:
    """Files whose headers could be read, by column. Names are relative to `folder` and identify the files."""

    folder: str
    names: list[str]
    targets: list[Any]
    height: Array
    width: Array
    orientation: Array
    turbo: Array
    marks: Array

    def __len__(self) -> int:
        return len(self.names)

    def path(self, file: int) -> str:
        return os.path.join(self.folder, self.names[file])

    def paths(self, files: Sequence[int]) -> list[str]:
        return [os.path.join(self.folder, self.names[file]) for file in files]

    def select(self, chosen: Array) -> Photos:
        """The photos where the mask `chosen` is true."""
        places = np.flatnonzero(chosen).tolist()
        names, targets = [self.names[place] for place in places], [self.targets[place] for place in places]
        columns = (self.height, self.width, self.orientation, self.turbo, self.marks)
        return Photos(self.folder, names, targets, *(column[chosen] for column in columns))


def find_photos(written: Any) -> Listing:
    """A folder of class folders, a list file, or a pair (paths, labels)."""
    if is_remote(written):
        return _from_url(written)
    if isinstance(written, str | os.PathLike):
        path = Path(written).expanduser()
        if os.path.isdir(path):
            return _from_folder(path)
        if not os.path.exists(path):
            raise DataError(f"images: {path} does not exist; expected a folder of class folders, or a list such as photos.csv")
        return _from_list(path)
    if isinstance(written, tuple | list) and len(written) == 2 and not isinstance(written[0], str | os.PathLike):
        return _from_pair(*written)
    raise DataError(f"images are a folder, a list file (.csv, .parquet) or a pair (paths, labels), got {written!r}")


def find_unlabelled(path: str) -> Listing:
    """A single image, or every image below a folder, without labels."""
    if os.path.isfile(path):
        folder, names = os.path.dirname(path), [os.path.basename(path)]
    else:
        folder = path
        below = [os.path.join(place, name) for place, _, files in os.walk(path) for name in files if not name.startswith(".")]
        names = sorted(os.path.relpath(file, path) for file in below)
    if not names:
        raise DataError(f"images: {path} does not exist; expected a folder of images, or one image")
    return Listing(folder, names, [0] * len(names), [os.path.join(folder, name) for name in names])


def look_into(listing: Listing, bad: Bad) -> Photos:
    """Reads the headers of all files in several threads; reports files that are not images to `bad`, in order."""
    paths = [os.path.join(listing.folder, name) for name in listing.names]
    pieces = [paths[start : start + _SCAN_AT_ONCE] for start in range(0, len(paths), _SCAN_AT_ONCE)]
    kept: list[int] = []
    headers: list[PhotoHeader] = []
    pool = ThreadPoolExecutor(_SCAN_THREADS, thread_name_prefix="headers")
    try:
        for place, found in enumerate(chain.from_iterable(pool.map(_headers, pieces))):
            if _missing(listing.targets[place]):
                bad.found(listing.where[place], "has no label")
            elif isinstance(found, PhotoHeader):
                kept.append(place)
                headers.append(found)
            else:
                bad.found(listing.where[place], found)
    finally:
        pool.shutdown(cancel_futures=True)
    if not kept:
        raise DataError(f"images: none of the {len(paths)} files in {listing.folder} can be read; {bad.summary()}")
    columns = list(zip(*headers, strict=True))
    height, width, orientation = (np.array(column, np.int64) for column in columns[:3])
    return Photos(
        folder=listing.folder,
        names=[listing.names[place] for place in kept],
        targets=[listing.targets[place] for place in kept],
        height=height,
        width=width,
        orientation=orientation,
        turbo=np.array(columns[3], bool),
        marks=np.array(columns[4], np.int64),
    )


def _missing(target: Any) -> bool:
    return target is None or target == "" or target != target  # NaN is not equal to itself


def _headers(paths: Sequence[str]) -> list[PhotoHeader | str]:
    return [_header(path) for path in paths]


def _header(path: str) -> PhotoHeader | str:
    try:
        with open_photo(path) as file:
            return read_header(file)
    except OSError as error:
        return f"can't be read: {error.strerror or error}"
    except ValueError as error:
        return str(error)


def _from_folder(folder: Path) -> Listing:
    """Each folder directly below is a class; its images may be deeper."""
    classes, loose = [], []
    for entry in _entries(str(folder)):
        if entry.is_dir():
            if entry.name != _NOT_CLASSES:
                classes.append(entry.name)
        elif _is_image(entry):
            loose.append(entry.name)
    if not classes:
        what = f"holds {len(loose)} images" if loose else "is empty"
        raise DataError(
            f"images: the folder {folder} {what} and no folders; expected a folder for each class, or a list with a path and "
            "a label a row (photos.csv)"
        )
    if loose:
        raise DataError(f"images: {folder / loose[0]} is in no class folder, and {len(loose) - 1} more beside it: move them")
    names, targets = [], []
    left_out: Counter[str] = Counter()
    for name in classes:
        found = _images_below(str(folder / name), (), left_out)
        inside = [os.path.relpath(path, folder).replace(os.sep, "/") for path in found]
        if not inside:
            others = f" (but {left_out.total()} other files)" if left_out else ""
            raise DataError(f"images: the class folder {folder / name} holds no images{others}: add some, or remove it")
        names += sorted(inside)
        targets += [name] * len(inside)
    where = [str(folder / name) for name in names]
    return Listing(str(folder), names, targets, where, from_folders=True, left_out=left_out)


def _from_url(url: str) -> Listing:
    """By name only: opening other files would download them."""
    folder, names = remote_names(url, SUFFIXES)
    loose = [name for name in names if "/" not in name]
    if loose:
        raise DataError(f"images: {loose[0]} is in no class folder of {url}, and {len(loose) - 1} more beside it: move them")
    return Listing(folder, names, [name.split("/")[0] for name in names], [folder + name for name in names], from_folders=True)


def _images_below(folder: str, above: tuple[tuple[int, int], ...], left_out: Counter[str]) -> Iterator[str]:
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:  # a link to a parent folder
        return
    for entry in _entries(folder):
        if entry.is_dir():
            yield from _images_below(entry.path, (*above, here), left_out)
        elif _is_image(entry):
            yield entry.path
        else:
            left_out[os.path.splitext(entry.name)[1].lower() or "without an ending"] += 1


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _is_image(entry: os.DirEntry[str]) -> bool:
    """By name, so that a damaged image is noticed; by content if the name says nothing. Other files are not images."""
    if entry.name.lower().endswith(SUFFIXES):
        return True
    try:
        with open_regular(entry.path) as file:
            return image_kind(file.read(16)) is not None
    except OSError:
        return False


def _from_pair(paths: Any, labels: Any) -> Listing:
    names = [os.fspath(path) for path in paths]
    targets = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    if len(names) != len(targets):
        raise DataError(f"images: got {len(names)} paths and {len(targets)} labels; each path needs one")
    if not names:
        raise DataError("images: the list of paths is empty")
    return Listing("", names, targets, names)


def _from_list(path: Path) -> Listing:
    names, targets = read_list(path)
    if not names:
        raise DataError(f"images: the list {path} has no rows")
    folder = str(path.parent)
    where = [f"{path} row {row}: {os.path.join(folder, str(name))}" for row, name in enumerate(names, 1)]
    return Listing(folder, names, targets, where)
