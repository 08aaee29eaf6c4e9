"""run, explain, evaluate, predict and demo."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatout.base.errors import NotARun, UsageError
from flatout.cli import packages
from flatout.cli.output import check_page_path, print_json, write_page
from flatout.cli.places import allow_deterministic_cuda, cache_folder, price_per_hour, quiet_torch
from flatout.cli.track import Track
from flatout.cli.watch import check_page_is_possible, live_page

if TYPE_CHECKING:
    from flatout.base.events import Observer
    from flatout.base.tree import Doc
    from flatout.recipe.schema import Recipe
    from flatout.runs.verbs import Run

RecipePath = Annotated[Path, typer.Argument(help="Recipe file: .yaml, or .py that defines `recipe`.", show_default=False)]
RecipeOrRun = Annotated[
    Path,
    typer.Argument(
        help="Recipe file (.yaml, or .py that defines `recipe`), or a run: its name, its folder, or `last`.", show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value to change the recipe, such as lr=3e-4 or data.window=64.", show_default=False),
]
Runs = Annotated[Path, typer.Option("--runs", help="The folder with all runs.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Fix a setting: --set precision=fp32. May be repeated.")]
Offs = Annotated[list[str] | None, typer.Option("--off", help="Turn a setting off: --off compile. May be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunName = Annotated[str, typer.Argument(help="The name of a run, its folder, or `last`.", show_default=False)]
Planning = Annotated[
    str, typer.Option("--planning", help="Time limit for trying out settings before training, such as '2 min'; or off.")
]
Mesh = Annotated[
    str | None,
    typer.Option("--mesh", help="How to split the work: data=2,tensor=2, shard=4, pipeline=2, context=2. Default: what fits."),
]
On = Annotated[str | None, typer.Option("--on", help="ray: train on the cluster at RAY_ADDRESS, or on a local one.")]
RayWorkers = Annotated[
    str, typer.Option("--workers", help="Processes with --on ray, such as 8; 2:8 starts with fewer if there are no more.")
]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, ...")]

NEXT_STEPS = {
    "flatout run {recipe} lr=1e-3 budget='20 epochs'{runs}": "change any key from the command line",
    "flatout runs compare {run} last{runs}": "compare two runs",
    "flatout explain {recipe} --json": "the plan as JSON",
    "flatout drill {recipe} --kills 5": "kill it at random, resume, compare every bit",
    "flatout probe": "how fast this machine is, and what is misconfigured",
}


def run(
    recipe: RecipePath,
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    sets: Sets = None,
    offs: Offs = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start a new run instead of resuming an unfinished one.")] = False,
    planning: Planning = "5 min",
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
    devices: Annotated[
        int | None, typer.Option("--devices", help="Train with this many processes on this machine, one per device.")
    ] = None,
    mesh: Mesh = None,
    on: On = None,
    workers: RayWorkers = "1",
    page: Annotated[bool, typer.Option("--page", help="Show the run in a browser while it trains.")] = False,
    track: Track = None,
) -> None:
    """Train a recipe. The same command resumes an unfinished run. Under torchrun, all processes train together.

    Example: flatout run mine.yaml lr=1e-3 budget='20 epochs'

    Example: flatout run mine.yaml --devices 4 --page
    """
    from flatout.cli.progress import progress_view
    from flatout.runs import verbs
    from flatout.tracking.asked import parse_tracks
    from flatout.tracking.start import tracking
    from flatout.world.joining import is_first, is_launched

    pins = [*(sets or []), *([] if mesh is None else [f"mesh={mesh}"])]
    if page:
        check_page_is_possible(on)
    if on is not None:
        from flatout.cli.elsewhere import handed_in, run_on_ray

        given = [*(overrides or []), *(word for pin in pins for word in ("--set", pin))]
        given += [word for name in offs or [] for word in ("--off", name)]
        given += [*(["--fresh"] if fresh else []), *(["--json"] if as_json else []), *(["--quiet"] if quiet else [])]
        if (code := handed_in(on, recipe, [*given, "--planning", planning], workers, runs)) is not None:
            raise typer.Exit(code)
        work = partial(in_worker, recipe.absolute(), overrides, pins, offs, runs.absolute(), fresh, planning)
        done = run_on_ray(work, read_asked(recipe, overrides, pins, offs), workers, runs, quiet)
        print_json(done.result) if as_json else _print_outcome(done)
        return
    asked = read_asked(recipe, overrides, pins, offs)
    if devices is not None and not is_launched():
        raise typer.Exit(_run_here(devices))
    speaks = is_first()
    tracks = parse_tracks((*asked.track, *(track or ())))
    with (
        progress_view(quiet or not speaks) as shown,
        live_page(runs) if page and speaks else nullcontext(()) as told,
        tracking(tracks if speaks else (), runs, _warn) as trackers,
    ):
        views = (*shown, *told, *trackers)
        done = verbs.run(asked, runs=runs, fresh=fresh, observers=views, cache=cache_folder(), planning=planning)
    if speaks:
        print_json(done.result) if as_json else _print_outcome(done)


def _run_here(devices: int) -> int:
    """Run this command in several processes; torchrun's variables tell them not to start others."""
    from flatout.fleet.local import run_here

    return run_here(devices, sys.argv[1:], lambda line: print(f"flatout: {line}", file=sys.stderr, flush=True))


