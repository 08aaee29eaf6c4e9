"""Measured ceilings stored between runs: one JSON file per fingerprint and device, written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flatout.base.trust import private_cache
from flatout.machine.ceilings import Ceilings
from flatout.machine.nvml import GpuFacts

_FORMAT = 3
# these values drop when the GPU is idle, so the values read under load are stored with the ceilings
_RESTING = ("pcie_generation", "pcie_width", "clock_mhz")


@dataclass(frozen=True)
class CachedMeasurements:
    ceilings: Ceilings
    quick: bool
    links: Mapping[str, Mapping[str, Any]]  # by GPU uuid

    def under_load(self, gpus: Iterable[GpuFacts]) -> tuple[GpuFacts, ...]:
        return tuple(replace(gpu, **self.links.get(gpu.uuid, {})) for gpu in gpus)


class CeilingsCache:
    """A cache that can't be used costs time, but never fails a run: `notes` says what went wrong."""

    def __init__(self, folder: Path | None) -> None:
        self.notes: list[str] = []
        self._folder = None if folder is None else private_cache(folder)

    def made_folder(self) -> Path | None:
        """The folder, created if needed; None if it can't be created."""
        if self._folder is None:
            return None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None  # save() reports it
        return self._folder

    def load(self, fingerprint: str, device: torch.device, quick: bool) -> CachedMeasurements | None:
        """A full measurement also serves a quick request, not the other way round."""
        if self._folder is None:
            return None
        entry = _entry(self._folder, fingerprint, device)
        try:
            written = json.loads(entry.read_text())
            if written["format"] != _FORMAT or (written["quick"] and not quick):
                return None
            links = {uuid: {name: link[name] for name in _RESTING} for uuid, link in written["links"].items()}
            return CachedMeasurements(Ceilings.from_dict(written["ceilings"]), bool(written["quick"]), links)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.notes.append(f"measured again: the cache file {entry} can't be read ({type(error).__name__}: {error})")
            return None

    def save(self, fingerprint: str, device: torch.device, quick: bool, ceilings: Ceilings, gpus: Iterable[GpuFacts]) -> None:
        if self._folder is None:
            return
        links = {gpu.uuid: {name: getattr(gpu, name) for name in _RESTING} for gpu in gpus}
        text = json.dumps({"format": _FORMAT, "quick": quick, "ceilings": ceilings.to_dict(), "links": links}, indent=1)
        entry = _entry(self._folder, fingerprint, device)
        aside = entry.with_name(f".{entry.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # write to a temporary file and rename, so that a concurrent reader sees the whole file or none
            aside.write_text(text)
            os.replace(aside, entry)
        except OSError as error:
            self.notes.append(f"not saved for next time: {self._folder} can't be written ({error.strerror})")
            with suppress(OSError):
                aside.unlink()


def _entry(folder: Path, fingerprint: str, device: torch.device) -> Path:
    return folder / f"ceilings-{fingerprint}-{str(device).replace(':', '')}.json"
