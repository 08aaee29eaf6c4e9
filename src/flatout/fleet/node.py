"""torchrun with an exit code that distinguishes a requested stop from a failure.

torchrun always exits with 1. A cluster that counts failures needs to know the difference: 143 means that the run was asked to
stop and has saved, here or on another machine, and that the same command resumes it.
"""

from __future__ import annotations

from collections.abc import Sequence

SAVED_AND_LEFT = 143


def launch(arguments: Sequence[str]) -> int:
    """Run torchrun with these arguments and any PET_ variables; returns the exit code."""
    codes = exit_codes(arguments)
    if all(code == SAVED_AND_LEFT for code in codes):
        return SAVED_AND_LEFT if codes else 0
    return next((code for code in codes if 0 < code != SAVED_AND_LEFT), 1)


def exit_codes(arguments: Sequence[str]) -> list[int]:
    """Exit codes of the processes that failed, negative for a signal; empty if all succeeded."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(list(arguments))
    except ChildFailedError as failed:
        return [failure.exitcode for failure in failed.failures.values()]
    except SignalException as asked:
        return [128 + int(asked.sigval)]
    return []
