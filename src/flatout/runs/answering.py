"""The one thing that a quiet run says: the answer to Ctrl-C while settings are tried."""

from __future__ import annotations

import sys

from flatout.base.events import Event
from flatout.plan.trials.reports import CTRL_C


def answer_to_ctrl_c(event: Event) -> None:
    """Answers a user's Ctrl-C, and says nothing else."""
    if event["kind"] == "planning" and event["line"].startswith(CTRL_C):
        print(event["line"], file=sys.stderr, flush=True)
