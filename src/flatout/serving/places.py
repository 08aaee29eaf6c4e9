"""On which devices a server computes: known before a process is started."""

from __future__ import annotations

from flatout.base.errors import UsageError
from flatout.machine.device import all_devices


def devices_named(asked: str) -> tuple[str, ...]:
    """As `all_devices`, each of them once."""
    names = all_devices(asked)
    if len(set(names)) < len(names):
        raise UsageError(f"a device is named twice in {asked!r}; --executors 2 runs two processes on each")
    return names
