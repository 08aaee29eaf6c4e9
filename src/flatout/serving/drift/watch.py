"""Drift of one model: counts of whole periods against the training data, as evidence that stays valid from day to day."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flatout.measure.anytime.drifting import DriftEvidence
from flatout.measure.anytime.two_arms import log_mean
from flatout.packaging.statistics import ColumnStatistics, RowStatistics
from flatout.serving.asking import Array

ALARM_ERROR = 0.01  # probability that rows which are within what is allowed ever cause the first alarm
_FEWEST_ROWS = 100  # in a period; with fewer it goes on into the next
_SAVED_S = 5.0
_SHOWN = 3  # columns in a sentence


@dataclass(frozen=True)
class DriftOptions:
    """`period_s` is one cycle of the traffic. `allowed` is how far a share may move."""

    period_s: float
    folder: Path
    allowed: float = 0.1


class DriftJudge:
    """Counts of whole periods in, and columns that moved out; no clock."""

    def __init__(self, statistics: RowStatistics, allowed: float) -> None:
        self.statistics = statistics
        events = [_events(column, np.array(column.shares)) for column in statistics.columns]
        self._owner = np.repeat(np.arange(len(events)), [len(one) for one in events])
        self._shares = np.concatenate(events) if events else np.zeros(0)
        margins = [_margins(column, allowed) for column in statistics.columns]
        noise = 3 * np.sqrt(self._shares * (1 - self._shares) / max(1, statistics.rows))
        self._allowed = (np.concatenate(margins) if margins else np.zeros(0)) + noise
        self._evidence = DriftEvidence(self._shares, self._allowed)
        self.effects: dict[str, float] = {}  # of each column in the last period: the largest move of a share

    def period(self, counts: Sequence[Array]) -> list[str]:
        """The columns that have moved, the surest first; none if there is no alarm. After an alarm the evidence begins anew."""
        hits = np.concatenate([_events(column, one) for column, one in zip(self.statistics.columns, counts, strict=True)])
        totals = np.array([one.sum() for one in counts])
        moved = np.abs(hits / np.maximum(1, totals[self._owner]) - self._shares)
        columns = self.statistics.columns
        self.effects = {one.name: float(moved[self._owner == place].max()) for place, one in enumerate(columns)}
        self._evidence.period(totals[self._owner], hits)
        by_column = self._by_column()
        if self.log_e() < math.log(1 / ALARM_ERROR):
            return []
        sure = by_column >= math.log(1 / ALARM_ERROR)
        sure[int(by_column.argmax())] = True
        self._evidence = DriftEvidence(self._shares, self._allowed)
        return [columns[place].name for place in np.argsort(-by_column) if sure[place]]

    def log_e(self) -> float:
        by_column = self._by_column()
        return float(log_mean(by_column, np.ones(len(by_column)))) if len(by_column) else 0.0

    def _by_column(self) -> Array:
        log_e = self._evidence.log_e()
        found = [log_e[self._owner == place] for place in range(len(self.statistics.columns))]
        return np.array([float(log_mean(one, np.ones(len(one)))) for one in found])

    def to_json(self) -> dict[str, Any]:
        return {"evidence": self._evidence.to_json(), "effects": self.effects}

    def restore(self, written: Mapping[str, Any]) -> None:
        self._evidence.restore(written["evidence"])
        self.effects = {str(name): float(value) for name, value in written["effects"].items()}


class DriftWatch:
    """With a clock and a state on disk. `identity` is the package's hash; another package begins anew."""

    def __init__(
        self, model: str, identity: str, statistics: RowStatistics, options: DriftOptions, say: Callable[[str], None]
    ) -> None:
        self.model, self.identity, self._options, self._say = model, identity, options, say
        self._judge = DriftJudge(statistics, options.allowed)
        self._counts = self._empty()
        self._rows, self._periods, self._alarms = 0, 0, 0
        self._moved: list[str] = []
        self._alarmed_s = 0.0  # when the last alarm was, in seconds since 1970
        self._began_s, self._saved_s = time.time(), time.monotonic()
        self._path = options.folder / f"drift-{model}.json"
        self._load()

    def _empty(self) -> list[Array]:
        return [np.zeros(len(column.shares), np.int64) for column in self._judge.statistics.columns]

    def heard(self, rows: int, counts: Sequence[Sequence[int]]) -> None:
        self._counts = [before + np.array(now) for before, now in zip(self._counts, counts, strict=True)]
        self._rows += rows

    def look(self) -> None:
        """Ends the period when it is over."""
        now_s = time.time()
        if now_s - self._began_s >= self._options.period_s and self._rows >= _FEWEST_ROWS:
            self._moved = self._judge.period(self._counts)
            self._counts, self._rows, self._began_s = self._empty(), 0, now_s
            self._periods += 1
            if self._moved:
                self._alarms += 1
                self._alarmed_s = now_s
                self._say(f"drift of {self.model}: {self._sentence()}")
            self._save()
        elif time.monotonic() - self._saved_s > _SAVED_S:
            self._save()

    def _sentence(self) -> str:
        effects = self._judge.effects
        shown = [f"{name} by {100 * effects[name]:.0f} points" for name in self._moved[:_SHOWN]]
        more = len(self._moved) - len(shown)
        rest = f" and {more} more columns" if more else ""
        return f"served rows are not distributed as the training data; shares have moved in {', '.join(shown)}{rest}"

    def summary(self) -> dict[str, Any]:
        return {
            "periods": self._periods,
            "alarms": self._alarms,
            "moved": self._moved,
            "effects": self._judge.effects,
            "evidence": math.exp(min(700.0, self._judge.log_e())),
            "rows": self._rows,
            "alarmed": self._alarmed_s,
        }

    def _save(self) -> None:
        self._saved_s = time.monotonic()
        written = {
            "package": self.identity,
            "allowed": self._options.allowed,
            "began": self._began_s,
            "rows": self._rows,
            "periods": self._periods,
            "alarms": self._alarms,
            "moved": self._moved,
            "alarmed": self._alarmed_s,  # pipelines read it
            "counts": [one.tolist() for one in self._counts],
            "judge": self._judge.to_json(),
        }
        aside = self._path.with_suffix(".unfinished")
        aside.write_text(json.dumps(written))
        aside.replace(self._path)

    def _load(self) -> None:
        try:
            written = json.loads(self._path.read_text())
            if written["package"] != self.identity or written["allowed"] != self._options.allowed:
                return
            counts = [np.array(one, np.int64) for one in written["counts"]]
            if [one.shape for one in counts] != [one.shape for one in self._counts]:
                return
            self._judge.restore(written["judge"])
            self._counts, self._rows, self._began_s = counts, int(written["rows"]), float(written["began"])
            self._periods, self._alarms, self._moved = written["periods"], written["alarms"], list(written["moved"])
            self._alarmed_s = float(written["alarmed"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._say(f"{self._path} is no state of a drift watch ({error}); it begins anew")


def _events(column: ColumnStatistics, bins: Array) -> Array:
    """Shares, or counts, of what is tested: all rows up to each cut, and the missing ones; or those of each value."""
    if not column.is_ordered:
        return bins
    return np.concatenate([np.cumsum(bins[:-1])[:-1], bins[-1:]])


def _margins(column: ColumnStatistics, allowed: float) -> Array:
    """What is missing, or was not seen in training, may move half as far."""
    margins = np.full(len(_events(column, np.array(column.shares))), allowed)
    margins[-1] = allowed / 2
    return margins
