"""Measurements that replay: what a bench answered, kept under what was asked. A cache between runs, and test data."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from flatout.base.files import write_bytes
from flatout.base.trust import private_cache
from flatout.engine.setting_values import SettingScope
from flatout.engine.settings import Settings, settings_of
from flatout.plan.trials.reports import CRASHED, HUNG, INTERRUPTED, NOT_RECORDED, Ask, Held, Losses, Report

_FORMAT = 1
_PASSING = (CRASHED, HUNG, INTERRUPTED)  # of that moment, as a kill from outside: asked again, it may go otherwise


class Recording:
    """`live` answers what is not recorded yet, and is recorded; without one, that is a failed trial."""

    def __init__(self, written: Mapping[str, Any] | None = None, live: Any = None) -> None:
        self._reports: dict[str, dict[str, Any]] = dict((written or {}).get("reports", {}))
        self._losses: dict[str, dict[str, Any]] = dict((written or {}).get("losses", {}))
        self._held: dict[str, dict[str, Any]] = dict((written or {}).get("held", {}))
        self._live = live
        self.asked_live = 0
        self.replayed = 0  # of what was written before
        self._written = frozenset((*self._reports, *self._losses))
        self._replayed_s = 0.0

    def clock(self) -> float:
        """On which a replay takes as long as its measurement did: a search that ended for lack of time ends there again."""
        return time.monotonic() + self._replayed_s

    def _count(self, key: str, took_s: float) -> None:
        self.replayed += key in self._written
        self._replayed_s += took_s

    def attempt(self, ask: Ask) -> Report:
        alone = shown(ask.settings)
        beside = f"{alone} beside {shown(ask.against or {})}"
        known = self._reports.get(beside) or self._reports.get(alone)
        if known is not None:
            self._count(beside if beside in self._reports else alone, known["took_s"])
            return Report.from_dict(known)
        if self._live is None:
            return Report(dict(ask.settings), NOT_RECORDED)
        self.asked_live += 1
        report: Report = self._live.attempt(ask)
        if report.failure not in _PASSING:
            self._reports[beside if report.against_s else alone] = report.to_dict()
        return report

    def losses(self, settings: Mapping[str, Any], steps: int, seed: int, after: int = 0) -> Losses:
        key = f"{shown(settings)}; {steps} steps, seed {seed}" + (f", after {after}" if after else "")
        if key not in self._losses:
            if self._live is None:
                return Losses(dict(settings), (), NOT_RECORDED)
            self.asked_live += 1
            found: Losses = self._live.losses(settings, steps, seed, after)
            if found.failure in _PASSING:
                return found
            self._losses[key] = asdict(found)
        else:
            self._count(key, self._losses[key]["took_s"])
        return Losses.from_dict(self._losses[key])

    def held(self, settings: Mapping[str, Any], rows: int) -> Held:
        key = f"{shown(settings)}; {rows} rows"
        if key not in self._held:
            if self._live is None:
                return Held(rows, 0, 0, NOT_RECORDED)
            self.asked_live += 1
            found: Held = self._live.held(settings, rows)
            if found.failure in _PASSING:
                return found
            self._held[key] = asdict(found)
        return Held(**self._held[key])

    def to_dict(self) -> dict[str, Any]:
        return {"reports": self._reports, "losses": self._losses, "held": self._held}


class Trove:
    """Recordings of earlier runs in a folder, one file a job and device. Those of other versions are not used."""

    def __init__(self, folder: Path | None, key: str, versions: Mapping[str, str]) -> None:
        self._path = None if folder is None else private_cache(folder) / "trials" / f"{key}.json"
        self._versions = dict(versions)
        self.note = ""
        self.at = ""  # when what was read was measured

    @cached_property
    def kept(self) -> dict[str, Any] | None:
        """The recording that is there, read when it is first asked for."""
        if self._path is None or not self._path.is_file():
            return None
        try:
            kept = json.loads(self._path.read_text())
            if kept["format"] != _FORMAT or kept["versions"] != self._versions:
                was = ", ".join(
                    f"{name} {value}" for name, value in kept["versions"].items() if self._versions.get(name) != value
                )
                self.note = f"measurements of earlier runs are not used: they were made with {was or 'another format'}"
                return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.note = f"measurements of earlier runs can't be read ({type(error).__name__}) and are made again"
            return None
        found: dict[str, Any] = kept["recording"]
        self.at = str(kept.get("at", "an earlier run"))
        return found

    def write(self, recording: Recording) -> None:
        if self._path is not None:
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            document = {"format": _FORMAT, "versions": self._versions, "at": at, "recording": recording.to_dict()}
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(self._path, json.dumps(document).encode())
            except OSError as error:
                self.note = f"measurements could not be kept for later runs: {error.strerror or error}"


def shown(settings: Mapping[str, Any]) -> str:
    """Settings in words: those that an arm can tell apart, where they are not the plain ones."""
    plain, around = vars(Settings()), settings_of(SettingScope.AROUND_THE_STEP)
    told = {name: value for name, value in settings.items() if name not in around and plain.get(name) != value}
    return ", ".join(f"{name}={value}" for name, value in sorted(told.items())) or "plain"