def in_worker(
    recipe: Path,
    overrides: list[str] | None,
    sets: list[str],
    offs: list[str] | None,
    runs: Path,
    fresh: bool,
    planning: str,
    observers: tuple[Observer, ...],
    again: bool,
) -> Path:
    """Runs on each worker of a cluster. `again` after a restart: then --fresh means the run that was already started."""
    from flatout.runs import verbs

    asked, anew = read_asked(recipe, overrides, sets, offs), fresh and not again
    return verbs.run(asked, runs=runs, fresh=anew, observers=observers, cache=cache_folder(), planning=planning).path


def explain(
    recipe: RecipeOrRun,
    overrides: Overrides = None,
    sets: Sets = None,
    offs: Offs = None,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Also try out the settings, and compare measured with predicted speed.")
    ] = False,
    planning: Planning = "5 min",
    as_json: Json = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write an HTML page with the plan and its roofline to this file.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", help="Plan for this many devices, which need not be in this machine.")
    ] = None,
    device_kind: Annotated[
        str | None, typer.Option("--device-kind", help="Kind of these devices, such as h100 or a100-80gb.")
    ] = None,
    per_node: Annotated[int | None, typer.Option("--per-node", help="Devices per machine. Default: the usual number.")] = None,
    runs: Runs = Path("runs"),
) -> None:
    """Show how a recipe would be trained here, and why. Trains nothing; can also plan how to split it over many devices.

    Of a run, show the plan that it was trained with, and what was measured.

    Example: flatout explain mine.yaml --analyze

    Example: flatout explain mine.yaml --devices 64 --device-kind h100
    """
    from flatout.base.tree import to_data, to_text
    from flatout.models.dataless import WeightsBudget, sparing_weights
    from flatout.runs import verbs

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if html is not None:
        check_page_path(html)
    if (package := packages.opened(recipe)) is not None:
        title, doc = f"Package {recipe.name}", packages.explained(package, say)
    elif names_a_run(recipe):
        changes = {"--set": sets, "--off": offs, "--analyze": analyze, "--devices": devices, "--device-kind": device_kind,
                   "--per-node": per_node}  # fmt: skip
        title, doc = _stored_plan(recipe, runs, [*(overrides or ()), *(name for name, value in changes.items() if value)])
    else:
        title = f"Plan for {recipe.name}"
        with nullcontext() if analyze else sparing_weights(WeightsBudget()):  # a Python recipe may contain a built model
            asked = read_asked(recipe, overrides, sets, offs)
        if devices is None and device_kind is None:
            from flatout.explore.guard.view import with_findings

            doc = verbs.explain(asked, cache=cache_folder(), analyze=analyze, planning=planning, say=say)
            doc = with_findings(doc, asked)
        elif devices is None or device_kind is None:
            raise UsageError("to plan for other devices, give their number and kind: --devices 64 --device-kind h100")
        else:
            many: Any = {"devices": devices, "device_kind": device_kind, "per_node": per_node}
            doc = verbs.explain_layouts(asked, cache=cache_folder(), **many)
    if html is not None:
        from flatout.base.html import to_html

        write_page(html, to_html(doc, title))
    print_json(to_data(doc)) if as_json else print(to_text(doc))


