"""`report --evaluate`: what a run's model says about held-out rows, computed now, as a part of its page."""

from __future__ import annotations

from pathlib import Path

from flatout.base.errors import UsageError
from flatout.base.tree import Code, Node, TextLine
from flatout.reporting.judged.certainty import certainty_nodes
from flatout.reporting.judged.classes import class_nodes
from flatout.reporting.judged.residuals import residual_nodes
from flatout.reporting.judged.worst import worst_nodes
from flatout.runs.held_out import HeldOut, held_out
from flatout.runs.record import Run

_TOKENS = 120


def judged_nodes(run: Run, *, device: str = "auto", cache: Path | None = None) -> list[Node]:
    """The recipe and its data are needed again: what a Python recipe has is run."""
    held = held_out(run, device=device, cache=cache)
    if held.objective == "next_token":
        return _texts(run, held, device)
    words = f"On {len(held):,} rows of the {held.part} part, with the weights that predict uses."
    nodes: list[Node] = [TextLine("How well it does", strong=True), TextLine(words)]
    if not len(held):
        return [*nodes, TextLine("There are no rows.")]
    if held.objective == "regress":
        return [*nodes, *residual_nodes(held)]
    return [*nodes, *class_nodes(held), *certainty_nodes(held), *worst_nodes(held)]


def _texts(run: Run, held: HeldOut, device: str) -> list[Node]:
    if not held.prompts:
        raise UsageError(f"{run.name} was trained on token ids without a tokenizer: there is no text to show")
    made = run.generate(list(held.prompts), tokens=_TOKENS, device=device, say=lambda line: None)
    nodes: list[Node] = [
        TextLine("What it writes", strong=True),
        TextLine(f"Held-out texts of the {held.part} part, cut off and continued by the model. | is where it begins."),
    ]
    return [*nodes, *(Code(f"{prompt}|{text}") for prompt, text in zip(held.prompts, made, strict=True))]
