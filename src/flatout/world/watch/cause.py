"""The first cause that ended the run: one key in the store. The first writer wins, so that all ranks report the same reason.

After a rank fails or dies, others soon fail because their exchanges break. Those later errors are only consequences.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from flatout.world.watch.news import Failed, Lost
from flatout.world.watch.wire import Wire

CAUSE_KEY = "cause"


def publish_cause(wire: Wire, cause: Failed | Lost) -> Failed | Lost:
    """The first cause: this one, or the one that another rank wrote before."""
    return read_cause(wire.first(CAUSE_KEY, json.dumps({"kind": cause.kind, **asdict(cause)}).encode()))


def read_cause(data: bytes) -> Failed | Lost:
    fields = json.loads(data)
    return Failed(**fields) if fields.pop("kind") == Failed.kind else Lost(**fields)
