"""Has a distribution moved by more than is allowed? An e-process over periods, for shares of bins against known ones.

A period is a whole cycle of the traffic, such as a day: within it, rows may come from any mixture of hours. For n
independent rows with the average share q the likelihood ratio of a bin, a fixed share outside against the edge of the null, has
a mean of at most (1 + slope * (q - edge)) ** n, whatever each row's own share (by the inequality of means), so it is at most 1
where the average is inside. Products over periods and averages over bins, sides and shares outside are valid; so is an average
over all periods at which a change may have begun (weights 1 / (j * (j + 1))), with which a change after a long time is still
found soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flatout.measure.anytime.two_arms import LEAST, ODDS, Array

_MOST_PERIODS = 400  # a change began at one of the last so many


class DriftEvidence:
    """`shares` [events]: of the rows in training; `allowed` [events]: how far each may move. Both may have any order."""

    def __init__(self, shares: Array, allowed: Array) -> None:
        edges = np.stack([np.minimum(shares + allowed, 1 - LEAST), np.maximum(shares - allowed, LEAST)], axis=-1)
        away = np.array([1.0, -1.0])[:, None] * np.asarray(ODDS)
        outside = np.clip(1 / (1 + ((1 - edges) / edges)[..., None] * np.exp(-away)), LEAST, 1 - LEAST)
        possible = np.stack([shares + allowed < 1 - LEAST, shares - allowed > LEAST], axis=-1)[..., None]
        self._hit = np.where(possible, np.log(outside / edges[..., None]), 0.0)
        self._miss = np.where(possible, np.log((1 - outside) / (1 - edges[..., None])), 0.0)
        self._periods: list[tuple[Array, Array]] = []
        self._began = 0  # periods that are no longer kept

    def period(self, n: Array, hits: Array) -> None:
        """The counts of one whole period: rows and hits of every event."""
        self._periods.append((np.asarray(n, np.float64), np.asarray(hits, np.float64)))
        if len(self._periods) > _MOST_PERIODS:
            del self._periods[0]
            self._began += 1

    def log_e(self) -> Array:
        """Of every event: the mean over both sides, all shares outside, and all beginnings of a change."""
        found, weights = [], []
        n, hits = np.zeros(self._hit.shape[0]), np.zeros(self._hit.shape[0])
        for place in range(len(self._periods) - 1, -1, -1):
            n, hits = n + self._periods[place][0], hits + self._periods[place][1]
            begin = self._began + place + 1
            found.append(hits[:, None, None] * self._hit + (n - hits)[:, None, None] * self._miss)
            weights.append(1 / (begin * (begin + 1)))
        if not found:
            return np.zeros(self._hit.shape[0])
        last = self._began + len(self._periods)
        stacked = np.concatenate([np.stack(found), np.zeros((1, *self._hit.shape))])  # a change that is still to come
        logs = stacked + np.log(np.array([*weights, 1 / (last + 1)]))[:, None, None, None]
        top = logs.max(0)
        summed = top + np.log(np.exp(logs - top).sum(0))
        flat = summed.reshape(len(summed), -1)
        highest = flat.max(-1)
        return np.asarray(highest + np.log(np.exp(flat - highest[:, None]).mean(-1)))

    def to_json(self) -> dict[str, Any]:
        return {"began": self._began, "periods": [[n.tolist(), hits.tolist()] for n, hits in self._periods]}

    def restore(self, written: Mapping[str, Any]) -> None:
        periods = [(np.array(n, np.float64), np.array(hits, np.float64)) for n, hits in written["periods"]]
        if any(one.shape != self._hit.shape[:1] for pair in periods for one in pair):
            raise ValueError("it is about other columns")
        self._periods, self._began = periods, int(written["began"])