def names_a_run(given: Path) -> bool:
    """Files are recipes, also missing ones with a recipe's suffix."""
    return os.path.isdir(given) or not (os.path.isfile(given) or given.suffix in (".yaml", ".yml", ".py"))


def _stored_plan(given: Path, runs: Path, changes: list[str]) -> tuple[str, Doc]:
    """A title, and the plan in a run's folder."""
    from flatout.runs import verbs

    try:
        found = verbs.load(str(given), runs=runs)
    except NotARun as error:
        raise UsageError(f"recipe not found: {given}, and it is no run either: {error}") from error
    if changes:
        raise UsageError(
            f"{found.name} is a run, and its plan is stored: leave out {', '.join(changes)}, or explain its recipe"
        )
    return f"Plan of {found.name}", found.explain_doc()


def evaluate(
    run: RunName,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Other data: a file, x=FILE,y=FILE, or for a table a query. Default: the run's data."),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option("--part", help="Part of the run's data: validation (the default), test or train."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", help="Metrics by name, such as '[f1, auroc]'. Default: those of the run's recipe."),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Use the weights of the best checkpoint, not those of the last step.")
    ] = False,
    runs: Runs = Path("runs"),
    device: DeviceName = "auto",
    as_json: Json = False,
) -> None:
    """Compute metrics of a run's model. Uses its validation, test or training data, or other data.

    Example: flatout evaluate last --part test
    """
    from flatout.runs import verbs
    from flatout.runs.scores import print_scores, read_metrics

    other, named = None if data is None else _file_or_columns(data), None if metrics is None else read_metrics(metrics)
    found = load_run(run, runs)
    scores = verbs.evaluate(
        found, other, part=part, metrics=named, best=best, device=device, cache=cache_folder(), say=_say_note
    )
    if best and (mark := found.folder.checkpoints().best()) is not None:
        print(
            f"{found.name}: the best checkpoint, step {mark['step']}, by {mark['metric']} {mark['value']:.6g}", file=sys.stderr
        )
    print_json(scores) if as_json else print_scores(scores)


def predict(
    run: RunName,
    data: Annotated[
        str,
        typer.Argument(help="Data to predict: files as in training, or for a table a query, 'select ...'.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", help="Output file: .parquet, .csv or .npz.")] = Path("predictions.parquet"),
    keep: Annotated[
        str,
        typer.Option(
            "--keep", help="Columns of the data to keep: id,name; new=id renames one; file of photos.", show_default=False
        ),
    ] = "",
    each_class: Annotated[
        bool, typer.Option("--each-class", help="A column probability_NAME for each class instead of a list.")
    ] = False,
    runs: Runs = Path("runs"),
    device: DeviceName = "auto",
) -> None:
    """Predict with the model of a run or a package and write a table. It has class names if the data has them.

    Example: flatout predict last new.csv --out predictions.parquet
    """
    from flatout.cli.tables import check_table_path, write_table
    from flatout.packaging import verbs

    check_table_path(out)
    found = packages.opened(Path(run)) or load_run(run, runs)
    columns = verbs.predict(found, data, keep=keep, each_class=each_class, device=device, cache=cache_folder(), say=_say_note)
    write_table(out, columns)
    print(f"wrote {len(next(iter(columns.values())))} rows with {', '.join(columns)} to {out}")


def _warn(line: str) -> None:
    print(f"flatout: warning: {line}", file=sys.stderr, flush=True)


def _say_note(line: str) -> None:
    """On stderr: the output itself may be read by a program."""
    print(f"note: {line}", file=sys.stderr)


