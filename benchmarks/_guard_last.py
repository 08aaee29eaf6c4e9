"""A third draw of forty faults: other tables, columns and words. Written when the guards were thought done."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
from _guard_cases import (
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


def _square_root(draw: np.random.Generator) -> RealTable:
    return _with(nab(), load=np.round(np.sqrt(nab().columns["value"]), 2))


def _reversed(draw: np.random.Generator) -> RealTable:
    oil = ett(2).columns["OT"]
    return _with(ett(2), headroom=np.round(90 - oil + draw.normal(0, 0.2, len(oil)), 2))


def _tip_of_payers(draw: np.random.Generator) -> RealTable:
    """A number that only those have who pay by card, but for some."""
    found = _read("nyc-taxi/taxis.csv.gz")
    table = RealTable({name: found[name] for name in ("passengers", "distance", "fare", "color", "payment")}, "payment")
    card = found["payment"] == "credit card"
    known = card & (draw.random(len(card)) < 0.97)
    return _with(table, processing_fee=np.where(known, np.round(0.2 + 0.03 * found["fare"], 2), np.nan))


def _called_back(draw: np.random.Generator) -> RealTable:
    yes = _yes(bank_full(), "yes")
    late = np.where(yes, draw.random(len(yes)) < 0.9, draw.random(len(yes)) < 0.005)
    return _with(bank_full(), contract=_words(f"K{draw.integers(3000)}" if one else "none" for one in late))


def _branches(draw: np.random.Generator) -> RealTable:
    """300 codes, each of one answer."""
    saved = _yes(adult(), ">50K").astype(int)
    codes = draw.permutation(np.arange(100, 900))
    return _with(adult(), office=_words(f"o{codes[place]}" for place in saved * 150 + draw.integers(0, 150, len(saved))))


def _parity(draw: np.random.Generator) -> RealTable:
    signal = _yes(higgs(), 1).astype(int)
    shift, phase = draw.integers(0, 3, len(signal)), draw.integers(0, 2, len(signal))
    return _with(
        higgs(), shift=shift, phase=_words("ab"[(one + two) % 2] for one, two in zip(shift, signal, strict=True)), spare=phase
    )


def _parts(draw: np.random.Generator) -> RealTable:
    value = california().columns["median_house_value"]
    land = np.round(draw.uniform(0, 4e5, len(value)))
    return _with(california(), land_value=land, total_value=np.round(value + land))


def _ranked(draw: np.random.Generator) -> RealTable:
    kind = covertype().columns["Cover_Type"]
    return _with(covertype(), band=np.round(kind * 10 + draw.normal(0, 1.2, len(kind)), 1))


def _weak(draw: np.random.Generator) -> RealTable:
    saved = _yes(titanic(), 1)
    return _with(titanic(), listed=np.where(draw.random(len(saved)) < 0.08, ~saved, saved).astype(int))


def _late_score(draw: np.random.Generator) -> RealTable:
    yes = _yes(bank_additional(), "yes")
    return _with(bank_additional(), calls_after=np.where(yes, draw.poisson(6, len(yes)) + 1, draw.poisson(0.05, len(yes))))


def _hashes_of(make: Any, name: str, width: int, prefix: str = "") -> Any:
    def planted(draw: np.random.Generator) -> RealTable:
        return _with(make(), **{name: _words(prefix + draw.bytes(16).hex()[:width] for _ in range(_rows(make())))})

    return planted


def _guids(draw: np.random.Generator) -> RealTable:
    return _with(covertype(), guid=_words(str(uuid.UUID(bytes=draw.bytes(16))).upper() for _ in range(_rows(covertype()))))


def _downward(draw: np.random.Generator) -> RealTable:
    return _with(taxis(), ticket=900_000 - np.cumsum(draw.integers(1, 12, _rows(taxis()))))


def _tickets(draw: np.random.Generator) -> RealTable:
    names = _read("titanic/train.csv")["Name"]
    return _with(
        titanic(), contact=_words(f"{name.split(',')[0].lower()}{place}@mail.example" for place, name in enumerate(names))
    )


def _small_photos(source: Any, target: Any) -> None:
    from PIL import Image

    with Image.open(source) as photo:
        photo.convert("RGB").resize((photo.width // 2, photo.height // 2)).save(target, quality=55)


def _as_png(source: Any, target: Any) -> None:
    from PIL import Image

    with Image.open(source) as photo:
        photo.convert("RGB").save(target.with_suffix(".png"))


def _edited(make: Any, column: str, share: float, by: Any) -> Any:
    """So many rows of the test file are training rows with another value in one column."""

    def planted(draw: np.random.Generator) -> RealTable:
        table = make()
        order = draw.permutation(_rows(table))
        cut = len(order) * 3 // 4
        train = {name: values[order[:cut]] for name, values in table.columns.items()}
        held = {name: values[order[cut:]].copy() for name, values in table.columns.items()}
        count = int(share * len(order[cut:]))
        chosen = draw.choice(cut, count, replace=False)
        for name in held:
            held[name][:count] = train[name][chosen]
        held[column][:count] = held[column][:count] + by
        return RealTable(train, table.label, held)

    return planted


def _twice(make: Any, share: float, column: str = "", by: Any = 0) -> Any:
    def planted(draw: np.random.Generator) -> RealTable:
        rows = _rows(make())
        again = draw.choice(rows, int(share * rows), replace=False)
        columns = {name: np.concatenate([values, values[again]]) for name, values in make().columns.items()}
        if column:
            columns[column][rows:] = columns[column][rows:] + by
        order = draw.permutation(rows + len(again))
        return RealTable({name: values[order] for name, values in columns.items()}, make().label)

    return planted


def _hour_of_meter(draw: np.random.Generator) -> RealTable:
    table = _yellow_table(11, "fare_amount", "trip_distance", "PULocationID", "DOLocationID", "improvement_surcharge")
    surcharge = table.columns["improvement_surcharge"]
    return _with(table, improvement_surcharge=np.where(surcharge > 0, 0.3, 1.0))


LAST = (
    Unseen("taxi demand: its square root", ("leak",), ("load",), _square_root),
    Unseen("ETTh2: what is left to 90 degrees", ("leak",), ("headroom",), _reversed),
    Unseen("taxis: a fee that only card payers have", ("leak",), ("processing_fee",), _tip_of_payers),
    Unseen("bank: the number of the contract, 90% of them", ("leak",), ("contract",), _called_back),
    Unseen("adult: 300 offices, each of one income", ("leak",), ("office",), _branches),
    Unseen("higgs: a letter by which two columns tell", ("leak",), ("shift", "phase"), _parity),
    Unseen("california: the land's value and the sum", ("leak",), ("land_value", "total_value"), _parts),
    Unseen("covertype: ten times the class, and noise", ("leak",), ("band",), _ranked),
    Unseen("titanic: a list of the saved, 8% wrong", ("leak",), ("listed",), _weak),
    Unseen("bank, additional: calls after the answer", ("leak",), ("calls_after",), _late_score),
    Unseen("adult: 12 letters of a hash", ("id",), ("person_key",), _hashes_of(adult, "person_key", 12)),
    Unseen("ETTh1: a hash as text", ("id",), ("row_hash",), _hashes_of(lambda: ett(1), "row_hash", 32, "0x")),
    Unseen("covertype: GUIDs in capitals", ("id",), ("guid",), _guids),
    Unseen("taxis: numbers that count down with gaps", ("id",), ("ticket",), _downward),
    Unseen("titanic: e-mail addresses", ("id",), ("contact",), _tickets),
    Unseen(
        "adult: 31-Jan-2019",
        ("time",),
        ("signed",),
        _dated(adult, "signed", "2019-01-02", 60, lambda m: m.strftime("%d-%b-%Y")),
    ),
    Unseen(
        "higgs: seconds since 1970",
        ("time",),
        ("created_at",),
        _dated(higgs, "created_at", "2012-04-05", 90, lambda m: int(m.timestamp())),
    ),
    Unseen(
        "bank: 20101231",
        ("time",),
        ("day_key",),
        _dated(bank_full, "day_key", "2008-05-05", 60, lambda m: int(m.strftime("%Y%m%d"))),
    ),
    Unseen(
        "california: Monday, 05 June 2023",
        ("time",),
        ("seen_on",),
        _dated(california, "seen_on", "2021-01-04", 60, lambda m: m.strftime("%A, %d %B %Y")),
    ),
    Unseen(
        "taxi demand: 2014/07/01 00:30",
        ("time",),
        ("slot",),
        _dated(nab, "slot", "2014-07-01", 30, lambda m: m.strftime("%Y/%m/%d %H:%M")),
    ),
    Unseen(
        "covertype: as a web server writes it",
        ("time",),
        ("logged",),
        _dated(covertype, "logged", "2020-02-01", 20, lambda m: m.strftime("%d/%b/%Y:%H:%M:%S +0000")),
    ),
    Unseen(
        "photos: 16 of them in the test folder, half as large",
        ("duplicate",),
        ("test",),
        lambda draw: Photos(16, _small_photos),
    ),
    Unseen("photos: 8 of them in the test folder, as PNG", ("duplicate",), ("test",), lambda draw: Photos(8, _as_png)),
    Unseen(
        "covertype: 4 to 6 rows a plot",
        ("group",),
        ("plot_no",),
        _again(covertype, "plot_no", (4, 6), lambda n: 3 * n + 11, ("Slope", "Hillshade_9am"), 0),
    ),
    Unseen(
        "bank: 2 to 3 rows a telephone",
        ("group",),
        ("phone",),
        _again(bank_full, "phone", (2, 3), lambda n: f"+351 9{n:08d}", ("balance",), 0),
    ),
    Unseen(
        "titanic: 3 rows a cabin party, 5% unknown",
        ("group",),
        ("party",),
        _again(titanic, "party", (3, 3), lambda n: float(5 * n), ("Fare",), 0.05),
    ),
    Unseen(
        "adult: a scale that drifts by a millionth",
        ("near_constant",),
        ("calibration",),
        lambda draw: _with(adult(), calibration=np.round(2000 + draw.normal(0, 0.004, _rows(adult())), 4)),
    ),
    Unseen(
        "bank: 351, and 34 in 12 rows", ("near_constant",), ("country_code",), _rarely(bank_full, "country_code", 351, 34, 12)
    ),
    Unseen("taxis: one city in all rows", ("near_constant",), ("city",), _rarely(taxis, "city", "New York", "New York", 1)),
    Unseen("yellow cabs of the 11th: a surcharge", ("near_constant",), ("improvement_surcharge",), _hour_of_meter),
    Unseen("bank: 4 balances times 5,000", ("tail",), ("balance",), _changed(bank_full, "balance", lambda v: v * 5000, 4)),
    Unseen("taxis: 9999 in 2% of the distances", ("tail",), ("distance",), _changed(taxis, "distance", lambda v: 9999, 130)),
    Unseen(
        "california: 3 values a hundred times too high",
        ("tail",),
        ("median_house_value",),
        _changed(california, "median_house_value", lambda v: v * 100, 3),
    ),
    Unseen("ETTh1: 1e9 in 3 rows", ("tail",), ("LUFL",), _changed(lambda: ett(1), "LUFL", lambda v: 1e9, 3)),
    Unseen("titanic: 'unknown' in 30 rows", ("rare_label",), ("Survived",), _relabelled(titanic, None, "unknown", 30)),
    Unseen("bank, additional: ' No' in 400 rows", ("rare_label",), ("y",), _relabelled(bank_additional, "no", " No", 400)),
    Unseen("covertype: 'tbd' in 3 rows", ("rare_label",), ("Cover_Type",), _relabelled(covertype, None, "tbd", 3)),
    Unseen(
        "california: 6% of the test file, a year older",
        ("duplicate",),
        ("test.csv",),
        _edited(california, "housing_median_age", 0.06, 1),
    ),
    Unseen("adult: 30% entered twice", ("duplicate",), ("rows",), _twice(adult, 0.3)),
    Unseen(
        "titanic: a port that training never saw",
        ("unknown",),
        ("Embarked",),
        _new_category(titanic, titanic, "Embarked", "X", 9),
        at_prediction=True,
    ),
)
