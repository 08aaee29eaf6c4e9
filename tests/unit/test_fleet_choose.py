"""Which machine: the arithmetic of time, price and interruptions, what the command says, and what a bad price list is told."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import re
from pathlib import Path

import pytest
from commands import Command

from flatout.base.errors import FlatoutError, UsageError
from flatout.fleet.choosing import MeasuredOn, TrainingAsked, TrainingOffer, calibration, meeting, offers
from flatout.fleet.choosing_service import serving_offers
from flatout.fleet.interruptions import daly_interval_s, expected_seconds
from flatout.fleet.prices import MachineOffer, PriceList, read_prices, said_prices
from flatout.plan.layouts.estimate import TrainingLoad
from flatout.plan.layouts.shape import BlockShape, PassWork, SavedActivations, Shape

TODAY = dt.date(2026, 11, 19)
LIST = """\
date: 2026-11-10
currency: USD
co2_kg_per_kwh: 0.4
machines:
  - {name: H100 cloud, kind: h100, devices: [1, 8, 16], per_hour: 3, spot_per_hour: 1.2, lost_every: 12 h, watts: 1000}
  - {name: A100 cloud, kind: a100, devices: 8, per_hour: 1.8}
  - {name: small, kind: cpu, cores: 2, per_hour: 0.1, watts: 20}
