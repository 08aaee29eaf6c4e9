"""`flatout boost`: diagnoses a script, tries and proves remedies, writes the receipt and the patch, then runs the script."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flatout.base.exits import exit_words
from flatout.base.html import to_html
from flatout.base.tree import Doc
from flatout.base.units import show_seconds, show_share
from flatout.boost.forks import Forks
from flatout.boost.looking import ScriptLook, look
from flatout.boost.patching import difference
from flatout.boost.protection import protecting
from flatout.boost.protection.protecting import Protection
from flatout.boost.remedies.compile import CompileRemedy
from flatout.boost.remedies.no_grad import NoGrad, evaluating_lines
from flatout.boost.search import RemedySearch, shown
from flatout.boost.trial import TrialRequest, attempt
from flatout.boost.trying import Trials
from flatout.boost.writing import written
from flatout.doctor.account import CHECKPOINT, EVALUATION
from flatout.doctor.script import Script
from flatout.measure.receipt import Receipt
from flatout.plan.receipt_view import receipt_doc

STEPS = 40
PATCH = "changes.patch"
_LONG_S = 60.0
_PROTECT_S = 30.0
_WORTH_SAYING = 0.02


def in_a_fork(what: str, question: Path) -> int:
    """The work of a forked process: test a protection, observe the script, or run a trial. Ends the process."""
    if what == "protect":
        asked = json.loads(question.read_text())
        Path(asked["answer"]).write_text(protecting.attempt(asked["kind"], question.parent))
        os._exit(0)
    if what == "look":
        look(question)
    attempt(TrialRequest.from_dict(json.loads(question.read_text())))
    return 1


def protection_here(forks: Forks, folder: Path, unprotected: bool = False) -> Protection:
    """The best protection on this machine. MachineError if there is none and `unprotected` is False."""

    def why_not(kind: str) -> str:
        question, answer = folder / f"{kind}.json", folder / f"{kind}.txt"
        question.write_text(json.dumps({"kind": kind, "answer": str(answer)}))
        code = forks.run("protect", question, folder / f"{kind}.words", _PROTECT_S)
        protecting.remove(folder / f"try-{kind}")
        if protecting.leaked(folder):
            return "a test write reached a real file"
        return answer.read_text() if code == 0 and answer.exists() else f"it {exit_words(code, limit_s=_PROTECT_S)}"

    return protecting.choose(why_not, unprotected)


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
    looked: ScriptLook,
    forks: Forks,
    work: Path,
    out: Path,
    protection: Protection,
    say: Callable[[str], None],
    steps: int = STEPS,
    within_s: float = float("inf"),
    lasts_s: float = float("inf"),
) -> Boosted:
    """Runs trials in `work`; writes the receipt, its HTML page and the patch to `out`."""
    if (trial_s := steps * (looked.diagnosis["step_ms"] or 0.0) / 1e3) > _LONG_S:
        say(f"each trial of {steps} steps takes about {show_seconds(trial_s)}; --within limits the total time")
    evaluates = [pair for one in looked.offers if one.name == NoGrad.name for pair in evaluating_lines(one.value)]
    trials = Trials(forks, script, work, steps, protection.kind, evaluates=evaluates, device=looked.device, within_s=within_s)
    search = RemedySearch(trials, looked.offers, say, looked.computes_s, within_s, lasts_s, trial_s)
    versions = {"torch": str(torch.__version__), "python": sys.version.split()[0]}
    receipt = search.run(looked.machine, versions, time.strftime("%Y-%m-%d %H:%M:%S"))
    say("testing the patch: running the patched script for one trial") if search.kept else None
    changes, notes = written(script, looked.offers, search.kept, partial(search.proof.of_patch, search.kept))
    text = difference(changes)
    out.mkdir(parents=True, exist_ok=True)
    kept = f"Kept: {shown(search.kept)}." if search.kept else "No remedy was kept: the script runs unmodified."
    beside = [*_compiled_later(search.kept), *_beside_steps(looked.diagnosis)]
    receipt = replace(receipt, notes=(kept, *notes, *beside, f"Protection ({protection.kind}): {protection.sentence}."))
    (out / "receipt.json").write_text(json.dumps(receipt.to_dict(), indent=1, default=str))
    (out / "receipt.html").write_text(to_html(_doc(script, receipt), f"flatout boost {script}"))
    if text:
        (out / PATCH).write_text(text, newline="")
    return Boosted(receipt, text, out, search.highest_loss, search.loss_steps)


def _doc(script: Script, receipt: Receipt) -> Doc:
    return receipt_doc(str(script), receipt, plain="unmodified", turned="remedies" if len(receipt.settings) != 1 else "remedy")


def _compiled_later(kept: Sequence[tuple[str, Any]]) -> list[str]:
    """Most trials end before the first evaluation."""
    if CompileRemedy.name not in dict(kept):
        return []
    return ["compile: evaluations and new input shapes are compiled at their first use, which takes time that no trial shows."]


def _beside_steps(diagnosis: Mapping[str, Any]) -> list[str]:
    """A note if the script spends much time outside its steps and so gains less than they do."""
    shares = {row["row"]: row["share"] for row in diagnosis["ledger"] if row["row"] in (EVALUATION, CHECKPOINT)}
    if sum(shares.values()) < _WORTH_SAYING:
        return []
    told = " and ".join(f"{row}s ({show_share(share)} of the time)" for row, share in shares.items() if share)
    until = f"until step {diagnosis['steps']:,}"
    return [f"The speed-up is of training steps: {told} {until} are not included, so the whole script may gain less."]
