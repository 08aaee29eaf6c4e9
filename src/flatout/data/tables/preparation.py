"""Everything that was fitted on the training part of a table, in one piece that is JSON: what travels with a model."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.bad import Bad
from flatout.data.source import Source
from flatout.data.tables.device import DevicePart
from flatout.data.tables.encoded import Gathering
from flatout.data.tables.host import Date, FoldMeans, HostPart, Number
from flatout.data.tables.kinds import check_column
from flatout.data.tables.label import UNKNOWN, Label
from flatout.data.tables.rows import Place, Rows
from flatout.data.tables.scan import Scan, scan

Array = np.ndarray[Any, Any]

VERSION = 1


@dataclass(frozen=True)
class Preparation:
    """`schema` has the type of each raw column in training; `notes` are what a person should know about the fit."""

    host: HostPart
    device: DevicePart
    label: Label
    schema: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """None where a number is to be predicted, and where the label's numbers are those of the classes already."""
        classes = self.label.classes
        numbered = classes is not None and list(classes) == [str(place) for place in range(len(classes))]
        return None if numbered else classes

    def needed(self, targets: bool) -> list[str]:
        """The raw columns that are read, with the label where `targets` is set."""
        return [coding.name for coding in self.host.columns] + ([self.label.name] if targets else [])

    def encode(self, columns: Mapping[str, Any], unseen: Counter[str] | None = None) -> dict[str, Array]:
        """Raw values as lists or arrays -> what `device` takes: no pyarrow, no file."""
        return self.host.encode(columns, unseen)

    def read(self, rows: Scan, targets: bool = True, *, folder: Path | None = None, on_bad: str = "error") -> Source:
        """All rows of other files, encoded with what was fitted; with the label as y where `targets` is set."""
        return self.read_noted(rows, targets, folder=folder, bad=Bad(on_bad))[0]

    def read_noted(
        self, rows: Scan, targets: bool = True, *, folder: Path | None = None, bad: Bad, part: str = ""
    ) -> tuple[Source, tuple[str, ...]]:
        """`read`, and what is to be said about those rows. `part` ("validation") names them in messages."""
        unseen = Counter[str]()
        usable = self.rows(rows, bad, targets, keep_bytes=0)
        gathering = Gathering(folder, rows.rows)
        try:
            for batch, place in usable.batches():
                gathering.add(self.encoded(batch, place, targets, unseen))
            source = gathering.finish()
        finally:
            gathering.discard()
        assert source is not None
        return source, tuple([*unseen_notes(unseen, part), *([said] if (said := bad.summary()) else [])])

    def scan(self, paths: Any, targets: bool = True, **options: Any) -> Scan:
        """The columns needed of other files; those that were text in training are read as text: "007" stays what it is."""
        columns = self.needed(targets)
        text = [name for name in self.needed(targets=False) if self.schema[name] == "string"]
        return scan(paths, **{**options, "columns": columns, "text": sorted({*options.get("text", ()), *text} & {*columns})})

    def rows(self, found: Scan, bad: Bad, targets: bool, keep_bytes: int) -> Rows:
        """Those of `found` that can be encoded."""
        codings = self.host.columns
        names = self.needed(targets)
        for name in names:
            check_column(name, found.columns, "the table was trained with a column that is missing here")
        numbers = [coding.name for coding in codings if isinstance(coding, Number)]
        dates = {coding.name: coding.format for coding in codings if isinstance(coding, Date)}
        label = self.label.name if targets else None
        return Rows(found, bad, keep_bytes, columns=names, label=label, numbers=numbers, dates=dates)

    def encoded(
        self, batch: Any, place: Place, targets: bool, unseen: Counter[str] | None = None, others: FoldMeans | None = None
    ) -> dict[str, Array]:
        """One record batch; `others` is given for training rows. `place` says in messages where its rows stand."""
        columns = self.host.encode_batch(batch, unseen, others)
        if targets:
            columns["y"] = self.label.encode(batch)
            self._check_known(batch, columns["y"], place)
        return columns

    def key(self, *parts: Any) -> str:
        """A hash of all that decides what is encoded, and of `parts`."""
        content = json.dumps([VERSION, self.to_dict(), parts], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "host": self.host.to_dict(),
            "device": self.device.written()["table"],
            "label": self.label.to_dict(),
            "schema": dict(self.schema),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Preparation:
        if written.get("version") != VERSION:
            raise DataError(
                f"this preparation has version {written.get('version')!r}, and this flatout reads version {VERSION}"
            )
        host, device = HostPart.from_dict(written["host"]), DevicePart(**written["device"])
        return cls(host, device, Label.from_dict(written["label"]), dict(written["schema"]), tuple(written["notes"]))

    def _check_known(self, batch: Any, y: Array, place: Place) -> None:
        if self.label.classes is not None and (y == UNKNOWN).any():
            row = int((y == UNKNOWN).argmax())
            value = batch.column(batch.schema.names.index(self.label.name))[row].as_py()
            known = ", ".join(self.label.classes[:8])
            raise DataError(
                f"{place.of(row)}: label {self.label.name!r} is {value!r}, which no training row has (known: {known})"
            )


def unseen_notes(unseen: Counter[str], part: str) -> Iterator[str]:
    for name, count in unseen.items():
        if count:
            yield f"{part + ': ' if part else ''}{name!r} has a value unknown from training in {count} rows"
