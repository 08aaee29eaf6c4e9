"""torchrun, with an exit code that tells a stop that was asked for from a failure.

torchrun itself leaves with 1 whatever happened. A cluster that counts failures has to know: 143 says that the run was asked to
stop and has saved, here or on another machine, and that the same command goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence

SAVED_AND_LEFT = 143


def launch(arguments: Sequence[str]) -> int:
    """Runs torchrun with these arguments, and with PET_ variables where there are some; the code to leave with."""
    codes = exit_codes(arguments)
    if all(code == SAVED_AND_LEFT for code in codes):
        return SAVED_AND_LEFT if codes else 0
    return next((code for code in codes if 0 < code != SAVED_AND_LEFT), 1)


def exit_codes(arguments: Sequence[str]) -> list[int]:
    """Of the processes that failed, below 0 where a signal ended one; none, where all went well."""
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
