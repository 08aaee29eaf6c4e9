"""Records trials so that they can be replayed: each answer is stored by its question. A cache between runs, and test data."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from flatout.base.files import write_bytes
from flatout.base.trust import private_cache

NOT_RECORDED = "not recorded"
_FORMAT = 1

Answer = dict[str, Any]


class Answers:
    """Answers of several kinds, each stored under a text key. An answer is plain data with a `failure` (empty: none) and, if it
    measured times, a `took_s`.

    Without a live source, an answer that is not recorded is unknown. `passing`: temporary failures, such as a kill from
    outside; they are not stored, because the next try may succeed.
    """

    def __init__(self, kinds: Collection[str], written: Mapping[str, Any] | None, passing: Collection[str]) -> None:
        self._kept: dict[str, dict[str, Answer]] = {kind: dict((written or {}).get(kind, {})) for kind in kinds}
        self._passing = passing
        self._written = frozenset(key for kept in self._kept.values() for key in kept)
        self.replayed = 0  # answers read from the recording
        self._replayed_s = 0.0
        self.asked_live = 0

    def clock(self) -> float:
        """A clock on which a replayed trial takes as long as its measurement did: a replayed search ends at the same point."""
        return time.monotonic() + self._replayed_s

    def known(self, kind: str, *keys: str) -> Answer | None:
        """The recorded answer under the first of these keys that has one."""
        for key in keys:
            if (found := self._kept[kind].get(key)) is not None:
                self.replayed += key in self._written and "took_s" in found
                self._replayed_s += found.get("took_s", 0.0)
                return found
        return None

    def asked(self, kind: str, answer: Answer, key: str) -> None:
        """Store an answer from a live source."""
        self.asked_live += 1
        if answer["failure"] not in self._passing:
            self._kept[kind][key] = answer

    def to_dict(self) -> dict[str, Any]:
        return self._kept


class Trove:
    """Recordings of earlier runs in a folder, one file per job and device. Recordings of other versions are not used."""

    def __init__(self, folder: Path | None, key: str, versions: Mapping[str, str]) -> None:
        self._path = None if folder is None else private_cache(folder) / "trials" / f"{key}.json"
        self._versions = dict(versions)
        self.note = ""
        self.at = ""  # when the recording was made

    @cached_property
    def kept(self) -> dict[str, Any] | None:
        """The stored recording, read on first use."""
        if self._path is None or not self._path.is_file():
            return None
        try:
            kept = json.loads(self._path.read_text())
            if kept["format"] != _FORMAT or kept["versions"] != self._versions:
                was = ", ".join(
                    f"{name} {value}" for name, value in kept["versions"].items() if self._versions.get(name) != value
                )
                self.note = f"measurements of earlier runs are not used: they were made with {was or 'another file format'}"
                return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.note = f"measurements of earlier runs can't be read ({type(error).__name__}); measuring again"
            return None
        found: dict[str, Any] = kept["recording"]
        self.at = str(kept.get("at", "an earlier run"))
        return found

    def write(self, recording: Mapping[str, Any]) -> None:
        if self._path is not None:
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            document = {"format": _FORMAT, "versions": self._versions, "at": at, "recording": recording}
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(self._path, json.dumps(document).encode())
            except OSError as error:
                self.note = f"measurements could not be saved for later runs: {error.strerror or error}"
