"""`flatout`: all commands, and how errors are shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flatout import __version__
from flatout.base.errors import FlatoutError, shortened
from flatout.cli import (
    boost,
    completion,
    data,
    doctor,
    drill,
    finding_out,
    fleet,
    gate,
    generate,
    load,
    machine,
    packages,
    pipeline,
    receipt,
    report,
    runs,
    serve,
    shrink,
    training,
    tune,
    watch,
)
from flatout.cli.here import show_next_steps
from flatout.cli.leaving import Ended, deaf_to_signals, ends_in_order, leave
from flatout.cli.places import is_completing
from flatout.cli.slips import Commands, GenerateCommand, RecipeCommand

_AS_IT_WAS = "nothing that was saved before has changed"

app = typer.Typer(
    name="flatout",
    cls=Commands,
    help="Trains PyTorch models as fast as the machine allows, and proves it.\n\nExample: flatout demo",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("demo")(training.demo)
app.command("new")(data.new)
app.command("data", cls=RecipeCommand)(data.data)
app.command("run", cls=RecipeCommand)(training.run)
app.command("find-lr", cls=RecipeCommand)(finding_out.find_lr)
app.command("summary", cls=RecipeCommand)(finding_out.summary)
app.command("overfit", cls=RecipeCommand)(finding_out.overfit)
app.command("tune", cls=RecipeCommand)(tune.tune)
app.command("explain", cls=RecipeCommand)(training.explain)
app.command("receipt")(receipt.receipt)
app.command("report")(report.report)
app.command("watch")(watch.watch)
app.command("evaluate")(training.evaluate)
app.command("predict")(training.predict)
app.command("generate", cls=GenerateCommand)(generate.generate)
app.command("export")(packages.export)
app.command("why")(packages.why)
app.command("shrink")(shrink.shrink)
app.command("gate")(gate.gate)
app.command("pipeline")(pipeline.pipeline)
app.command("serve")(serve.serve)
app.command("load")(load.load)
app.command("completion")(completion.completion)
app.command("probe")(machine.probe)
app.command("env")(machine.env)
app.command("doctor", context_settings={"allow_interspersed_args": False})(doctor.doctor)
app.command("boost", context_settings={"allow_interspersed_args": False})(boost.boost)
app.command("drill", cls=RecipeCommand)(drill.drill)
app.add_typer(runs.app, name="runs")
app.add_typer(fleet.app, name="fleet")


def _version(asked: bool) -> None:
    if asked:
        print(f"flatout {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        show_next_steps(Path())


def main(is_program: bool | None = None) -> None:
    """Exit codes: 0 done, 1 failed, 2 usage, 129 SIGHUP, 130 SIGINT, 143 SIGTERM. A run saves before it exits with these."""
    if is_program is None:  # otherwise the caller's process continues after us
        is_program = sys._getframe(1).f_globals.get("__name__") == "__main__"
    try:
        with ends_in_order():
            _run()
    except SystemExit as ended:
        if is_program:
            deaf_to_signals()
        if _has_met_others() and isinstance(ended.code, int | None):
            leave(ended.code or 0)
        raise
    except KeyboardInterrupt:  # a second Ctrl-C while the first was handled
        if is_program:
            deaf_to_signals()
        sys.exit(130)


def _has_met_others() -> bool:
    joining = sys.modules.get("flatout.world.joining")  # loaded, with torch, in every process that joined others
    place = joining.own_place() if joining is not None else None
    return place is not None and place.size > 1


def _run() -> None:
    if is_completing():
        completion.prepare_answers()
    try:
        app(prog_name=completion.PROGRAM)
    except FlatoutError as error:
        print(f"flatout: {shortened(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Ended as ended:
        print(f"flatout: {ended.signal_name}: ended; {_AS_IT_WAS}", file=sys.stderr)
        raise
    except SystemExit as ended:
        if ended.code == 130:  # typer's exit code for Ctrl-C; a run that saved raises an error above instead
            print(f"flatout: interrupted; {_AS_IT_WAS}", file=sys.stderr)
        raise
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
