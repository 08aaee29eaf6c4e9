"""Expected content of a folder's files: `manifest.jsonl`, one line per written file, with its SHA-256.

A line is added and synced before its file gets its name. So after a kill at any moment every file has content that is listed:
its present or its previous version. A file is intact if it matches any content ever written under its name. Checksums of large
files are computed while they are written. Folders from versions without manifests have none: their files are read unchecked.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flatout.base.errors import DamagedFile, MissingFile, StoreError
from flatout.base.files import sync_folder, write_bytes
from flatout.base.sealed import SealedLine, append, read_lines, sealed

NAME = "manifest.jsonl"
FORMAT = 1


def _bring_back(name: str) -> str:
    return "restore it from a copy"


@dataclass(frozen=True)
class Manifest:
    folder: Path
    remedy: Callable[[str], str] = _bring_back  # what to do about a damaged file with that name

    @property
    def path(self) -> Path:
        return self.folder / NAME

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def begin(self, **about: Any) -> None:
        """`about`: facts that must be known even if the folder's files are damaged."""
        self._append({"manifest": FORMAT, **about})

    def expect(self, name: str, sha256: str, size: int) -> None:
        """Announce that this file is about to get its name, with this content."""
        self._append(_entry(name, sha256, size))

    def write(self, name: str, content: bytes) -> None:
        digest = hashlib.sha256(content).hexdigest()
        write_bytes(self.folder / name, content, before_naming=lambda: self.expect(name, digest, len(content)))

    def rewrite(self, names: Iterable[str], *, planned: Mapping[str, bytes] | None = None, **about: Any) -> None:
        """Start a new manifest in one step: these files are accepted as they are now, and `planned` will be written."""
        lines = [sealed({"manifest": FORMAT, **about})]
        lines += [sealed(_entry(name, *_digest_of_file(self.folder / name))) for name in names]
        for name, content in (planned or {}).items():
            lines.append(sealed(_entry(name, hashlib.sha256(content).hexdigest(), len(content))))
        write_bytes(self.path, b"".join(line + b"\n" for line in lines))

    def read(self, name: str) -> bytes:
        """Raises MissingFile if the file does not exist, DamagedFile if its content changed."""
        try:
            content = (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFile(f"{self.folder} has no {name}") from error
        except OSError as error:
            raise StoreError(f"{self.folder / name} can't be read: {error.strerror}") from error
        self.check_content(name, hashlib.sha256(content).hexdigest(), len(content))
        return content

    def check(self, name: str) -> None:
        """Like `read` without returning the content, for files too large to load."""
        self._look().check(name, None, (self.folder / name).stat().st_size)
        if self.exists:
            digest, size = _digest_of_file(self.folder / name)
            self.check_content(name, digest, size)

    def check_content(self, name: str, sha256: str, size: int) -> None:
        self._look().check(name, sha256, size)

    def names(self) -> list[str]:
        """Names of all files ever written."""
        return list(dict.fromkeys(str(line["file"]) for line in self._look().entries))

    @property
    def about(self) -> dict[str, Any]:
        return self._look().about

    def damage(self) -> str | None:
        """Damage of the manifest file itself."""
        return self._look().damage

    def _look(self) -> _Seen:
        return _Seen(self, tuple(read_lines(self.path, unsealed=False)))

    def _append(self, line: dict[str, Any]) -> None:
        is_new = not self.exists
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not append(handle, sealed(line)):
                raise OSError(28, "No space left on device", str(self.path))
            os.fsync(handle)
        finally:
            os.close(handle)
        if is_new:
            sync_folder(self.folder)


@dataclass(frozen=True)
class _Seen:
    """A manifest's content when it was read."""

    manifest: Manifest
    lines: tuple[SealedLine, ...]

    @cached_property
    def entries(self) -> list[dict[str, Any]]:
        return [line.fields for line in self.lines if {"file", "sha256", "bytes"} <= line.fields.keys()]

    @cached_property
    def about(self) -> dict[str, Any]:
        found = [line.fields for line in self.lines if "manifest" in line.fields]
        if found and found[0]["manifest"] != FORMAT:
            raise StoreError(
                f"{self.manifest.path} has format {found[0]['manifest']!r}, this flatout reads format {FORMAT}: use the "
                "flatout version that wrote it"
            )
        return found[0] if found else {}

    @cached_property
    def damage(self) -> str | None:
        bad = next((line for line in self.lines if line.damage), None)
        return None if bad is None else f"line {bad.number} of {self.manifest.path} {bad.damage}"

    def check(self, name: str, sha256: str | None, size: int) -> None:
        if not self.manifest.exists:
            return
        path, remedy = self.manifest.folder / name, self.manifest.remedy(name)
        known = [entry for entry in self.entries if entry["file"] == name]
        if any(entry["bytes"] == size and sha256 in (entry["sha256"], None) for entry in known):
            return
        if self.damage is not None:
            raise DamagedFile(f"{path} can't be checked, because {self.damage}; {remedy}")
        if not known:
            raise DamagedFile(f"{path} is not listed in {NAME}, so flatout did not write it; {remedy}")
        same_size = any(e["bytes"] == size for e in known)
        what = "does not match its checksum" if same_size else f"has {size} bytes instead of {known[-1]['bytes']}"
        raise DamagedFile(f"{path} is damaged: it {what}; {remedy}")


def _entry(name: str, sha256: str, size: int) -> dict[str, Any]:
    return {"file": name, "bytes": size, "sha256": sha256}


def _digest_of_file(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest, file.tell()
