"""A loss gets probabilities, though it applies the softmax or sigmoid itself or needs logarithms."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding

_NEEDS = {"nll_loss": "log-probabilities", "kl_div": "log-probabilities"}
_REMEDY = {
    "nll_loss": "log_softmax instead of softmax, or cross_entropy of the model's plain scores",
    "kl_div": "log_softmax instead of softmax for the first argument",
}


def look(case: Case) -> Iterator[Finding]:
    if case.seen.look is None:
        return
    for line, (loss, kind) in case.seen.look.refused.items():
        needs = _NEEDS.get(loss, "plain scores (logits)")
        yield Finding(
            "refused_by_loss",
            case.step_ms,
            line,
            f"{loss} gets the result of a {kind}, but needs {needs}",
            f"{loss} applies a {kind} itself; with two of them gradients are small and probabilities never get near 1"
            if loss not in _NEEDS
            else f"the input of {loss} was computed by a {kind}; its logarithm is missing, so the loss is no likelihood",
            _REMEDY.get(loss, f"remove the {kind} from the model for training, and apply it only where probabilities are read"),
            gain=1.0,
            about=WRONG,
        )
