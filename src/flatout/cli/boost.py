"""boost: make a script faster without changing it, and prove that it learns the same."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatout.cli.doctor import AsModule, Command, measured_once, misplaced
from flatout.cli.durations import seconds_of
from flatout.cli.machine import Json
from flatout.cli.output import print_json
from flatout.cli.places import cache_folder, quiet_profiler, torchrun_store, world_size

if TYPE_CHECKING:
    from flatout.boost.boosting import Boosted
    from flatout.boost.forks import Forks
    from flatout.doctor.script import Script

_RUN = [sys.executable, "-m", "flatout.cli.boosted_run"]


def boost(
    context: typer.Context,
    command: Command,
    as_module: AsModule = False,
    try_only: Annotated[bool, typer.Option("--try-only", help="Only write the receipt and the patch.")] = False,
    steps: Annotated[int, typer.Option("--steps", min=30, help="Steps per trial.")] = 40,
    within: Annotated[str, typer.Option("--within", help="Time limit for starting new trials.")] = "10 min",
    lasts: Annotated[
        str,
        typer.Option("--lasts", help="How long the script will run at least; extra start-up time must pay off within this."),
    ] = "30 min",
    out: Annotated[Path, typer.Option("--out", help="Folder for the receipt, its HTML page and the patch.")] = Path(
        "flatout-boost"
    ),
    unprotected: Annotated[
        bool,
        typer.Option("--unprotected", help="Run trials even if the kernel can't stop C libraries from writing to your files."),
    ] = False,
    measure: Annotated[bool, typer.Option("--probe/--no-probe", help="Measure this machine first if it never was.")] = True,
    as_json: Json = False,
) -> None:
    """Make a training script faster without changing it. Tries settings, proves that it learns the same, then runs it.

    Example: flatout boost train.py --epochs 1
    """
    from flatout.base.errors import UsageError

    if as_json and not try_only:
        raise UsageError(f"--json and the script both print to stdout: add --try-only, or read {out / 'receipt.json'}")
    within_s, lasts_s = seconds_of("--within", within), seconds_of("--lasts", lasts)
    store = torchrun_store() if world_size() > 1 else None
    quiet_profiler()
    import torch._dynamo  # noqa: F401  optimizers import it anyway, and it takes as long as torch itself

    from flatout.base.tree import to_data, to_text
    from flatout.boost.boosting import PATCH, in_a_fork, protection_here, tried
    from flatout.boost.forks import Forks
    from flatout.boost.looking import NothingSeen, looked_at
    from flatout.boost.pace import Ran
    from flatout.boost.patching import command_for
    from flatout.boost.running import BoostedRun, run_to_its_end, waited_for
    from flatout.cli.boost_ranks import ALONE_ONLY, BoostRanks
    from flatout.doctor.script import Script, check

    script = Script(command[0], tuple(command[1:]), as_module)
    check(script)
    ranks = BoostRanks(store, within_s) if store is not None else None

    def say(line: str) -> None:
        print(f"flatout boost: {line}", file=sys.stderr, flush=True)

    def run(remedies: Sequence[tuple[str, Any]], steps: int, highest: float, work: Path) -> tuple[int, str, BoostedRun]:
        told, ran = str(work / "left.txt"), str(work / "ran.json")
        kept = BoostedRun(script.name, script.arguments, as_module, tuple(remedies), steps, highest, told, ran)
        return *run_to_its_end(_RUN, _plain(script) if ranks is None else None, kept, work, say), kept

    def found_in(work: Path, forks: Forks) -> Boosted | None:
        if measure:
            measured_once("flatout boost")
        protection = protection_here(forks, work, unprotected)
        say(protection.sentence)
        if ranks is not None:
            say(ranks.said)
        say(f"analysing {script}")
        try:
            looked = looked_at(forks, script, cache_folder(), work, protection.kind)
        except NothingSeen as nothing:
            if hint := misplaced(context, script.arguments):
                say(hint)
            say(f"{nothing}; " + ("nothing to try" if try_only else "running the script unmodified"))
            return None
        if ranks is not None:
            looked = replace(looked, offers=tuple(one for one in looked.offers if one.name not in ALONE_ONLY))
        return tried(script, looked, forks, work, out, protection, say, steps, within_s, lasts_s)

    with tempfile.TemporaryDirectory(prefix="flatout-boost-") as folder:
        work = Path(folder)
        if ranks is not None and not ranks.is_first:
            remedies, watched_steps, highest = ranks.told()
            if try_only:
                return
            raise typer.Exit(run(remedies, watched_steps, highest, work)[0] if remedies else waited_for(_plain(script)))
        with ranks.tells() if ranks is not None else nullcontext():
            with Forks(in_a_fork) as forks:
                found = found_in(work, forks)
            if ranks is not None:
                kept_here = found.receipt.settings.items() if found is not None else ()
                ranks.tell(tuple(kept_here), found.steps if found else 0, found.highest_loss if found else 0.0)
        if found is None:
            raise typer.Exit(1 if try_only else waited_for(_plain(script)))
        if as_json:
            print_json(to_data(found.doc(script)))
        else:
            print(to_text(found.doc(script)), file=sys.stdout if try_only else sys.stderr)
        patch = "no patch: the script needs no change"
        if found.patch:
            patch = f"to make it permanent: {command_for(found.patch, out / PATCH)}"
        say(f"receipt: {out / 'receipt.html'} and receipt.json · {patch}")
        if try_only:
            return
        if not found.receipt.settings:
            raise typer.Exit(waited_for(_plain(script)))
        code, why, kept = run(tuple(found.receipt.settings.items()), found.steps, found.highest_loss, work)
        if why:
            (out / "left.txt").write_text(why + "\n")
        elif ranks is None and (ran := Ran.read(Path(kept.ran))) is not None:  # trials don't show what an exchange costs
            assert found.receipt.reference_step_s is not None and found.receipt.gain is not None
            ran.tell(found.receipt.reference_step_s, found.receipt.gain, say)
    raise typer.Exit(code)


def _plain(script: Script) -> list[str]:
    return [sys.executable, *(["-m"] if script.as_module else []), script.name, *script.arguments]
