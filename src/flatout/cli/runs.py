"""runs, runs show, runs compare, runs check: what is in the folder of runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatout.base.errors import UsageError
from flatout.cli.cost import cost
from flatout.cli.output import check_page_path, print_json, write_page
from flatout.cli.track import track

if TYPE_CHECKING:
    from flatout.base.tree import Doc
    from flatout.tuning.study.folder import StudyFolder

app = typer.Typer(
    help="List runs; show one; compare some; check the files of one.\n\n"
    "Example: flatout runs --sort accuracy --show lr,batch --where 'lr>1e-3'",
    invoke_without_command=True,
    rich_markup_mode=None,
)

Runs = Annotated[Path, typer.Option("--runs", help="The folder with all runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunName = Annotated[str, typer.Argument(help="The name of a run, its folder, or `last`.", show_default=False)]
RunOrStudy = Annotated[
    str, typer.Argument(help="The name of a run or a study, its folder, `last`, or `last-study`.", show_default=False)
]
_LAST_STUDY = "last-study"


@app.callback()
def list_runs(
    context: typer.Context,
    runs: Runs = Path("runs"),
    sort: Annotated[
        str | None,
        typer.Option("--sort", help="Best first by a metric (accuracy), or by a key such as lr.", show_default=False),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    show: Annotated[
        str, typer.Option("--show", help="Columns: keys of recipes, settings, metrics, such as lr,batch.", show_default=False)
    ] = "",
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="Only runs such as 'lr>1e-3' or status=finished. May be repeated.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the runs, oldest first, then the studies. With --sort, --show or --where: the runs asked for, and in which keys they
    differ."""
    if context.invoked_subcommand is not None:
        return
    from flatout.base.tree import to_data, to_text
    from flatout.store.run_table import runs_table

    if sort is None and not show and not where and not reverse:
        doc = _runs_and_studies(runs)
    else:
        shown = [name.strip() for name in show.split(",") if name.strip()]
        doc = runs_table(runs, sort, shown, where or [], reverse=reverse)
    print_json(to_data(doc)) if as_json else print(to_text(doc))


def _runs_and_studies(runs: Path) -> Doc:
    from flatout.base.tree import Doc, TextLine
    from flatout.store.compare import runs_doc
    from flatout.tuning.views.listed import studies_doc

    of_runs, of_studies = runs_doc(runs), studies_doc(runs)
    return of_runs if of_studies is None else Doc((*of_runs.nodes, TextLine(), *of_studies.nodes))


@app.command("show")
def show(
    run: RunOrStudy,
    runs: Runs = Path("runs"),
    as_json: Json = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Of a study: write its page to this file.", show_default=False)
    ] = None,
    optuna: Annotated[
        Path | None,
        typer.Option("--optuna", help="Of a study: write its trials as a journal for optuna-dashboard.", show_default=False),
    ] = None,
) -> None:
    """Show a run's recipe, its settings with reasons, and its results; or a study's winner and its trials.

    Example: flatout runs show last
    """
    from flatout.tuning.study.folder import find_study, is_study

    if run == _LAST_STUDY:
        _show_study(find_study(runs, "last"), as_json, html, optuna)
    elif run != "last" and (is_study(runs / run) or is_study(Path(run))):
        _show_study(find_study(runs, run), as_json, html, optuna)
    elif html is not None or optuna is not None:
        option = "--html" if html is not None else "--optuna"
        raise UsageError(
            f"{option} needs a study, and {run} is none; {_LAST_STUDY} is the newest. A run's plan: flatout explain"
        )
    else:
        _show_run(run, runs, as_json)


