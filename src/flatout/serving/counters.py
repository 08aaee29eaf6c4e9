"""Counts and times of all requests, in memory that all fronts share: each writes its own part, and any can add up all.

Times go into histograms with steps of 19%, so quantiles of every part of a request are known without keeping requests.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from flatout.serving.canary import tally as canary_tally

Array = np.ndarray[Any, Any]

MOST_FRONTS, MOST_MODELS = 64, 32  # model 0 is for requests about no model
PARTS = ("wire", "parse", "decode", "hook", "queue", "copy", "compute", "encode", "total")
CODES = ("answered", "refused", "late", "failed")
"""Status 2xx and 3xx; 4xx; 503; other 5xx."""

_STEPS = 4  # of a histogram between a time and twice that time
_BUCKETS = 25 * _STEPS  # from 1 us to 33 s
_ROWS = len(CODES)
_LAST_MS = _ROWS + 1
_SUMS = _LAST_MS + 1
_SHAPES = _SUMS + len(PARTS)
_FIELDS = _SHAPES + len(PARTS) * _BUCKETS
_ABOUT_FRONT = 6  # connections, requests in flight, us of CPU, alive, samples kept, samples dropped
_TALLIES = MOST_FRONTS * MOST_MODELS * _FIELDS
_ABOUT_ALL = MOST_FRONTS * _ABOUT_FRONT
_ARMS = MOST_FRONTS * 2 * canary_tally.FIELDS


class SharedCounters:
    """One block of memory; `descriptor` hands it to other processes."""

    def __init__(self, descriptor: int | None = None) -> None:
        size = 8 * (_TALLIES + _ABOUT_ALL + _ARMS)
        if descriptor is None:
            descriptor = os.memfd_create("flatout-counters")
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        words: Array = np.frombuffer(mmap.mmap(descriptor, size), np.int64)
        self._tallies = words[:_TALLIES].reshape(MOST_FRONTS, MOST_MODELS, _FIELDS)
        self._fronts = words[_TALLIES : _TALLIES + _ABOUT_ALL].reshape(MOST_FRONTS, _ABOUT_FRONT)
        self._arms = words[_TALLIES + _ABOUT_ALL :].reshape(MOST_FRONTS, 2, canary_tally.FIELDS)

    def tally(self, front: int, model: int) -> FrontTally:
        return FrontTally(self._tallies[front, model])

    def about(self, front: int) -> AboutFront:
        return AboutFront(self._fronts[front])

    def arms(self, front: int) -> Array:
        """Of the stable version and of the canary, as this front has counted them."""
        own: Array = self._arms[front]
        return own

    def arms_summed(self) -> Array:
        return np.asarray(self._arms.sum(0))

    def connections(self) -> list[int]:
        """Of every front that takes connections."""
        return [int(row[0]) for row in self._fronts if row[3]]

    def cpu_s(self) -> float:
        """Of all fronts; of one that was replaced, only what its successor used."""
        return float(self._fronts[:, 2].sum()) / 1e6

    def sampled(self) -> tuple[int, int]:
        """Requests that are in files, and samples that were dropped."""
        kept, dropped = self._fronts[:, 4:6].sum(0).tolist()
        return kept, dropped

    def summed(self, model: int) -> SummedTally:
        return SummedTally(self._tallies[:, model].sum(0))

    def latencies(self) -> SummedTally:
        """Of all requests to models."""
        return SummedTally(self._tallies[:, 1:].sum((0, 1)))


class AboutFront:
    """What one front says about itself."""

    def __init__(self, words: Array) -> None:
        self._words = words

    def opened(self, connections: int) -> None:
        self._words[0] = connections

    def say(self, in_flight: int, cpu_s: float) -> None:
        self._words[1:3] = in_flight, int(cpu_s * 1e6)

    def sampled(self, kept: int, dropped: int) -> None:
        self._words[4:6] = kept, dropped

    def take_connections(self, take: bool) -> None:
        self._words[3] = take
        if not take:
            self._words[0] = 0


class FrontTally:
    """Written by one front, for one model."""

    def __init__(self, words: Array) -> None:
        self._words = words

    def add(self, status_codes: Sequence[int], rows: int, spent_s: Array | Sequence[Sequence[float]]) -> None:
        """Many requests at once: one by one would take longer than to answer them. `spent_s` has the seconds of each of
        PARTS for each request; `rows` is their sum."""
        words, codes = self._words, np.array(status_codes)
        kinds = (codes >= 400).astype(np.int64) + (codes >= 500) + ((codes >= 500) & (codes != 503))
        words[: len(CODES)] += np.bincount(kinds, minlength=len(CODES))
        words[_ROWS] += rows
        words[_LAST_MS] = int(time.time() * 1000)
        spent = np.array(spent_s, np.float64)
        words[_SUMS:_SHAPES] += (spent.sum(0) * 1e9).astype(np.int64)
        some = spent > 0
        steps = (_STEPS * np.log2(np.maximum(spent[some] * 1e6, 1.0))).astype(np.int64)
        places = np.nonzero(some)[1] * _BUCKETS + np.minimum(steps, _BUCKETS - 1)
        words[_SHAPES:] += np.bincount(places, minlength=len(PARTS) * _BUCKETS)


class SummedTally:
    """The sum over fronts. Times in seconds."""

    def __init__(self, words: Array) -> None:
        self._words = words

    def count(self, code: str) -> int:
        return int(self._words[CODES.index(code)])

    @property
    def requests(self) -> int:
        return int(self._words[: len(CODES)].sum())

    @property
    def rows(self) -> int:
        return int(self._words[_ROWS])

    def sum_s(self, part: str) -> float:
        return float(self._words[_SUMS + PARTS.index(part)]) / 1e9

    def histogram(self, part: str) -> tuple[Array, Array]:
        """The upper end of each step in seconds, and how many requests lie in it."""
        first = _SHAPES + PARTS.index(part) * _BUCKETS
        return 1e-6 * 2 ** (np.arange(1, _BUCKETS + 1) / _STEPS), self._words[first : first + _BUCKETS]

    def quantile_s(self, part: str, share: float, before: SummedTally | None = None) -> float | None:
        """The time within which this share of the requests stayed; only those since `before`, if given. None without any.

        A request that had no such part counts as 0.
        """
        ends, counts = self.histogram(part)
        total = self.requests
        if before is not None:
            counts, total = counts - before.histogram(part)[1], total - before.requests
        if total <= 0:
            return None
        without = max(0, total - int(counts.sum()))
        wanted = share * total - without
        if wanted <= 0:
            return 0.0
        reached = np.cumsum(counts)
        place = int(np.searchsorted(reached, wanted))
        if place >= len(ends):
            return float(ends[-1])
        low = ends[place] / 2 ** (1 / _STEPS)
        inside = (wanted - (reached[place] - counts[place])) / max(1, counts[place])
        return float(low * (ends[place] / low) ** inside)

    @property
    def last_ms(self) -> int:
        return int(self._words[_LAST_MS])
