"""What is written down of a result: which files it has, what it took to make them, and whatever the stage recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from flatout.base.sealed import opened, sealed

_FORMAT = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")


@dataclass(frozen=True)
class StoredFile:
    """`path` is below the output; empty if the output is this file."""

    path: str
    digest: str
    bytes: int
    executable: bool = False


@dataclass(frozen=True)
class StoredOutput:
    """A file, or a folder with its files and its empty folders."""

    name: str
    is_folder: bool
    files: tuple[StoredFile, ...]
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredResult:
    """`unlike`: outputs that differ from those of an earlier run with the same key."""

    key: str
    outputs: tuple[StoredOutput, ...]
    record: Mapping[str, Any]
    seconds: float
    unlike: tuple[str, ...] = ()

    @property
    def digests(self) -> dict[str, int]:
        """Bytes by digest."""
        return {file.digest: file.bytes for output in self.outputs for file in output.files}

    def to_line(self) -> bytes:
        return sealed({"format": _FORMAT, **asdict(self)}) + b"\n"


def checked_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"a key has letters, digits, '.', '_' and '-', and at most 128 of them; this is {key[:200]!r}")
    return key


def result_of(line: bytes, key: str) -> StoredResult:
    """ValueError if the line is damaged, is of another result, or names files outside of its outputs."""
    fields = opened(line.removesuffix(b"\n"))
    try:
        if fields["format"] != _FORMAT or fields["key"] != key or "crc" in fields:
            raise ValueError("is not of this result")
        outputs = tuple(
            StoredOutput(
                _inside(output["name"]),
                bool(output["is_folder"]),
                tuple(_file(file, bool(output["is_folder"])) for file in output["files"]),
                tuple(_inside(folder) for folder in output["folders"]),
            )
            for output in fields["outputs"]
        )
        unlike = tuple(str(name) for name in fields["unlike"])
        return StoredResult(key, outputs, dict(fields["record"]), float(fields["seconds"]), unlike)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("does not say what a result says") from error


def _file(fields: Mapping[str, Any], in_folder: bool) -> StoredFile:
    digest = str(fields["digest"])
    if not _DIGEST.fullmatch(digest):
        raise ValueError("has a digest that is none")
    path = _inside(fields["path"]) if in_folder else ""
    return StoredFile(path, digest, int(fields["bytes"]), bool(fields["executable"]))


def _inside(path: object) -> str:
    """A relative path that stays where it begins."""
    parts = PurePosixPath(str(path)).parts
    if not parts or str(path).startswith("/") or ".." in parts or "\0" in str(path):
        raise ValueError(f"names {str(path)[:200]!r}, which is not inside of the folder")
    return str(path)
