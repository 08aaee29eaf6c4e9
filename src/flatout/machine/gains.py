"""How much an optimisation gains on this machine for a given model: measured in a second, then stored with the ceilings.

A gain comes from the cache, or is measured if there is time, or is the usual gain measured on other machines. `Gain.words`
says which.
"""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from flatout.machine.ceilings import Ceilings
from flatout.machine.hand_over import USUAL_HAND_OVER_S, hand_over_key, hand_over_seconds
from flatout.machine.operators import has_room
from flatout.machine.optimisations import Optimisation
from flatout.machine.rates import Unavailable
from flatout.machine.turns import time_in_turns

ONE_GAIN_S = 0.7  # for measuring one gain
_BEARABLE_S = ONE_GAIN_S / 15  # per call: each is called nine times
_AGREES, _HAND_OVERS_AGREE = 1.2, 1.5  # largest ratio of two halves of the repeats; waking a worker varies more
Way = Callable[[], object]


class NotNow(Exception):
    """Too little memory, or too much other load. It may work another time."""


@dataclass(frozen=True)
class Pair:
    """The same work without and with an optimisation, built when it is measured. `weight`: how often a step does it."""

    needed_bytes: float
    weight: float
    ready: Callable[[torch.device, torch.Generator], tuple[Way, Way]]


@dataclass(frozen=True)
class GainComparison:
    """`key` identifies the work, also across processes. If time is short, only the first `pairs` are timed."""

    key: str
    pairs: Sequence[Pair]
    with_host: bool = False  # on a device: include host time


@dataclass(frozen=True)
class Gain:
    """A speed-up factor."""

    factor: float
    measured: bool

    @property
    def words(self) -> str:
        return f"measured here: {self.factor:.3g}x" if self.measured else f"usually {self.factor:.3g}x (not measured here)"

    def of_step(self, share: float) -> float:
        """Speed-up of a step if only this `share` of it gets faster."""
        return 1 / (1 - share * (1 - 1 / self.factor))


def gain_key(optimisation: Optimisation, device: torch.device, *work: str) -> str:
    """`work`: text that identifies the work, in any order. On a CPU the number of threads is part of the key."""
    where = f"cpu {torch.get_num_threads()} threads" if device.type == "cpu" else device.type
    digest = hashlib.sha256("\n".join(sorted(set(work))).encode()).hexdigest()[:16]
    return f"{optimisation.name} on {where}: {digest}"


class Gains:
    """Known gains, and gains measured now within `limit_s` in total. Without a limit none is measured."""

    def __init__(
        self,
        known: Mapping[str, float | None] | None = None,
        limit_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._known = dict(known or {})
        self._left_s, self._clock = limit_s, clock
        self.new: dict[str, float | None] = {}  # measured now; None: can't be measured on this machine

    def expected(
        self, optimisation: Optimisation, device: torch.device, comparison: GainComparison | None, dtype: str = "float32"
    ) -> Gain | None:
        """None: unknown."""
        factor = None if comparison is None else self.measured(comparison, device)
        if factor is not None:
            return Gain(factor, measured=True)
        usual = optimisation.usual_gain(device.type, dtype)
        return None if usual is None else Gain(usual, measured=False)

    def measured(self, comparison: GainComparison, device: torch.device) -> float | None:
        return self._kept(comparison.key, lambda limit_s: _measured(comparison, device, limit_s, self._clock))

    def hand_over_s(self, size_bytes: float) -> float:
        """Seconds to receive a batch of this size that a worker has ready."""

        def measure(limit_s: float) -> float | None:
            try:
                taken_s = hand_over_seconds(size_bytes)
            except Unavailable:
                return None
            return _agreed(min(taken_s[::2]), min(taken_s[1::2]), _HAND_OVERS_AGREE)

        return self._kept(hand_over_key(size_bytes), measure) or USUAL_HAND_OVER_S

    def _kept(self, key: str, measure: Callable[[float], float | None]) -> float | None:
        """`measure` gets the seconds that it may take."""
        if key not in self._known and self._left_s > 0:
            began_s = self._clock()
            try:
                found = measure(min(self._left_s, ONE_GAIN_S))
            except NotNow:
                self._known[key] = None  # the next process tries again; within one process all findings use the same value
                return None
            finally:
                self._left_s -= self._clock() - began_s
            self._known[key] = self.new[key] = found
        return self._known.get(key)


def with_gains(ceilings: Ceilings, device: torch.device, comparisons: Iterable[GainComparison], limit_s: float) -> Ceilings:
    """Measure unknown gains until the time is over. Returns the same object if there are none."""
    gains = Gains(ceilings.gains, limit_s)
    for comparison in comparisons:
        gains.measured(comparison, device)
    return replace(ceilings, gains={**ceilings.gains, **gains.new}) if gains.new else ceilings


def _measured(comparison: GainComparison, device: torch.device, limit_s: float, clock: Callable[[], float]) -> float | None:
    began_s, halves = clock(), (_Half(), _Half())
    with _undisturbed(device):
        numbers = torch.Generator(device).manual_seed(0)
        for place, pair in enumerate(comparison.pairs):
            if place and clock() - began_s > limit_s:
                break
            if not has_room(pair.needed_bytes, device):
                raise NotNow
            try:
                ways = pair.ready(device, numbers)
                seconds = time_in_turns(ways, device, with_host=comparison.with_host, bearable_s=_BEARABLE_S)
            except torch.OutOfMemoryError as error:
                raise NotNow from error
            except Exception:  # libraries raise many kinds of errors for unsupported work
                return None
            for start, half in enumerate(halves):
                half.add(pair.weight, seconds[0][start::2], seconds[1][start::2])
    return _agreed(halves[0].factor, halves[1].factor, _AGREES)


@dataclass
class _Half:
    """One half of the repeats. If the halves differ much, the machine was too busy to measure."""

    without_s: float = 0.0
    with_s: float = 0.0

    def add(self, weight: float, without_s: Sequence[float], with_s: Sequence[float]) -> None:
        """Uses the shortest times: other processes can only make them longer."""
        self.without_s += weight * min(without_s)
        self.with_s += weight * min(with_s)

    @property
    def factor(self) -> float:
        return self.without_s / self.with_s if self.with_s else 0.0


def _agreed(one: float, other: float, within: float) -> float | None:
    low, high = sorted((one, other))
    if not low:
        return None
    if high > within * low:
        raise NotNow
    return math.sqrt(low * high)


@contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Ignores torch modes of the caller and does not advance its random generators."""
    random = torch.random.fork_rng([device] if device.type == "cuda" else [])
    modes = torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False)
    with random, modes[0], modes[1], modes[2], warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    if device.type == "cuda":
        torch.cuda.empty_cache()
