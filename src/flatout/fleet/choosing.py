"""Which machine: time, price, energy and CO2 of a training on every machine of a price list.

The rate is that of the layout estimator (`plan/layouts`), for the fastest layout that fits. A measured rate of the same recipe
on a machine of one kind corrects all estimates by its ratio: what the estimator gets wrong about this model is wrong on the
others too. Rates of CPUs are not estimated: a measured one holds for machines with as many cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from flatout.base.errors import UsageError, did_you_mean
from flatout.fleet.interruptions import Interruptions, expected_seconds
from flatout.fleet.prices import CPU, MachineOffer, PriceList
from flatout.fleet.saving import WRITES_BYTES_PER_S
from flatout.plan.layouts.estimate import Cluster, TrainingLoad
from flatout.plan.layouts.kinds import KINDS
from flatout.plan.layouts.layout import ParallelLayout
from flatout.plan.layouts.search import find_layouts
from flatout.plan.layouts.shape import Shape

ERROR = 0.15  # of the time, median of the trainings in benchmarks/choose.py; 0.09 with a measured rate
_LEAST_SAVE_S = 1.0
_MOST_SLOWER = 100.0


@dataclass(frozen=True)
class TrainingAsked:
    """`units`: samples or tokens of the whole budget, as `shape.unit` says."""

    shape: Shape
    load: TrainingLoad
    units: float
    base: ParallelLayout = field(default_factory=ParallelLayout)

    @property
    def saved_bytes(self) -> float:
        return self.shape.parameters * (4.0 + self.load.optimizer_bytes)


@dataclass(frozen=True)
class MeasuredOn:
    """A rate of this recipe, measured on devices of one kind, or on so many cores. `watts`: of all of them, if metered."""

    kind: str
    devices: int
    rate: float
    words: str
    watts: float | None = None

    @classmethod
    def parse(cls, text: str) -> MeasuredOn:
        """ "h100:8=46000": units per second of all devices together."""
        where, equals, rate = text.partition("=")
        kind, _, count = where.strip().lower().partition(":")
        if not equals or not (count or "1").isdigit() or int(count or "1") < 1:
            raise UsageError(f"--measured must be KIND:DEVICES=RATE, such as h100:8=46000, got {text!r}")
        if kind not in (*KINDS, CPU):
            raise UsageError(f"--measured: unknown kind of device {kind!r}; {did_you_mean(kind, (*KINDS, CPU))}")
        try:
            found = float(rate.strip())
        except ValueError:
            found = math.nan
        if not 0 < found < math.inf:
            raise UsageError(
                f"--measured: the rate must be a number above 0, in samples or tokens per second, got {rate.strip()!r}"
            )
        return cls(kind, int(count or "1"), found, f"measured on {int(count or '1')} x {kind}")


@dataclass(frozen=True)
class TrainingOffer:
    """A machine with a number of devices, and what the training takes there. `problem`: why that is not known or impossible."""

    machine: MachineOffer
    devices: int
    spot: bool
    problem: str = ""
    layout: str = ""
    rate: float | None = None
    seconds: float | None = None
    price: float | None = None
    kwh: float | None = None
    co2_kg: float | None = None
    interruptions: float | None = None
    save_every_s: float | None = None

    @property
    def name(self) -> str:
        return f"{self.devices} x {self.machine.name}{' spot' if self.spot else ''}"


def calibration(asked: TrainingAsked, measured: MeasuredOn | None) -> float:
    """Measured over estimated rate; 1 where nothing was measured on a kind of device that is estimated."""
    if measured is None or measured.kind == CPU:
        return 1.0
    found = find_layouts(asked.shape, asked.load, Cluster.of(measured.kind), measured.devices, asked.base)
    if not found.fitting:
        raise UsageError(f"--measured: by the estimate this does not fit on {measured.devices} x {measured.kind}")
    return measured.rate / found.fitting[0].rate


def offers(asked: TrainingAsked, prices: PriceList, measured: MeasuredOn | None = None) -> list[TrainingOffer]:
    """Every machine, count and kind of price; those that can do it by price, then the others."""
    desk = _Desk(asked, prices.co2_kg_per_kwh, measured, calibration(asked, measured))
    found = [one for machine in prices.machines for one in desk.offers_of(machine)]
    return sorted(found, key=lambda one: (one.price is None, one.price or 0.0, one.seconds or 0.0))


@dataclass(frozen=True)
class _Desk:
    asked: TrainingAsked
    co2_kg_per_kwh: float | None
    measured: MeasuredOn | None
    factor: float

    def offers_of(self, machine: MachineOffer) -> Iterator[TrainingOffer]:
        for count in machine.counts:
            plain = TrainingOffer(machine, count, spot=machine.per_hour is None)
            rate, layout, per_node, problem = self._rate(machine, count)
            if rate is None:
                yield replace(plain, problem=problem)
                continue
            plain = replace(plain, layout=layout, rate=rate)
            if machine.per_hour is not None:
                yield self._priced(plain, machine.per_hour)
            if machine.spot_per_hour is not None:
                yield self._on_spot(replace(plain, spot=True), machine.spot_per_hour, -(-count // per_node))

    def _rate(self, machine: MachineOffer, count: int) -> tuple[float | None, str, int, str]:
        """The rate, the layout and the devices of a node; or why there is no rate."""
        if machine.kind == CPU:
            measured = self.measured
            if measured is None or (measured.kind, measured.devices) != (CPU, machine.cores):
                why = f"not known: rates of CPUs are measured, not estimated: --measured cpu:{machine.cores}=RATE"
                return None, "", 1, why
            if count > 1:
                return None, "", 1, "not known: several CPU machines are not estimated"
            return measured.rate, "", 1, ""
        cluster = Cluster.of(machine.kind, machine.inside, machine.between, machine.per_node)
        asked = self.asked
        found = find_layouts(asked.shape, asked.load, cluster, count, asked.base)
        if not found.fitting:
            too_large = [one for one in found.rejected if one.least is not None]
            why = min(too_large, key=lambda one: one.least.memory.used if one.least else 0.0).why if too_large else ""
            return None, "", 1, f"does not fit: {why or found.rejected[0].why}"
        return self.factor * found.fitting[0].rate, found.fitting[0].layout.mesh, cluster.network.per_node, ""

    def _priced(self, offer: TrainingOffer, per_hour: float, slower: float = 1.0) -> TrainingOffer:
        assert offer.rate is not None
        seconds = slower * self.asked.units / offer.rate
        hours = seconds / 3600 * offer.devices
        watts = self._watts(offer)
        kwh = None if watts is None else hours * watts / 1e3
        grid = None if kwh is None or self.co2_kg_per_kwh is None else kwh * self.co2_kg_per_kwh
        return replace(offer, seconds=seconds, price=hours * per_hour, kwh=kwh, co2_kg=grid)

    def _watts(self, offer: TrainingOffer) -> float | None:
        """Of one device: by the price list, else as measured on this kind."""
        if offer.machine.watts is not None:
            return offer.machine.watts
        measured = self.measured
        if measured is None or measured.watts is None or measured.kind != offer.machine.kind:
            return None
        return measured.watts / (1 if measured.kind == CPU else measured.devices)

    def _on_spot(self, offer: TrainingOffer, per_hour: float, nodes: int) -> TrainingOffer:
        machine = offer.machine
        if machine.lost_every_s is None:
            return replace(offer, problem="not known: how long a spot node lasts; set lost_every")
        save_s = machine.save_s or max(_LEAST_SAVE_S, self.asked.saved_bytes / (WRITES_BYTES_PER_S * nodes))
        lost = Interruptions(save_s, "", machine.lost_every_s, nodes)
        interval_s = lost.interval_s or save_s
        slower = expected_seconds(1.0, save_s, interval_s, lost.lost_every_s, machine.restart_s)
        if slower > _MOST_SLOWER:
            return replace(offer, problem="hardly advances: saves and restarts take as long as a spot node lasts")
        found = self._priced(offer, per_hour, slower)
        assert found.seconds is not None
        return replace(found, interruptions=found.seconds / lost.lost_every_s, save_every_s=interval_s)


def meeting(found: Sequence[TrainingOffer], deadline_s: float | None) -> tuple[TrainingOffer | None, TrainingOffer | None]:
    """The cheapest that ends within the deadline; and where none does, the nearest: the fastest of all."""
    possible = [one for one in found if one.seconds is not None and one.price is not None]
    within = [one for one in possible if deadline_s is None or (one.seconds or 0.0) <= deadline_s]
    if within:
        return min(within, key=lambda one: (one.price or 0.0, one.seconds or 0.0)), None
    return None, min(possible, key=lambda one: (one.seconds or 0.0, one.price or 0.0), default=None)
