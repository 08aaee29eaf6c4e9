"""Submit a run at a Ray cluster's dashboard, from a machine that need not be one of its nodes.

The recipe's folder is uploaded, and the job runs the same command inside the cluster.
"""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import MachineError, MissingExtra, UsageError
from flatout.engine.signals import EXIT_CODES, watch_signals

_LOOK_S = 0.5
_STOP_S = "120"  # Ray's default is 3 s, too short for workers to save
_LEFT_HERE = [".git", ".venv", "__pycache__", "runs"]


def submit(
    url: str, recipe: Path, arguments: Sequence[str], runs: Path, write: Callable[[str], None], command: str = "run"
) -> int:
    """Submit `flatout run RECIPE ARGUMENTS --runs RUNS`, or another command, write its output, and return its exit code.

    Ctrl-C asks the job to stop, which saves; a second Ctrl-C stops watching the job.
    """
    if not recipe.is_file():
        raise UsageError(f"recipe not found: {recipe}; `flatout demo` shows a working one")
    if not runs.is_absolute():
        raise UsageError(f"--runs must be a folder that all nodes of the cluster share, such as /shared/runs, got {runs}")
    try:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise MissingExtra("ray", "cluster", "--on ray") from error
    try:
        client = JobSubmissionClient(url)
    except AuthenticationError as error:
        raise MachineError(
            f"{url} requires a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=<file with the cluster's token>"
        ) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise MachineError(f"can't submit jobs at {url}: {_first_line(error)}; is it the cluster's dashboard?") from error
    written = shlex.join(["python", "-m", "flatout", command, recipe.name, *arguments, "--runs", str(runs)])
    try:
        job = client.submit_job(
            entrypoint=f"exec {written}",
            runtime_env={
                "working_dir": str(recipe.resolve().parent),
                "excludes": _LEFT_HERE,
                "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": _STOP_S},
            },
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise MachineError(
            f"{url} rejected the job: {_first_line(error)}. The recipe's folder is uploaded with the job, "
            f"{recipe.resolve().parent}: put large data where the cluster can read it"
        ) from error
    write(f"job {job} at {url}\n")
    return _follow(client, job, write)


def _follow(client: Any, job: str, write: Callable[[str], None]) -> int:
    over = threading.Event()

    async def copy() -> None:
        async for lines in client.tail_job_logs(job):
            write(lines)

    def read() -> None:
        try:
            asyncio.run(copy())
        except Exception as error:  # a failure to show output must not end the job
            write(f"can't follow its output any longer ({_first_line(error)})\n")
        while not client.get_job_info(job).status.is_terminal():
            over.wait(_LOOK_S)
        over.set()

    threading.Thread(target=read, name="flatout-ray-job", daemon=True).start()
    with watch_signals() as stop:
        asked = False
        while not over.wait(_LOOK_S):
            if stop and not asked:
                client.stop_job(job)
                write(f"asking job {job} to save and stop; press Ctrl-C again to stop watching it\n")
                asked = True
    return _code(client.get_job_info(job), stop.signal_name)


def _code(info: Any, signal_name: str | None) -> int:
    if info.status.value == "SUCCEEDED":
        return 0
    if info.status.value == "STOPPED":
        return EXIT_CODES[signal_name or "SIGTERM"]
    return int(info.driver_exit_code or 1)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