def demo(runs: Runs = Path("runs"), as_json: Json = False) -> None:
    """Train on built-in handwritten digits. Shows the plan, where the time went, and what to try next.

    Example: flatout demo
    """
    from flatout.cli.progress import progress_view
    from flatout.recipe.load import read_recipe
    from flatout.runs import verbs

    path = Path(__file__).with_name("digits.yaml")
    with progress_view() as observers:
        done = verbs.run(read_recipe(path), runs=runs, observers=observers, cache=cache_folder())
    if as_json:
        print_json(done.result)
        return
    print(f"\n{done.explain()}\n")
    _print_outcome(done, ledger=True)
    example = Path("examples/digits.yaml")
    if example.exists():
        print(f"\nThe recipe was {example}: copy it to start your own.")
    else:
        print(f"\nTo start from a copy of its recipe: cp {path} {path.name}")
    _print_next_steps(example if example.exists() else Path(path.name), done.name, runs)


def _print_next_steps(recipe: Path, run: str, runs: Path) -> None:
    elsewhere = "" if runs == Path("runs") else f" --runs {runs}"
    steps = {step.format(recipe=recipe, run=run, runs=elsewhere): words for step, words in NEXT_STEPS.items()}
    width = max(map(len, steps))
    print("\nWhat to try next")
    for step, words in steps.items():
        print(f"  {step:{width}}  {words}")


def _print_outcome(done: Run, ledger: bool = False) -> None:
    from flatout.base.tree import to_text
    from flatout.base.units import show_metric, show_rate, show_seconds
    from flatout.cli.ledger import ledger_doc
    from flatout.runs.scores import baselines_of, overall

    result = done.result
    rate = result["tokens_per_s"] or result["samples_per_s"]
    unit = "tokens" if result["tokens_per_s"] else "samples"
    metrics = ", ".join(
        f"{name} {show_metric(value)}" for name, value in overall(result["metrics"]).items() if value is not None
    )
    if ledger:
        print(to_text(ledger_doc(result)) + "\n")
    print(f"{done.name}: {result['reason']} after {result['steps']} steps, {result['samples']} samples")
    print(f"  {metrics}")
    if baselines := baselines_of(result["metrics"]):
        print(f"  baselines: {baselines}")
    if baselines and result["best"] is not None:
        best = result["best"]
        print(f"  the best weights, by {best['metric']} {show_metric(best['value'])}, are those of step {best['step']}")
    training, wall = show_seconds(result["train_seconds"]), show_seconds(result["wall_seconds"])
    print(f"  {show_rate(rate, unit)} during {training} of training, {wall} in total")
    print(f"  everything is in {done.path}")


def read_asked(path: Path, overrides: list[str] | None, sets: list[str] | None, offs: list[str] | None) -> Recipe:
    quiet_torch()
    pins: dict[str, Any] = {}
    for pin in sets or []:
        name, equals, value = pin.partition("=")
        if not equals:
            raise UsageError(f"--set needs name=value, such as --set precision=fp32; got {pin!r}")
        pins[name] = value
    _import_from(path.resolve().parent)

    from flatout.engine.settings import is_setting
    from flatout.recipe.load import read_recipe

    pins.update({name: _off_value(name) for name in offs or [] if is_setting(name)})
    recipe = read_recipe(path, overrides or (), pins)
    if others := [name for name in offs or [] if not is_setting(name)]:
        own = {knob.name: knob.off for knob in recipe.own_knobs}
        pins.update({name: own[name] if name in own else _off_value(name) for name in others})
        recipe = read_recipe(path, overrides or (), pins)
    if recipe.pins.get("deterministic"):
        allow_deterministic_cuda()
    return recipe.priced(price_per_hour())


def _off_value(name: str) -> Any:
    from flatout.plan.knobs.all import off_value  # imported late: only needed with --off

    return off_value(name)


def _file_or_columns(text: str) -> str | dict[str, str]:
    """`x=images.idx,y=labels.idx` gives one file per column."""
    from flatout.data.sources.tables.query import is_query

    if "=" not in text or is_query(text) or Path(text).exists():
        return text
    return {
        name.strip(): str(Path(path.strip()).resolve()) for name, _, path in (part.partition("=") for part in text.split(","))
    }


def load_run(name: str, runs: Path) -> Run:
    from flatout.runs import verbs

    quiet_torch()
    run = verbs.load(name, runs=runs)
    _import_from(Path(run.folder.read("origin.json")["folder"]))
    return run


def _import_from(folder: Path) -> None:
    """module:name in a recipe refers to a file in the recipe's folder, as for a script."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
