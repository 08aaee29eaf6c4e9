"""Findings as lines for people and fields for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from flatout.base.tree import Doc, Fields, Node, TextLine
from flatout.explore.guard.derivable import ColumnSuggestion, as_recipe
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.of_recipe import report_of
from flatout.recipe.schema import Recipe

_WIDTH, _MARGIN = 100, 8


def finding_nodes(findings: Sequence[GuardFinding]) -> Iterator[Node]:
    """Faults of the data, under the name of the guard that switches the check off."""
    yield Fields({"findings": [asdict(one) for one in findings]})
    for one in findings:
        words, margin = f"{one.guard}: {one.words}", f"{'found':<{_MARGIN}}"
        yield from map(TextLine, textwrap.wrap(words, _WIDTH, initial_indent=margin, subsequent_indent=" " * _MARGIN))


def suggestion_nodes(suggested: Sequence[ColumnSuggestion]) -> Iterator[Node]:
    """Derived columns, as the recipe would write them."""
    yield Fields({"suggested": [asdict(one) for one in suggested]})
    if suggested:
        columns, measured = as_recipe(suggested)
        written = ", ".join(f'{name}: "{expression}"' for name, expression in columns.items())
        words, margin = f"derive: {{{written}}} is {measured}", f"{'try':<{_MARGIN}}"
        yield from map(TextLine, textwrap.wrap(words, _WIDTH, initial_indent=margin, subsequent_indent=" " * _MARGIN))


def with_findings(plan: Doc, recipe: Recipe) -> Doc:
    """The plan, and after it the faults of the recipe's table, if there are any."""
    findings = report_of(recipe.data, recipe.folder).findings
    return Doc((*plan.nodes, TextLine(), *finding_nodes(findings))) if findings else plan
