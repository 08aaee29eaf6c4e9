"""What ended the run: one key of the store, and the first to write it wins, so that all leave for the same reason.

A rank that fails or dies is soon followed by others whose exchanges break, or who left because of it. Those are echoes.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from flatout.world.watch.news import Failed, Lost
from flatout.world.watch.wire import Wire

CAUSE_KEY = "cause"


def publish_cause(wire: Wire, cause: Failed | Lost) -> Failed | Lost:
    """The first cause: this one, or what another rank wrote before."""
    return read_cause(wire.first(CAUSE_KEY, json.dumps({"kind": cause.kind, **asdict(cause)}).encode()))


def read_cause(data: bytes) -> Failed | Lost:
    fields = json.loads(data)
    return Failed(**fields) if fields.pop("kind") == Failed.kind else Lost(**fields)
