"""The energy of a run, by the rows of its ledger: of its devices and their machines, with the names of the meters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.machine.energy import EnergyMeter, NoEnergy, host_energy
from flatout.measure.joules import EnergyLedger
from flatout.measure.ledger import Ledger
from flatout.world.world import World

_STEPS = 5  # of a meter's counter: work that is shorter is not measured by itself
_ONCE = "counted by the first process of this machine"


class EnergyBooks:
    """Each process reads the meter of its device. The meter of a host counts for all its processes, so only one reads it."""

    def __init__(self, ledger: Ledger, device: EnergyMeter, world: World, *, on_host: bool) -> None:
        """`on_host`: the device is the host's CPU, so that there is one meter."""
        counts = world.local_rank == 0
        self._world, self._ledger = world, ledger
        self._meters: dict[str, EnergyMeter] = {"device": device if counts or not on_host else NoEnergy(_ONCE)}
        if not on_host:
            self._meters["host"] = host_energy() if counts else NoEnergy(_ONCE)
        self._books = {
            name: EnergyLedger(ledger, meter.read_j, _STEPS * meter.resolution_s) for name, meter in self._meters.items()
        }

    def read(self) -> None:
        """Call it after a `lap` of the ledger, where one kind of work ends."""
        for book in self._books.values():
            book.read()

    def resume(self, earlier: Mapping[str, Mapping[str, float]]) -> None:
        """What the run used before. It is the sum over all processes, so one of them adds it."""
        for name, book in self._books.items():
            book.add(earlier.get(name, {}) if self._world.is_first else {})

    def split(self, shares: Mapping[str, float]) -> None:
        for book in self._books.values():
            book.split(("step", "device wait"), shares)

    def of_all(self) -> dict[str, dict[str, float]]:
        """Joules by meter and row, summed over all processes. All of them call it."""
        for book in self._books.values():
            book.read(last=True)
        mine = {name: book.to_dict() for name, book in self._books.items()}
        return _summed(self._world.gather(mine)) if self._world.size > 1 else mine

    def result(self) -> dict[str, Any]:
        """All processes call it."""
        return {name: self._figures(self._meters[name], found) for name, found in self.of_all().items()}

    def _figures(self, meter: EnergyMeter, found: dict[str, float]) -> dict[str, Any]:
        unread_s = found.pop("lost_s", 0.0)
        if not found:
            return {"meter": "unavailable", "why": meter.why_unavailable or "the meter stopped answering during the run"}
        figures: dict[str, Any] = {
            "meter": meter.name,
            "joules": sum(found.values()),
            "error": meter.error(self._ledger.wall_s),
        }
        figures["by_phase"] = found
        return figures | ({"unread_s": unread_s} if unread_s else {})


def _summed(each: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    whole: dict[str, dict[str, float]] = {name: {} for one in each for name in one}
    for one in each:
        for name, rows in one.items():
            for row, joules in rows.items():
                whole[name][row] = whole[name].get(row, 0.0) + joules
    return whole
