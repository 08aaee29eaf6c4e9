"""doctor: why is this script slow?"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.base.errors import UsageError
from flatout.cli.leaving import leave
from flatout.cli.machine import Json
from flatout.cli.output import check_page_path, print_json, write_page
from flatout.cli.places import cache_folder, process_rank, quiet_profiler, world_size

if TYPE_CHECKING:
    from flatout.doctor.script import Script
    from flatout.doctor.watching import ScriptWatch

Command = Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]...", help="The script and its arguments.")]
AsModule = Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python -m.")]


def doctor(
    context: typer.Context,
    command: Command,
    as_module: AsModule = False,
    steps: Annotated[
        int, typer.Option("--attach-steps", min=9, help="How many steps to observe; a third of them in detail.")
    ] = 30,
    stop: Annotated[bool, typer.Option("--stop", help="End the script after the observed steps.")] = False,
    measure: Annotated[bool, typer.Option("--probe/--no-probe", help="Measure this machine first if it never was.")] = True,
    html: Annotated[Path | None, typer.Option("--html", help="Also write the report to this HTML file.")] = None,
    as_json: Json = False,
) -> None:
    """Find out why a training script is slow. Runs it unmodified and reports the line, the cost and the remedy.

    Example: flatout doctor train.py --epochs 1
    """
    quiet_profiler()  # must be set before torch is imported
    from flatout.doctor.script import Script, check

    script = Script(command[0], tuple(command[1:]), as_module)
    check(script)
    if html is not None:
        check_page_path(html)
        html = html.absolute()  # the script may change the working directory
    if stop and world_size() > 1:
        raise UsageError("--stop would leave the other processes waiting: remove it, or run a single process")
    if measure and process_rank() == 0:
        measured_once("flatout doctor")
    stdout = _only_for_json() if as_json else None
    if process_rank() != 0:  # in a run of several processes, only the first one is observed
        from flatout.doctor.script import run_script

        raise typer.Exit(run_script(script).exit_code)
    exit_code, seen = _diagnosed(script, steps, stop, html, stdout)
    if not seen and (hint := misplaced(context, script.arguments)):
        print(f"flatout doctor: {hint}", file=sys.stderr)
    raise typer.Exit(exit_code)


def misplaced(context: typer.Context, arguments: Sequence[str]) -> str:
    """flatout options given after the script went to the script: a hint for runs that found nothing, or ""."""
    ours = {name for option in context.command.params for name in option.opts if name.startswith("--")}
    if not (found := [one for one in arguments if one.partition("=")[0] in ours]):
        return ""
    return f"{', '.join(found)} went to the script; put options of flatout {context.command.name} before the script"


def _diagnosed(script: Script, steps: int, stop: bool, html: Path | None, stdout: int | None) -> tuple[int, bool]:
    """The exit code, and whether training was observed."""
    from flatout.base.html import to_html
    from flatout.base.tree import to_text
    from flatout.doctor.script import Enough, run_script
    from flatout.doctor.watching import ScriptWatch

    def end() -> None:
        if stop:
            raise Enough

    ours, our_stdout, snapshots = os.getpid(), sys.stdout, Path.cwd()
    watched = ScriptWatch(steps, cache_folder().absolute(), when_done=end)
    watched.start(first_report=sys.stderr)
    try:
        ending = run_script(script)
        if os.getpid() != ours:
            leave(ending.exit_code)  # we are in a process that the script forked
        if ending.error is not None:
            _explain_memory(ending.error, watched, snapshots)
    finally:
        watched.stop()
    found = watched.doc
    if found is None:
        print(f"flatout doctor: {script} ended with exit code {ending.exit_code}; {watched.why_nothing()}", file=sys.stderr)
    with redirect_stdout(our_stdout):  # the script may have replaced sys.stdout
        if stdout is not None:
            os.dup2(stdout, 1)
            print_json(watched.to_dict())
            _only_for_json()  # what the script prints at exit is not part of the JSON
        elif found is not None:
            print(f"\n{to_text(found)}", flush=True)  # at exit Python flushes sys.stdout, which may be replaced
    if html is not None and found is not None:
        write_page(html, to_html(found, f"flatout doctor {script}"))
    return ending.exit_code, found is not None


def _explain_memory(error: BaseException, watched: ScriptWatch, folder: Path) -> None:
    from flatout.doctor.memory import explained, held, keep_snapshot
    from flatout.machine.out_of_memory import is_out_of_memory

    if is_out_of_memory(error):
        snapshot = keep_snapshot(folder / f"flatout-out-of-memory-{int(time.time())}.pickle")
        for line in explained(error, held(watched.observer.optimizers(), watched.observer.seen.device), snapshot):
            print(line, file=sys.stderr)


def measured_once(command: str) -> None:
    """Measure in a separate process, so that the script finds the device unused."""
    from flatout.base.child import Child, Printed
    from flatout.machine.facts import fingerprint, read_facts
    from flatout.machine.others_work import busy_now

    if (busy := busy_now()) is not None:
        print(f"{command}: {busy}", file=sys.stderr, flush=True)
    folder, key = cache_folder(), fingerprint(read_facts())
    if any(folder.glob(f"ceilings-{key}-*.json")):
        return
    print(f"{command}: measuring this machine (only once) ...", file=sys.stderr, flush=True)
    with Child([sys.executable, "-m", "flatout", "probe", "--quick"], output=Printed.DROPPED, errors=Printed.SHOWN) as probe:
        probe.wait()


def _only_for_json() -> int:
    """Redirect the script's output to stderr, so that stdout has only the JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept
