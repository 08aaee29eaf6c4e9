"""A price list: YAML that the user keeps, with the machines that can be had. All its mistakes are told at once."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError, RecipeError, UsageError, did_you_mean
from flatout.base.plain_yaml import read_yaml
from flatout.base.units import parse_seconds
from flatout.plan.layouts.kinds import KINDS, LINKS

OLD_DAYS = 90
CURRENCIES = ("USD", "EUR", "GBP", "CHF", "JPY", "CNY", "INR", "KRW", "CAD", "AUD", "BRL", "SEK", "NOK", "DKK", "PLN", "SGD")
CPU = "cpu"
_TOP = ("date", "currency", "co2_kg_per_kwh", "machines")
_MACHINE = (
    "name", "kind", "devices", "cores", "per_node", "between", "inside", "per_hour", "spot_per_hour", "lost_every", "restart",
    "save", "watts",
)  # fmt: skip
_RESTART_S = 300.0


@dataclass(frozen=True)
class MachineOffer:
    """Prices are for one device and hour; of a CPU machine, for all of it. `lost_every_s`: one spot node. `watts`: of one
    device with its share of the machine. None is unknown."""

    name: str
    kind: str
    counts: tuple[int, ...]
    per_hour: float | None
    spot_per_hour: float | None = None
    lost_every_s: float | None = None
    restart_s: float = _RESTART_S
    save_s: float | None = None
    watts: float | None = None
    cores: int | None = None
    per_node: int | None = None
    inside: str | None = None
    between: str | None = None


@dataclass(frozen=True)
class PriceList:
    date: dt.date
    currency: str
    machines: tuple[MachineOffer, ...]
    co2_kg_per_kwh: float | None = None
    source: str = "prices"

    def age_days(self, today: dt.date) -> int:
        return (today - self.date).days


def read_prices(path: Path, today: dt.date) -> PriceList:
    try:
        written, problems = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prices: {path} can't be read: {error}") from error
    if problems:
        raise RecipeError(problems, str(path))
    if not isinstance(written, Mapping):
        raise UsageError(f"--prices: {path} must have the keys {', '.join(_TOP)}; docs/fleet.md shows one")
    reading = _Reading()
    found = reading.price_list(written, today, str(path))
    if reading.problems or found is None:
        raise RecipeError(reading.problems, str(path))
    return found


class _Reading:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def price_list(self, written: Mapping[str, Any], today: dt.date, source: str) -> PriceList | None:
        self._unknown("", written, _TOP)
        date = self._date(written.get("date"), today)
        currency = str(written.get("currency", "")).upper()
        if currency not in CURRENCIES:
            self.problems.append(f"currency: expected one of {', '.join(CURRENCIES)}, got {written.get('currency')!r}")
        factor = self._number("co2_kg_per_kwh", written.get("co2_kg_per_kwh"), least=0.0)
        offers = written.get("machines")
        if not isinstance(offers, list) or not offers:
            self.problems.append("machines: expected a list with at least one machine")
            return None
        machines = tuple(one for number, offer in enumerate(offers, 1) if (one := self._machine(number, offer)) is not None)
        names = [one.name for one in machines]
        self.problems += [f"machines: two have the name {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]
        return None if date is None else PriceList(date, currency, machines, factor, source)

    def _machine(self, number: int, offer: Any) -> MachineOffer | None:
        where = f"machine {number}"
        if not isinstance(offer, Mapping):
            self.problems.append(f"{where}: expected keys such as kind and per_hour, got {offer!r}")
            return None
        where = f"{where} ({offer['name']})" if isinstance(offer.get("name"), str) else where
        self._unknown(f"{where}: ", offer, _MACHINE)
        kind = str(offer.get("kind", "")).strip().lower()
        if kind not in (*KINDS, CPU):
            hint = did_you_mean(kind, (*KINDS, CPU))
            self.problems.append(f"{where}: kind: unknown kind of device {offer.get('kind')!r}; {hint}")
        for key in ("inside", "between"):
            if offer.get(key) is not None and str(offer[key]).lower() not in LINKS:
                self.problems.append(
                    f"{where}: {key}: unknown link {offer[key]!r}; {did_you_mean(str(offer[key]).lower(), LINKS)}"
                )
        per_hour = self._number(f"{where}: per_hour", offer.get("per_hour"))
        spot = self._number(f"{where}: spot_per_hour", offer.get("spot_per_hour"))
        if offer.get("per_hour") is None and offer.get("spot_per_hour") is None:
            self.problems.append(f"{where}: has no price: per_hour, spot_per_hour or both")
        if kind == CPU and not isinstance(offer.get("cores"), int):
            self.problems.append(f"{where}: cores: a CPU machine needs their number")
        return MachineOffer(
            name=str(offer.get("name") or kind),
            kind=kind,
            counts=self._counts(where, offer.get("devices", 1)),
            per_hour=per_hour,
            spot_per_hour=spot,
            lost_every_s=self._seconds(f"{where}: lost_every", offer.get("lost_every")),
            restart_s=self._seconds(f"{where}: restart", offer.get("restart")) or _RESTART_S,
            save_s=self._seconds(f"{where}: save", offer.get("save")),
            watts=self._number(f"{where}: watts", offer.get("watts")),
            cores=self._whole(f"{where}: cores", offer.get("cores")),
            per_node=self._whole(f"{where}: per_node", offer.get("per_node")),
            inside=offer.get("inside"),
            between=offer.get("between"),
        )

    def _unknown(self, where: str, written: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in written:
            if key not in known:
                self.problems.append(f"{where}unknown key {key!r}; {did_you_mean(str(key), known)}")

    def _date(self, written: Any, today: dt.date) -> dt.date | None:
        try:
            found = dt.date.fromisoformat(str(written))
        except ValueError:
            self.problems.append(f"date: expected the day of these prices, such as {today}, got {written!r}")
            return None
        if found > today:
            self.problems.append(f"date: {found} is in the future; today is {today}")
        return found

    def _number(self, where: str, written: Any, least: float = 1e-9) -> float | None:
        if written is None:
            return None
        if isinstance(written, bool) or not isinstance(written, int | float) or not least <= written < 1e9:
            self.problems.append(f"{where}: expected a number above 0 without a currency, got {written!r}")
            return None
        return float(written)

    def _whole(self, where: str, written: Any) -> int | None:
        if written is None or (isinstance(written, int) and not isinstance(written, bool) and 1 <= written <= 1_000_000):
            return written
        self.problems.append(f"{where}: expected a whole number from 1, got {written!r}")
        return None

    def _counts(self, where: str, written: Any) -> tuple[int, ...]:
        found = [self._whole(f"{where}: devices", one) for one in (written if isinstance(written, list) else [written])]
        if not found:
            self.problems.append(f"{where}: devices: expected numbers of devices such as [1, 8]")
        return tuple(sorted({one for one in found if one is not None}))

    def _seconds(self, where: str, written: Any) -> float | None:
        if written is None:
            return None
        try:
            seconds = parse_seconds(str(written))
        except FlatoutError as error:
            self.problems.append(f"{where}: {error}")
            return None
        if not 0 < seconds < math.inf:
            self.problems.append(f"{where}: expected a time above 0, got {written!r}")
            return None
        return seconds


def said_prices(prices: PriceList, today: dt.date) -> Iterator[str]:
    """Where the prices are from, and whether they are old."""
    age = prices.age_days(today)
    old = f": {age} days ago, so look whether they still hold" if age > OLD_DAYS else ""
    yield f"prices in {prices.currency} of {prices.date}, from {prices.source}{old}"
