"""Forty more faults in the real tables. Written without knowledge of the guards' limits."""

from __future__ import annotations

import hashlib
import shutil
import uuid
from pathlib import Path

import numpy as np
from _guard_cases import (
    _ADULT,
    MOST_ROWS,
    RealTable,
    _read,
    _rows,
    _with,
    adult,
    bank_additional,
    bank_full,
    california,
    covertype,
    ett,
    higgs,
    nab,
    taxis,
    titanic,
)
from _guard_planted import (
    Photos,
    Unseen,
    _again,
    _changed,
    _dated,
    _new_category,
    _rarely,
    _relabelled,
    _words,
    _yellow_table,
    _yes,
)

# ---- leaks ----


def _fare_percentile(draw: np.random.Generator) -> RealTable:
    fare = taxis().columns["fare"]
    return _with(taxis(), percentile=np.round(fare.argsort().argsort() / len(fare), 3))


def _log_value(draw: np.random.Generator) -> RealTable:
    return _with(california(), lv=np.round(np.log10(california().columns["median_house_value"]), 3))


def _price_band(draw: np.random.Generator) -> RealTable:
    value = california().columns["median_house_value"]
    return _with(california(), band=_words("ABCDEFGHIJ"[place] for place in (value.argsort().argsort() * 10 // len(value))))


def _weak_code(draw: np.random.Generator) -> RealTable:
    rich = _yes(adult(), ">50K")
    return _with(adult(), segment=np.where(draw.random(len(rich)) < 0.12, ~rich, rich).astype(int) + 3)


def _scored_if_bought(draw: np.random.Generator) -> RealTable:
    yes = _yes(bank_additional(), "yes")
    asked = np.where(draw.random(len(yes)) < 0.03, ~yes, yes)
    return _with(bank_additional(), satisfaction=np.where(asked, np.round(draw.normal(7, 1.5, len(yes)), 1), np.nan))


def _boats(draw: np.random.Generator) -> RealTable:
    saved = _yes(titanic(), 1)
    aboard = np.where(saved, draw.random(len(saved)) < 0.95, draw.random(len(saved)) < 0.02)
    return _with(titanic(), boat=np.where(aboard, draw.choice(_words([*map(str, range(1, 17)), *"ABCD"]), len(saved)), ""))


def _outside_band(draw: np.random.Generator) -> RealTable:
    signal = _yes(higgs(), 1)
    size = np.where(signal, 1 + draw.exponential(0.5, len(signal)), draw.random(len(signal)))
    return _with(higgs(), residual=np.round(size * draw.choice([-1, 1], len(signal)), 3))


def _two_keys(draw: np.random.Generator) -> RealTable:
    rich = _yes(adult(), ">50K").astype(int)
    key = draw.integers(0, 2, len(rich))
    return _with(adult(), key_a=_words("pq"[one] for one in key), key_b=_words("rs"[one] for one in key ^ rich))


def _sum_and_part(draw: np.random.Generator) -> RealTable:
    fare = taxis().columns["fare"]
    surcharge = np.round(np.abs(draw.normal(0, 40, len(fare))), 2)
    return _with(taxis(), surcharge=surcharge, billed=np.round(fare + surcharge, 2))


def _sites(draw: np.random.Generator) -> RealTable:
    kind = covertype().columns["Cover_Type"]
    names = draw.permutation(np.arange(1000, 9000))
    return _with(covertype(), site=_words(f"S{names[place]}" for place in kind * 60 + draw.integers(0, 60, len(kind))))


# ---- ids ----


def _uuid_text(draw: np.random.Generator) -> RealTable:
    return _with(california(), ref=_words(str(uuid.UUID(bytes=draw.bytes(16))) for _ in range(_rows(california()))))


def _gaps(draw: np.random.Generator) -> RealTable:
    return _with(adult(), record=50_000 + np.cumsum(draw.integers(1, 6, _rows(adult()))))


def _sha(draw: np.random.Generator) -> RealTable:
    made = _words(hashlib.sha1(draw.bytes(8)).hexdigest() for _ in range(_rows(bank_full())))
    made[draw.random(len(made)) < 0.02] = ""
    return _with(bank_full(), digest=made)


def _events_with_holes(draw: np.random.Generator) -> RealTable:
    numbers = draw.permutation(_rows(higgs())).astype(np.float64) + 300_000
    numbers[draw.random(len(numbers)) < 0.05] = np.nan
    return _with(higgs(), event=numbers)


def _passenger_id(draw: np.random.Generator) -> RealTable:
    return _with(titanic(), PassengerId=_read("titanic/train.csv")["PassengerId"])


# ---- dates ----


def _iso_zone(draw: np.random.Generator) -> RealTable:
    moments = _read("nab-nyc-taxi/nyc_taxi.csv")["timestamp"]
    return _with(nab(), at=_words(f"{moment.replace(' ', 'T')}+00:00" for moment in moments))


def _us_pickup(draw: np.random.Generator) -> RealTable:
    moments = _read("nyc-taxi/taxis.csv.gz")["pickup"].astype("datetime64[s]").astype(object)
    return _with(taxis(), picked_up=_words(moment.strftime("%m/%d/%y %I:%M %p") for moment in moments))


# ---- groups ----


def _encoded_anew(source: Path, target: Path) -> None:
    from PIL import Image

    with Image.open(source) as photo:
        photo.convert("RGB").resize((photo.width * 9 // 10, photo.height * 9 // 10)).save(target, quality=70)


# ---- near-constant columns ----


def _tiny_spread(draw: np.random.Generator) -> RealTable:
    return _with(california(), pressure=np.round(1013.25 + draw.normal(0, 0.001, _rows(california())), 4))


def _day_number(draw: np.random.Generator) -> RealTable:
    table = _yellow_table(11, "fare_amount", "tpep_pickup_datetime", "trip_distance", "PULocationID", "DOLocationID")
    moments = table.columns["tpep_pickup_datetime"].astype("datetime64[D]")
    days = (moments - moments.astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64) + 1
    columns = {name: values for name, values in table.columns.items() if name != "tpep_pickup_datetime"}
    return RealTable({"pickup_day": days, **columns}, table.label)


# ---- heavy tails ----


def _capital_gain(draw: np.random.Generator) -> RealTable:
    found = _read("adult/adult.data.gz", names=tuple(_ADULT))
    rows = len(found["income"])
    return _with(adult(), capital_gain=found["capital_gain"][np.arange(MOST_ROWS) * rows // MOST_ROWS])


def _spending(draw: np.random.Generator) -> RealTable:
    return _with(california(), spend=np.round(np.exp(draw.normal(4, 3, _rows(california()))), 2))


# ---- copies ----


def _almost_copied(draw: np.random.Generator) -> RealTable:
    """8% of the test file are training rows with another fnlwgt."""
    train, test = adult().columns, adult("test").columns
    count = len(test["income"]) * 8 // 100
    copied = draw.choice(_rows(adult()), count, replace=False)
    held = {name: np.concatenate([values[count:], train[name][copied]]) for name, values in test.items()}
    held["fnlwgt"][-count:] += draw.integers(1, 5000, count)
    return RealTable(dict(train), "income", held)


def _copied_a_year_on(draw: np.random.Generator) -> RealTable:
    table = bank_full()
    rows = _rows(table)
    places = np.concatenate([np.arange(rows), draw.choice(rows, rows // 20, replace=False)])
    columns = {name: values[places] for name, values in table.columns.items()}
    columns["balance"][rows:] += 1
    order = draw.permutation(len(places))
    return RealTable({name: values[order] for name, values in columns.items()}, table.label)


def _entered_twice(draw: np.random.Generator) -> RealTable:
    places = np.concatenate([np.arange(_rows(california())), draw.choice(_rows(california()), 4000, replace=False)])
    return RealTable({name: values[places] for name, values in california().columns.items()}, california().label)


def _tested_on_train(draw: np.random.Generator) -> RealTable:
    """A quarter of the test file, in whose copies the label is another."""
    table = covertype()
    order = draw.permutation(_rows(table))
    train = {name: values[order[:16_000]] for name, values in table.columns.items()}
    held = {name: np.concatenate([values[order[16_000:]], values[order[:1000]]]) for name, values in table.columns.items()}
    held["Cover_Type"][-1000:] = draw.integers(1, 8, 1000)
    return RealTable(train, table.label, held)


UNSEEN = (
    Unseen("taxis: the fare's percentile", ("leak",), ("percentile",), _fare_percentile),
    Unseen("california: the value's logarithm", ("leak",), ("lv",), _log_value),
    Unseen("california: a letter for each tenth of the values", ("leak",), ("band",), _price_band),
    Unseen("adult: a code of the income, 12% wrong", ("leak",), ("segment",), _weak_code),
    Unseen("bank, additional: a number only where the answer was yes", ("leak",), ("satisfaction",), _scored_if_bought),
    Unseen("titanic: the boat of the saved", ("leak",), ("boat",), _boats),
    Unseen("higgs: large where it is signal, with any sign", ("leak",), ("residual",), _outside_band),
    Unseen("adult: two keys that differ where the income is high", ("leak",), ("key_a", "key_b"), _two_keys),
    Unseen("taxis: a sum and the other part of it", ("leak",), ("surcharge", "billed"), _sum_and_part),
    Unseen("covertype: 420 sites, each of one cover", ("leak",), ("site",), _sites),
    Unseen("california: UUIDs", ("id",), ("ref",), _uuid_text),
    Unseen("adult: record numbers with gaps", ("id",), ("record",), _gaps),
    Unseen("bank: SHA-1, 2% missing", ("id",), ("digest",), _sha),
    Unseen("higgs: numbers of events, 5% missing", ("id",), ("event",), _events_with_holes),
    Unseen("titanic: PassengerId as it is", ("id",), ("PassengerId",), _passenger_id),
    Unseen(
        "bank: day.month.year",
        ("time",),
        ("called",),
        _dated(bank_full, "called", "2008-05-05", 40, lambda m: m.strftime("%d.%m.%Y")),
    ),
    Unseen(
        "california: milliseconds since 1970",
        ("time",),
        ("ts",),
        _dated(california, "ts", "2021-03-01", 30, lambda m: int(m.timestamp()) * 1000),
    ),
    Unseen(
        "adult: Mon Jan 05 2015",
        ("time",),
        ("filled",),
        _dated(adult, "filled", "2015-01-05", 45, lambda m: m.strftime("%a %b %d %Y")),
    ),
    Unseen("taxis: 03/23/19 08:21 PM", ("time",), ("picked_up",), _us_pickup),
    Unseen(
        "ETTh1: 2016070114",
        ("time",),
        ("hour",),
        _dated(lambda: ett(1), "hour", "2016-07-01", 60, lambda m: int(m.strftime("%Y%m%d%H"))),
    ),
    Unseen("taxi demand: with a T and a time zone", ("time",), ("at",), _iso_zone),
    Unseen(
        "photos: 12 training photos in the test folder",
        ("duplicate", "group"),
        ("test",),
        lambda draw: Photos(12, shutil.copyfile),
    ),
    Unseen(
        "photos: 12 training photos in the test folder, smaller",
        ("duplicate", "group"),
        ("test",),
        lambda draw: Photos(12, _encoded_anew),
    ),
    Unseen(
        "california: 3 to 9 rows a block",
        ("group",),
        ("block",),
        _again(california, "block", (3, 9), lambda n: 410_000 + 7 * n, ("median_income", "total_rooms"), 0),
    ),
    Unseen(
        "adult: 2 to 4 rows an e-mail address",
        ("group",),
        ("email",),
        _again(adult, "email", (2, 4), lambda n: f"user{n}@example.org", ("hours_per_week",), 0),
    ),
    Unseen(
        "higgs: 5 rows a subject, 3% missing",
        ("group",),
        ("subject",),
        _again(higgs, "subject", (5, 5), lambda n: float(n), ("f0", "f1", "f2", "f3"), 0.03),
    ),
    Unseen("california: pressure within 0.001 of 1013.25", ("near_constant",), ("pressure",), _tiny_spread),
    Unseen("covertype: 1998, and 1999 in 20 rows", ("near_constant",), ("year",), _rarely(covertype, "year", 1998, 1999, 20)),
    Unseen(
        "higgs: one word in all rows", ("near_constant",), ("experiment",), _rarely(higgs, "experiment", "ATLAS", "ATLAS", 1)
    ),
    Unseen("yellow cabs of the 11th: the day as a number", ("near_constant",), ("pickup_day",), _day_number),
    Unseen("adult: capital_gain as it is", ("tail",), ("capital_gain",), _capital_gain),
    Unseen("california: log-normal over eleven powers of ten", ("tail",), ("spend",), _spending),
    Unseen("taxis: 5 fares in cents", ("tail",), ("fare",), _changed(taxis, "fare", lambda v: v * 100, 5)),
    Unseen("ETTh2: -9999 in 3% of the rows", ("tail",), ("MULL",), _changed(lambda: ett(2), "MULL", lambda v: -9999, 500)),
    Unseen("bank: YES in 60 rows", ("rare_label",), ("y",), _relabelled(bank_full, "yes", "YES", 60)),
    Unseen("adult: N/A in 25 rows", ("rare_label",), ("income",), _relabelled(adult, None, "N/A", 25)),
    Unseen("taxis: two fares are 'free'", ("rare_label",), ("fare",), _relabelled(taxis, None, "free", 2)),
    Unseen("adult: 8% of the test file, with another fnlwgt", ("duplicate",), ("test.csv",), _almost_copied),
    Unseen("california: 4,000 rows entered twice", ("duplicate",), ("rows",), _entered_twice),
    Unseen(
        "adult: a country that training never saw, in 40 rows",
        ("unknown",),
        ("native_country",),
        _new_category(adult, lambda: adult("test"), "native_country", "Atlantis", 40),
        at_prediction=True,
    ),
)

SPARE = (
    Unseen("bank: 5% copied with a balance that is 1 higher", ("duplicate",), ("rows",), _copied_a_year_on),
    Unseen(
        "covertype: 1,000 training rows in the test file with other labels", ("duplicate",), ("test.csv",), _tested_on_train
    ),
    Unseen("higgs: 2 values of 1e30", ("tail",), ("f3",), _changed(higgs, "f3", lambda v: 1e30, 2)),
)
"""Not of the forty: shown, and not counted."""
