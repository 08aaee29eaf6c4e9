"""The patch: what was kept, written into the script. It is run before it is offered."""

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

Fails = Callable[[Sequence[tuple[str, str]]], str]  # given files and their texts: why the script fails with them, or ""


@dataclass(frozen=True)
class _Draft:
    changes: Changes
    in_line: Sequence[str] = ()  # remedies that are one line of flatout's
    unwritten: Sequence[str] = ()

    def notes(self) -> Iterator[str]:
        if self.in_line:
            yield f"In the patch as one line, which needs flatout: {_listed(self.in_line)}."
        if self.unwritten:
            yield (
                "Not in the patch, since it can't be written as an edit of this script: "
                f"{_listed(self.unwritten)}; `flatout boost` puts it in."
            )


def written(
    script: Script, offers: Sequence[Offer], kept: Sequence[tuple[str, Any]], fails: Fails
) -> tuple[Changes, list[str]]:
    """The files as the patch leaves them, and what is to be said of it: the first draft that runs and learns as was proven.
    No files where none does."""
    refused: list[str] = []
    for draft in _drafts(script, offers, dict(kept)):
        if not draft.changes:
            return {}, [*refused, *draft.notes()]
        why = fails([(str(path), after) for path, (_, after) in draft.changes.items()])
        if not why:
            return draft.changes, [*refused, *draft.notes()]
        refused = [f"No patch is offered in plain torch: the patched script was run, and {why}."]
    if refused:
        refused = [f"No patch is offered: the patched script was run, and {why}. `flatout boost` puts the remedies in."]
    return {}, refused


def _drafts(script: Script, offers: Sequence[Offer], values: Mapping[str, Any]) -> Iterator[_Draft]:
    """In plain torch where all of it can be; what can't goes into one line of flatout's, and with it what could be in part.
    Then all in that line: it is what was tried."""
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
    """None where there is nothing to put into a line, or no place for it."""
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