"""


def block(parameters: int) -> BlockShape:
    work = PassWork(product_flops=2.0 * parameters * 1024, traffic_bytes=1e6, fused_traffic_bytes=1e6, operators=20)
    kept = SavedActivations(1e6, 1e6, 1e6, 1e6)
    return BlockShape(parameters, 0, work, work.times(2), 1e6, kept, kept)


def training(parameters: int = 100_000_000, units: float = 1e9) -> TrainingAsked:
    layers = (block(parameters // 12),) * 10
    shape = Shape("made up", block(parameters // 12), layers, block(parameters // 12), "tokens", 1024.0)
    return TrainingAsked(shape, TrainingLoad(512), units)


def price_list(*machines: MachineOffer, co2: float | None = None) -> PriceList:
    return PriceList(TODAY, "USD", machines, co2)


# ---- time, price, energy ----


def test_price_and_energy_follow_from_the_time() -> None:
    (found,) = offers(training(), price_list(MachineOffer("x", "h100", (8,), 3.0, watts=1000.0), co2=0.4))
    assert found.seconds and found.rate and found.price and found.kwh and found.co2_kg
    assert found.seconds == pytest.approx(1e9 / found.rate)
    hours = 8 * found.seconds / 3600
    assert (found.price, found.kwh, found.co2_kg) == pytest.approx((3 * hours, hours, 0.4 * hours))


def test_a_measured_rate_corrects_all_machines() -> None:
    machines = price_list(MachineOffer("x", "h100", (1, 8), 3.0), MachineOffer("y", "a100", (8,), 2.0))
    plain = {one.name: one.rate or 0.0 for one in offers(training(), machines)}
    measured = MeasuredOn.parse(f"h100:8={plain['8 x x'] / 2}")
    assert calibration(training(), measured) == pytest.approx(0.5)
    corrected = {one.name: one.rate or 0.0 for one in offers(training(), machines, measured)}
    assert corrected == pytest.approx({name: rate / 2 for name, rate in plain.items()})


def test_cores_are_measured_and_not_estimated() -> None:
    machines = price_list(MachineOffer("two", "cpu", (1,), 0.1, cores=2), MachineOffer("four", "cpu", (1,), 0.2, cores=4))
    two, four = sorted(offers(training(), machines, MeasuredOn.parse("cpu:2=1000")), key=lambda one: one.name, reverse=True)
    assert two.seconds == pytest.approx(1e6) and four.seconds is None and "--measured cpu:4=RATE" in four.problem


def test_what_does_not_fit_is_said() -> None:
    (found,) = offers(training(100_000_000_000), price_list(MachineOffer("x", "a100", (1,), 2.0)))
    assert found.price is None and "does not fit: needs at least" in found.problem


@pytest.mark.parametrize(("save_s", "lost_every_s", "restart_s"), [(20, 7200, 300), (60, 3600, 120), (5, 40000, 600)])
def test_spot_takes_as_long_as_in_a_simulation(save_s: float, lost_every_s: float, restart_s: float) -> None:
    interval_s = daly_interval_s(save_s, lost_every_s)
    expected = expected_seconds(1.0, save_s, interval_s, lost_every_s, restart_s)
    chance, now_s, segments = random.Random(0), 0.0, 4000
    for _ in range(segments):
        while True:
            needed_s = interval_s if now_s == 0 or not lost else interval_s + restart_s  # noqa: F821
            until_s = chance.expovariate(1 / lost_every_s)
            lost = until_s < needed_s
            now_s += min(until_s, needed_s)
            if not lost:
                break
    assert now_s / (segments * (interval_s - save_s)) == pytest.approx(expected, rel=0.05)


def test_spot_asks_for_saves() -> None:
    machine = MachineOffer("x", "h100", (8, 64), None, 1.0, lost_every_s=6 * 3600, save_s=30)
    few, many = sorted(offers(training(units=1e13), price_list(machine)), key=lambda one: one.devices)
    assert few.save_every_s == pytest.approx(daly_interval_s(30, 6 * 3600))
    assert many.save_every_s == pytest.approx(daly_interval_s(30, 6 * 3600 / 8)), "eight nodes are lost eight times as often"
    assert few.interruptions == pytest.approx((few.seconds or 0) / (6 * 3600))
    (unknown,) = offers(training(), price_list(MachineOffer("x", "h100", (8,), None, 1.0)))
    assert unknown.price is None and "set lost_every" in unknown.problem


def test_the_cheapest_within_the_deadline_or_the_nearest() -> None:
    def offer(name: str, seconds: float, price: float) -> TrainingOffer:
        return TrainingOffer(MachineOffer(name, "h100", (1,), 1.0), 1, False, seconds=seconds, price=price)

    found = [offer("slow", 300, 1), offer("middle", 200, 2), offer("fast", 100, 9)]
    assert [one and one.machine.name for one in meeting(found, None)] == ["slow", None]
    assert [one and one.machine.name for one in meeting(found, 250)] == ["middle", None]
    assert [one and one.machine.name for one in meeting(found, 50)] == [None, "fast"]


# ---- the command ----


@pytest.fixture
def shop(desk: Path) -> Path:
    (desk / "prices.yaml").write_text(LIST)
    return desk


def test_the_command(shop: Path, flatout: Command) -> None:
    said = flatout("fleet", "choose", "table.yaml", "--prices", "prices.yaml")
    assert said.code == 0 and "cheapest: " in said.out and "rates of CPUs are measured" in said.out
    assert "note: rates are estimates" in said.out and "energy is not known" in said.out
    late = flatout("fleet", "choose", "table.yaml", "--prices", "prices.yaml", "--deadline", "1 ms", "--json")
    found = json.loads(late.out)
    fastest = min((row for row in found["offers"] if row.get("seconds") is not None), key=lambda row: row["seconds"])
    assert late.code == 1 and found["chosen"] is None and found["nearest"] == fastest["name"]


def test_the_rate_of_a_run(shop: Path, flatout: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.machine.host.usable_cores", lambda: 2)
    assert flatout("run", "table.yaml", "--planning", "off").code == 0
    found = json.loads(flatout("fleet", "choose", "table.yaml", "--prices", "prices.yaml", "--run", "last", "--json").out)
    small = next(row for row in found["offers"] if row["name"] == "1 x small")
    rate = json.loads(next((shop / "runs").glob("*/result.json")).read_text())["samples_per_s"]
    assert small["rate"] == pytest.approx(rate) and small["price"] > 0


def test_machines_for_a_service() -> None:
    machines = price_list(
        MachineOffer("two", "cpu", (1,), 0.1, 0.04, cores=2),
        MachineOffer("eight", "cpu", (1,), 0.35, cores=8, watts=100),
        MachineOffer("one", "cpu", (1,), 0.05, cores=1),
        MachineOffer("gpu", "h100", (1,), 3.0),
    )
    held = MeasuredOn.parse("cpu:2=640")
    found = {one.name: one for one in serving_offers(machines, held, 2000, 1.5)}
    assert list(found)[:3] == ["two spot", "two", "eight"]
    assert (found["two"].replicas, found["two"].machines, found["two"].per_hour) == (5, 5, pytest.approx(0.5))
    assert (found["eight"].machines, found["eight"].per_hour) == (2, pytest.approx(0.7)), "four replicas on each"
    assert found["one"].per_hour is None and "too small" in found["one"].problem
    assert "another kind of machine" in found["gpu of 1"].problem
    assert serving_offers(machines, held, 1, 1)[0].replicas == 2, "one may be away"


BAD = {
    "a rate for a recipe": (["--prices", "prices.yaml", "--rate", "5"], "--rate is for packages"),
    "no list": ([], "--prices is missing"),
    "no such list": (["--prices", "none.yaml"], "none.yaml can't be read"),
    "two rates": (["--prices", "prices.yaml", "--measured", "h100:1=3", "--run", "last"], "give only one"),
    "a rate in words": (["--prices", "prices.yaml", "--measured", "h100:1=fast"], "per second, got 'fast'"),
    "a rate of nothing": (["--prices", "prices.yaml", "--measured", "h10:1=5"], "did you mean 'h100'"),
    "a budget of time": (["--prices", "prices.yaml", "budget=10 min"], "is spent, not counted"),
    "no such run": (["--prices", "prices.yaml", "--run", "other-1"], "other-1"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input(what: str, shop: Path, flatout: Command) -> None:
    arguments, says = BAD[what]
    answer = flatout("fleet", "choose", "table.yaml", *arguments)
    assert answer.code in (1, 2) and says in answer.err and "Traceback" not in answer.err


# ---- the price list ----


def with_line(old: str, new: str) -> str:
    assert old in LIST
    return LIST.replace(old, new)


LISTS = {
    "a kind that nobody knows": (with_line("kind: a100", "kind: a10"), r"machine 2 \(A100 cloud\): kind: unknown kind .*'a10'"),
    "a currency that is none": (with_line("USD", "dollars"), "currency: expected one of USD"),
    "a day that is none": (with_line("2026-11-10", "November"), "date: expected the day of these prices"),
    "a day to come": (with_line("2026-11-10", "2027-01-01"), "2027-01-01 is in the future"),
    "a price with a sign": (with_line("per_hour: 1.8", "per_hour: $1.8"), "expected a number above 0 without a currency"),
    "no price": (with_line(", per_hour: 1.8", ""), "has no price"),
    "a misspelt key": (with_line("watts: 20", "wats: 20"), "unknown key 'wats'; did you mean 'watts'"),
    "a link that nobody knows": (with_line("devices: 8", "devices: 8, between: infiniband"), "between: unknown link"),
    "no cores": (with_line("cores: 2, ", ""), "cores: a CPU machine needs their number"),
    "half a device": (with_line("devices: 8", "devices: 0.5"), "expected a whole number from 1, got 0.5"),
    "a time without a unit": (with_line("lost_every: 12 h", "lost_every: 12"), "lost_every: .*'12'"),
    "the same name twice": (with_line("name: small", "name: A100 cloud"), "two have the name 'A100 cloud'"),
    "no machines": (LIST.partition("machines:")[0], "machines: expected a list"),
    "a list of nothing": ("- 3\n", "must have the keys date"),
    "no YAML": ("date: [", "line"),
}  # fmt: skip


@pytest.mark.parametrize("what", LISTS)
def test_a_bad_price_list(what: str, tmp_path: Path) -> None:
    text, says = LISTS[what]
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(UsageError) as told:
        read_prices(tmp_path / "prices.yaml", TODAY)
    assert re.search(says, str(told.value)), told.value


def test_all_mistakes_come_at_once_and_old_prices_are_said(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(LIST.replace("USD", "dollars").replace("a100", "a1").replace("0.4", "-1"))
    with pytest.raises(FlatoutError, match="3 mistakes"):
        read_prices(file, TODAY)
    file.write_text(LIST)
    prices = read_prices(file, TODAY)
    assert [one.counts for one in prices.machines] == [(1, 8, 16), (8,), (1,)]
    assert not any("look whether" in line for line in said_prices(prices, TODAY))
    assert any("189 days ago" in line for line in said_prices(prices, TODAY + dt.timedelta(days=180)))


def test_saves_that_never_end() -> None:
    assert expected_seconds(1.0, 60, 50, 3600, 300) == math.inf
