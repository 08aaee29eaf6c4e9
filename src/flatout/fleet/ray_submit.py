"""A run handed in at a Ray cluster's dashboard, from a machine that need not be a node of it.

The folder of the recipe goes along, and the job runs the same command there, on the cluster that it is in.
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
_STOP_S = "120"  # Ray would kill the job after 3 s, and its workers save first
_LEFT_HERE = [".git", ".venv", "__pycache__", "runs"]


def submit(url: str, recipe: Path, arguments: Sequence[str], runs: Path, write: Callable[[str], None]) -> int:
    """Hands in `flatout run RECIPE ARGUMENTS --runs RUNS`, writes what it prints, and gives the code that it left with.

    Ctrl-C asks the job to stop, which saves; a second one leaves it to itself.
    """
    if not recipe.is_file():
        raise UsageError(f"there is no recipe at {recipe}; `flatout demo` shows one that runs")
    if not runs.is_absolute():
        raise UsageError(f"--runs is a place that all nodes of the cluster see, such as --runs /shared/runs, got {runs}")
    try:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise MissingExtra("ray", "cluster", "--on ray") from error
    try:
        client = JobSubmissionClient(url)
    except AuthenticationError as error:
        raise MachineError(
            f"{url} asks for a token: RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH=the file that holds the cluster's"
        ) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise MachineError(f"nobody takes jobs at {url}: {_first_line(error)}; is it the cluster's dashboard?") from error
    command = shlex.join(["python", "-m", "flatout", "run", recipe.name, *arguments, "--runs", str(runs)])
    try:
        job = client.submit_job(
            entrypoint=f"exec {command}",
            runtime_env={
                "working_dir": str(recipe.resolve().parent),
                "excludes": _LEFT_HERE,
                "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": _STOP_S},
            },
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise MachineError(
            f"{url} did not take the job: {_first_line(error)}. The folder of the recipe goes along, "
            f"{recipe.resolve().parent}: data is to be where the cluster sees it"
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
        except Exception as error:  # what is shown can't end the job
            write(f"its output can't be followed any more ({_first_line(error)})\n")
        while not client.get_job_info(job).status.is_terminal():
            over.wait(_LOOK_S)
        over.set()

    threading.Thread(target=read, name="flatout-ray-job", daemon=True).start()
    with watch_signals() as stop:
        asked = False
        while not over.wait(_LOOK_S):
            if stop and not asked:
                client.stop_job(job)
                write(f"job {job} is asked to save and to stop; Ctrl-C again leaves it to itself\n")
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
