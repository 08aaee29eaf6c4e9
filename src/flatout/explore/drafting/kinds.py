"""Finds the kind of data in files: by their names, or by their content if the name says nothing."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.base.errors import UsageError
from flatout.data.decoding.headers import SUFFIXES as IMAGES
from flatout.data.decoding.headers import image_kind
from flatout.data.files.array_files import file_format
from flatout.data.files.places import PACKED_SUFFIXES, LocalFile, open_plain
from flatout.data.sources.tables.dialect import has_columns
from flatout.data.sources.tables.scan import FORMATS

KNOWN = (
    "a table (.csv, .tsv, .parquet, .arrow, .jsonl), a folder with a folder of images for each class, a list of images "
    "(.csv with path and label), text (.txt, .md, ...), tokens (.bin) or arrays (.npz, .npy, idx)"
)
_BY_NAME = {
    "table": tuple(suffix for suffix, kind in FORMATS.items() if kind != "jsonl" and suffix != ".txt"),
    "lines": tuple(suffix for suffix, kind in FORMATS.items() if kind == "jsonl"),
    "text": (".md", ".rst", ".text", ".py", ".tex", ".html"),
    "tokens": (".bin",),
    "image": IMAGES,
}
_HELD = re.compile(r"(?<![a-z])(test|testing|val|valid|validation|dev|eval|t10k|heldout|holdout)(?![a-z])")
_HEAD_BYTES, _HEAD_LINES = 64 << 10, 50
_MOST_FILES = 20_000  # the most files of a folder to look at


@dataclass(frozen=True)
class Given:
    """One path as typed, and its files."""

    typed: str
    kind: str
    files: tuple[Path, ...]

    @property
    def name(self) -> str:
        return self.typed if "://" in self.typed else Path(self.typed).name or self.typed


def look_at(typed: Sequence[str]) -> list[Given]:
    """UsageError if files are missing, empty, unknown or of different kinds."""
    found = [given for path in typed for given in _given(path)]
    kinds = Counter(given.kind for given in found)
    if len(kinds) > 1:
        first, other = found[0], next(given for given in found if given.kind != found[0].kind)
        raise UsageError(f"{first.typed} is {_a(first.kind)} and {other.typed} is {_a(other.kind)}: give files of one kind")
    return found


def split_by_name(found: Sequence[Given]) -> tuple[list[Given], list[Given]]:
    """Files to train on, and files to validate on: those called test, val and the like, if there are others."""
    held = [given for given in found if _HELD.search(given.name.lower())]
    rest = [given for given in found if given not in held]
    return (rest, held) if rest else (list(found), [])


def relative(typed: str, folder: Path) -> str:
    """The path as a recipe in `folder` has to write it. Absolute paths outside of it stay."""
    if "://" in typed:
        return typed
    path = Path(typed).expanduser()
    full, home = Path(os.path.abspath(path)), folder.resolve()
    if path.is_absolute() and not full.is_relative_to(home):
        return str(path)
    return os.path.relpath(full, home)


def _given(typed: str) -> list[Given]:
    if "://" in typed:
        return [Given(typed, _by_name(typed.lower()) or "table", ())]
    path = Path(typed).expanduser()
    if os.path.isdir(path):
        return _folder(typed, path)
    if os.path.isfile(path):
        return [Given(typed, _file_kind(path), (path,))]
    files = [Path(match) for match in sorted(glob.glob(str(path), recursive=True)) if os.path.isfile(match)]
    if not files:
        what = "matches no file" if glob.has_magic(typed) else "does not exist"
        raise UsageError(f"{typed} {what}: expected {KNOWN}")
    return _together(typed, _file_kind(files[0]), files)


def _folder(typed: str, folder: Path) -> list[Given]:
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        files += [Path(place) / name for name in sorted(names) if not name.startswith((".", "_"))]
        if len(files) > _MOST_FILES:
            break
    if not files:
        raise UsageError(f"the folder {typed} is empty: expected {KNOWN}")
    kinds = Counter(_by_name(file.name.lower()) or "" for file in files)
    kinds["text"] += kinds.pop("txt", 0)
    known = [(count, kind) for kind, count in kinds.items() if kind and count]
    if not known:
        raise UsageError(
            f"{typed}: {len(files)} files, and none of a kind that is known, such as {files[0].name}; expected {KNOWN}"
        )
    kind = max(known)[1]
    if kind == "image":
        return [Given(typed, "images", ())]
    mine = [file for file in files if (_by_name(file.name.lower()) or "").replace("txt", "text") == kind]
    if kind == "text":
        suffix = Counter(_unpacked(file.name.lower())[1] for file in mine).most_common(1)[0][0]
        mine = [file for file in mine if _unpacked(file.name.lower())[1] == suffix]
        ending = "".join(mine[0].suffixes[-2:]) if mine[0].suffix.lower() in PACKED_SUFFIXES else mine[0].suffix
        return _together(str(Path(typed) / "**" / f"*{ending}"), kind, mine)
    return _together(typed, kind, mine)


def _together(typed: str, kind: str, files: Sequence[Path]) -> list[Given]:
    """As one, unless their names say that some are not for training."""
    each = [Given(str(file), kind, (file,)) for file in files]
    return each if kind == "arrays" or split_by_name(each)[1] else [Given(typed, kind, tuple(files))]


def _file_kind(path: Path) -> str:
    name = path.name.lower()
    kind = _by_name(name)
    if path.stat().st_size == 0:
        raise UsageError(f"{path} is empty")
    if kind == "image":
        raise UsageError(f"{path} is one image: give the folder that has a folder of images for each class")
    if kind in (None, "txt"):
        return _by_content(path, kind)
    return kind


def _by_name(name: str) -> str | None:
    if file_format(Path(name)) is not None:
        return "arrays"
    plain, suffix = _unpacked(name)
    if suffix == ".txt":
        return "txt"
    return next((kind for kind, suffixes in _BY_NAME.items() if plain.endswith(suffixes)), None)


def _unpacked(name: str) -> tuple[str, str]:
    for packed in PACKED_SUFFIXES:
        name = name.removesuffix(packed)
    return name, Path(name).suffix


def _by_content(path: Path, kind: str | None) -> str:
    with open_plain(LocalFile(path)) as file:
        head = file.read(_HEAD_BYTES)
    if not head.strip():
        raise UsageError(f"{path} is empty")
    if image_kind(head) is not None:
        raise UsageError(f"{path} is one image: give the folder that has a folder of images for each class")
    if head.startswith((b"PAR1", b"ARROW1")):
        return "table"
    if b"\0" in head:
        raise UsageError(f"{path} is of no kind that is known; expected {KNOWN}")
    if kind is None and head.lstrip().startswith(b"{"):
        return "lines"
    return "table" if has_columns(head.decode("utf-8", "replace"), _HEAD_LINES) else "text"


def _a(kind: str) -> str:
    words = {"lines": "JSON lines", "tokens": "tokens", "arrays": "arrays", "text": "text", "images": "a folder of images"}
    return words.get(kind, f"a {kind}")
