"""Start several processes on this machine with torchrun, and restart them if one is killed.

torchrun alone would restart after every failure, even after a mistake in the recipe. Here only a process killed from outside
causes a restart: the others end with it, and the same command resumes from the last checkpoint.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Sequence

from flatout.base.errors import MachineError, UsageError
from flatout.fleet.node import SAVED_AND_LEFT, exit_codes

RESTARTS = 10
_BY_TORCHRUN = -signal.SIGTERM  # torchrun sends it to the remaining processes


def run_here(devices: int, arguments: Sequence[str], say: Callable[[str], None], restarts: int = RESTARTS) -> int:
    """Run `python -m flatout` with these arguments in `devices` processes; returns the exit code."""
    check_devices(devices)
    with tempfile.TemporaryDirectory(prefix="flatout-run-") as logs:  # torchrun would leave its own behind after a signal
        return _started(devices, ["--log-dir", logs], arguments, say, restarts)


def _started(devices: int, options: Sequence[str], arguments: Sequence[str], say: Callable[[str], None], restarts: int) -> int:
    torchrun = ["--standalone", *options, "--nproc-per-node", str(devices), "-m", "flatout", *arguments]
    for left in range(restarts, -1, -1):
        codes = exit_codes(torchrun)
        killed = [code for code in codes if code < 0 and code != _BY_TORCHRUN]
        if not codes:
            return 0
        if not killed or not left:
            break
        name = signal.Signals(-killed[0]).name
        say(f"a process was killed by {name}: all {devices} restart from the last checkpoint ({left} more restarts allowed)")
    if all(code in (SAVED_AND_LEFT, _BY_TORCHRUN) for code in codes):
        return SAVED_AND_LEFT
    return next((code for code in codes if 0 < code != SAVED_AND_LEFT), 1)


def check_devices(devices: int) -> None:
    if devices < 1:
        raise UsageError(f"--devices must be 1 or more, got {devices}")
    import torch

    here = torch.accelerator.device_count() if torch.accelerator.is_available() else None
    if here is not None and devices > here:
        raise MachineError(f"--devices {devices}: this machine has only {here} accelerators")
