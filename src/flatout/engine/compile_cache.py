"""Compiled code in the run's folder: a resumed run loads it, also on another machine of the same kind.

One file: a line of JSON that says what it was made for, then torch's artifacts. They contain pickles and code, so loading them
executes them. Therefore they are read only from a regular file that this user owns and nobody else can write to, and only if
their checksum is right. A file that is damaged, of another owner or made for something else is not used, and that is reported.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
from pathlib import Path

import torch

from flatout.base.files import write_bytes
from flatout.engine.settings import Settings
from flatout.machine.device import device_name

NAME = "compile_cache.bin"


def made_for(settings: Settings) -> dict[str, str]:
    """If any of these differs, torch would not find anything in the file."""
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": device_name(torch.device(settings.device)),
        "compile": settings.compile,
        "precision": settings.precision,
    }


class CompiledFiles:
    def __init__(self, folder: Path, key: dict[str, str]) -> None:
        self.loaded = False
        self._path = folder / NAME
        self._key = key

    def save(self) -> str | None:
        """Saves everything that this process has compiled. Returns why it could not, or None."""
        made = torch.compiler.save_cache_artifacts()
        if made is None:
            return "torch has nothing of it in its caches"
        about = {**self._key, "sha256": hashlib.sha256(made[0]).hexdigest()}
        try:
            write_bytes(self._path, json.dumps(about).encode() + b"\n" + made[0])
            self._path.chmod(0o600)
        except OSError as error:
            return f"{self._path.name} can't be written: {error.strerror}"
        return None

    def load(self) -> str | None:
        """Loads the file into torch's caches. Returns why it could not be used, or None."""
        try:
            content = _read_own(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{self._path.name} can't be read: {error.strerror}"
        if content is None:
            return f"{self._path.name} can be written by other users, and loading it would execute their code"
        line, _, artifacts = content.partition(b"\n")
        why = self._unfit(line, artifacts)
        if why is None:
            why = _into_torch(artifacts)
        self.loaded = why is None
        return None if why is None else f"{self._path.name} {why}"

    def _unfit(self, line: bytes, artifacts: bytes) -> str | None:
        try:
            about = dict(json.loads(line))
        except (ValueError, TypeError):
            return "is damaged"
        if about.pop("sha256", None) != hashlib.sha256(artifacts).hexdigest():
            return "is damaged"
        others = [f"{name} was {about.get(name)}, is {now}" for name, now in self._key.items() if about.get(name) != now]
        return f"was made for something else: {'; '.join(others)}" if others else None


def _read_own(path: Path) -> bytes | None:
    """None if other users could have written it. It is opened before the check, so that the checked file is the one read."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        own = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
        return file.read() if own else None


def _into_torch(artifacts: bytes) -> str | None:
    try:
        found = torch.compiler.load_cache_artifacts(artifacts)
    except Exception as error:  # torch can compile again, whatever is wrong with the file
        return f"can't be loaded: {type(error).__name__}: {error}"
    return "can't be loaded" if found is None else None