def _show_study(study: StudyFolder, as_json: bool, html: Path | None, optuna: Path | None) -> None:
    from flatout.base.tree import to_data, to_text
    from flatout.tuning.views.doc import study_doc

    for option, path in (("--html", html), ("--optuna", optuna)):
        if path is not None:
            check_page_path(path, option)
    doc = study_doc(study)
    if html is not None:
        from flatout.base.html import to_html

        write_page(html, to_html(doc, f"Study {study.name}"))
        _note(f"wrote {html}")
    if optuna is not None:
        from flatout.tuning.views.journal import write_journal

        count = write_journal(study, optuna)
        _note(f"wrote {count} trials to {optuna}: optuna-dashboard {optuna}")
    print_json(to_data(doc)) if as_json else print(to_text(doc))


def _note(line: str) -> None:
    print(f"note: {line}", file=sys.stderr, flush=True)


def _show_run(run: str, runs: Path, as_json: bool) -> None:
    from flatout.base.tree import Doc, to_data, to_text
    from flatout.cli.ledger import ledger_doc
    from flatout.runs import verbs
    from flatout.runs.energy_view import energy_nodes

    found = verbs.load(run, runs=runs)
    result = found.result
    if as_json:
        about = {
            **found.folder.about,
            "verified": found.folder.manifest.exists,
            "status": found.folder.status,
            "recipe": found.folder.read("recipe.json"),
        }
        print_json({**about, "plan": to_data(found.explain_doc()), "result": result})
        return
    print(f"{found.name}: {found.folder.status}{': ' + result['reason'] if 'reason' in result else ''}\n")
    for key, value in found.folder.read("recipe.json").items():
        if value not in ({}, [], ()):
            print(_shortened(f"  {key}: {_written(value)}"))
    if not found.folder.manifest.exists:
        print("  (unverified: started by an older flatout, which kept no checksums of these files)")
    print(f"\n{found.explain()}\n")
    if "ledger" in result:
        print(to_text(ledger_doc(result)) + "\n")
        if used := energy_nodes(result, found.plan.prediction.idle_w):
            print(to_text(Doc(tuple(used))) + "\n")
        for name, value in result["metrics"].items():
            print(f"  {name}: {value}")


app.command("cost")(cost)
app.command("track")(track)


@app.command("compare")
def compare(
    names: Annotated[list[str], typer.Argument(help="Two runs or more: names, folders, or `last`.", show_default=False)],
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Compare runs: recipe, settings and results.

    Example: flatout runs compare digits-1 last
    """
    if len(names) < 2:
        raise UsageError(f"runs compare needs two runs or more, got {names[0]}: flatout runs compare {names[0]} last")
    from flatout.base.tree import Doc, TextLine, to_data, to_text
    from flatout.reporting.energies import energies_nodes
    from flatout.reporting.story import read_story
    from flatout.store.compare import compare_doc
    from flatout.store.run_folder import find

    folders = [find(runs, name) for name in names]
    doc = compare_doc(*folders)
    if used := energies_nodes([read_story(folder) for folder in folders]):
        doc = Doc((*doc.nodes, TextLine(), *used))
    print_json(to_data(doc)) if as_json else print(to_text(doc))


@app.command("check")
def check(
    run: RunName,
    runs: Runs = Path("runs"),
    accept: Annotated[bool, typer.Option("--accept", help="Accept the files as they are now, except checkpoints.")] = False,
    as_json: Json = False,
) -> None:
    """Read every file of a run and compare its checksum. Exits with 1 if a file is damaged.

    Example: flatout runs check last
    """
    from flatout.store.run_folder import find, find_to_mend

    if accept:
        folder = find_to_mend(runs, run)
        with folder.locked():
            folder.accept()
    folder = find(runs, run)
    damage = folder.check()
    if as_json:
        print_json({"name": folder.name, "damaged": damage})
    else:
        print("\n".join(f"{name}: {why}" for name, why in damage.items()) or f"{folder.name}: all files match their checksums")
    if damage:
        raise typer.Exit(1)


def _written(value: Any) -> str:
    """On one line, as in a recipe file."""
    import yaml

    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def _shortened(line: str) -> str:
    """What was fitted on data in memory is a part of the recipe, and long."""
    most = 110
    return line if len(line) <= most else f"{line[: most - 30]}... (the rest: with --json)"
