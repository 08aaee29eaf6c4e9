"""Makes the patch that writes the kept remedies into the script. The patched script is tested before it is offered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.boost.patching import Changes, Edit, edited
from flatout.boost.remedies.all import REMEDIES
from flatout.boost.remedies.remedy import Offer
from flatout.doctor.script import Script

Fails = Callable[[Sequence[tuple[str, str]]], str]  # gets patched files and texts; returns why the script fails, or ""


@dataclass(frozen=True)
class _Draft:
    changes: Changes
    in_line: Sequence[str] = ()  # remedies in a call of flatout.boost.keep
    unwritten: Sequence[str] = ()

    def notes(self) -> Iterator[str]:
        if self.in_line:
            yield f"In the patch as a call of flatout.boost.keep, which needs flatout: {_listed(self.in_line)}."
        if self.unwritten:
            yield (
                f"Not in the patch, because it can't be written as an edit of this script: {_listed(self.unwritten)}. "
                "Use `flatout boost` to apply it."
            )


def written(
    script: Script, offers: Sequence[Offer], kept: Sequence[tuple[str, Any]], fails: Fails
) -> tuple[Changes, list[str]]:
    """The patched files and notes for the receipt, from the first draft that trains as proven. No files if none does."""
    refused: list[str] = []
    for draft in _drafts(script, offers, dict(kept)):
        if not draft.changes:
            return {}, [*refused, *draft.notes()]
        why = fails([(str(path), after) for path, (_, after) in draft.changes.items()])
        if not why:
            return draft.changes, [*refused, *draft.notes()]
        refused = [f"No patch in plain torch: the patched script failed its test: {why}."]
    if refused:
        refused = [f"No patch: the patched script failed its test: {why}. Use `flatout boost` to apply the remedies."]
    return {}, refused


def _drafts(script: Script, offers: Sequence[Offer], values: Mapping[str, Any]) -> Iterator[_Draft]:
    """First plain torch where possible, with a call of flatout.boost.keep for the rest and for remedies that plain torch covers
    only in part. Then all remedies in that call, as in the trials."""
    offers = [offer for offer in offers if offer.name in values]
    if not offers:
        return
    plain, failed = edited(edit for offer in offers for edit in offer.edits)
    lacking = [offer.name for offer in offers if not set(offer.edits) - set(failed)]
    mixed = _with_a_line(script.file(), offers, values, lacking)
    yield mixed or _Draft(plain, unwritten=lacking)
    everything = _with_a_line(script.file(), offers, values, list(values))
    if everything is not None and everything != mixed:
        yield everything


def _with_a_line(
    file: Path | None, offers: Sequence[Offer], values: Mapping[str, Any], lacking: Sequence[str]
) -> _Draft | None:
    """None if no remedy can go into the call, or the script has no place for it."""
    if file is None or not any(REMEDIES[name].can_be_a_line for name in lacking):
        return None
    wanted = [name for name in values if name in lacking or REMEDIES[name].written_in_part]
    names = [name for name in wanted if REMEDIES[name].can_be_a_line]
    given = ", ".join(f"{name}={_literal(values[name])}" for name in names)
    line = Edit(str(file), 0, statement=f"import flatout\n\nflatout.boost.keep({given})\n")
    changes, failed = edited([*(edit for offer in offers if offer.name not in names for edit in offer.edits), line])
    return None if line in failed else _Draft(changes, names, [name for name in lacking if name not in names])


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)
