"""`flatout boost`: diagnose, try, prove, write the receipt and the patch, then run the script at the new speed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flatout.base.html import to_html
from flatout.base.tree import Doc
from flatout.base.units import show_seconds, show_share
from flatout.boost.forks import Forks
from flatout.boost.looking import Looked, look
from flatout.boost.patching import Edit, patch
from flatout.boost.remedies.all import REMEDIES
from flatout.boost.remedies.compile import Compile
from flatout.boost.remedies.no_grad import NoGrad, evaluating_lines
from flatout.boost.remedies.remedy import Offer
from flatout.boost.scratch import NOT_LED
from flatout.boost.search import Search, shown
from flatout.boost.trial import Asked, attempt
from flatout.boost.trying import Trials
from flatout.doctor.account import CHECKPOINT, EVALUATION
from flatout.doctor.script import Script
from flatout.measure.receipt import Receipt
from flatout.plan.receipt_view import receipt_doc

STEPS = 40
PATCH = "changes.patch"
_LONG_S = 60.0
_WORTH_SAYING = 0.02


def in_a_fork(what: str, question: Path) -> int:
    """What `Forks` are for here. Does not return: it ends its process."""
    if what == "look":
        look(question)
    attempt(Asked.from_dict(json.loads(question.read_text())))
    return 1


@dataclass(frozen=True)
class Boosted:
    receipt: Receipt
    patch: str
    folder: Path
    highest_loss: float
    steps: int

    def doc(self, script: Script) -> Doc:
        return _doc(script, self.receipt)


def tried(
    script: Script,
    looked: Looked,
    forks: Forks,
    work: Path,
    out: Path,
    say: Callable[[str], None],
    steps: int = STEPS,
    within_s: float = float("inf"),
    lasts_s: float = float("inf"),
) -> Boosted:
    """Trials in `work`; the receipt, its page and the patch go to `out`."""
    say(f"trials write to a scratch folder and are thrown away; {NOT_LED}")
    if (trial_s := steps * (looked.diagnosis["step_ms"] or 0.0) / 1e3) > _LONG_S:
        say(f"a trial of {steps} steps takes about {show_seconds(trial_s)}, and there are several: --within says when to stop")
    evaluates = [pair for one in looked.offers if one.name == NoGrad.name for pair in evaluating_lines(one.value)]
    trials = Trials(forks, script, work, steps, evaluates=evaluates, device=looked.device, within_s=within_s)
    search = Search(trials, looked.offers, say, looked.computes_s, within_s, lasts_s, trial_s)
    versions = {"torch": str(torch.__version__), "python": sys.version.split()[0]}
    receipt = search.run(looked.machine, versions, time.strftime("%Y-%m-%d %H:%M:%S"))
    text, notes = written(script, looked.offers, search.kept)
    out.mkdir(parents=True, exist_ok=True)
    kept = f"Kept: {shown(search.kept)}." if search.kept else "Nothing was kept: the script runs as it is."
    beside = [*_compiled_later(search.kept), *_beside_steps(looked.diagnosis)]
    receipt = replace(receipt, notes=(kept, *notes, *beside))
    (out / "receipt.json").write_text(json.dumps(receipt.to_dict(), indent=1, default=str))
    (out / "receipt.html").write_text(to_html(_doc(script, receipt), f"flatout boost {script}"))
    if text:
        (out / PATCH).write_text(text, newline="")
    return Boosted(receipt, text, out, search.highest_loss, search.loss_steps)


def _doc(script: Script, receipt: Receipt) -> Doc:
    return receipt_doc(str(script), receipt, plain="as it is", turned="remedies" if len(receipt.settings) != 1 else "remedy")


def _compiled_later(kept: Sequence[tuple[str, Any]]) -> list[str]:
    """Trials end before the first evaluation, mostly."""
    if Compile.name not in dict(kept):
        return []
    return [
        "What the model is called with later is compiled when it comes, an evaluation or other shapes: no trial shows that."
    ]


def _beside_steps(diagnosis: Mapping[str, Any]) -> list[str]:
    """A script gains less than its steps where it does much else."""
    shares = {row["row"]: row["share"] for row in diagnosis["ledger"] if row["row"] in (EVALUATION, CHECKPOINT)}
    if sum(shares.values()) < _WORTH_SAYING:
        return []
    told = " and ".join(f"{row}s ({show_share(share)} of the time)" for row, share in shares.items() if share)
    until = f"until step {diagnosis['steps']:,}"
    return [f"Steps of training are compared: {told} {until} come on top, and the script as a whole may gain less."]


def written(script: Script, offers: Sequence[Offer], kept: Sequence[tuple[str, Any]]) -> tuple[str, list[str]]:
    """What was kept as a patch of the script, and what is to be said of that.

    In plain torch where all of it can be. What can't goes into one line of flatout's, and with it what could be in part."""
    values = dict(kept)
    offers = [offer for offer in offers if offer.name in values]
    plain, failed = patch(edit for offer in offers for edit in offer.edits)
    lacking = [offer.name for offer in offers if not set(offer.edits) - set(failed)]
    text, in_line = _with_a_line(script.file(), offers, values, lacking) or (plain, [])
    notes = []
    if in_line:
        notes.append(f"In the patch as one line, which needs flatout: {_listed(in_line)}.")
    if unwritten := [name for name in lacking if name not in in_line]:
        notes.append(
            "Not in the patch, since it can't be written as an edit of this script: "
            f"{_listed(unwritten)}; `flatout boost` puts it in."
        )
    return text, notes


def _with_a_line(
    file: Path | None, offers: Sequence[Offer], values: Mapping[str, Any], lacking: Sequence[str]
) -> tuple[str, list[str]] | None:
    """The patch, and what is in its line; None where there is nothing to put into one, or no place for it."""
    if file is None or not any(REMEDIES[name].can_be_a_line for name in lacking):
        return None
    wanted = [name for name in values if name in lacking or REMEDIES[name].written_in_part]
    names = [name for name in wanted if REMEDIES[name].can_be_a_line]
    given = ", ".join(f"{name}={_literal(values[name])}" for name in names)
    line = Edit(str(file), 0, statement=f"import flatout\n\nflatout.boost.keep({given})\n")
    text, failed = patch([*(edit for offer in offers if offer.name not in names for edit in offer.edits), line])
    return None if line in failed else (text, names)


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)
