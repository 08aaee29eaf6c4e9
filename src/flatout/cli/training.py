"""run, explain, evaluate, predict and demo."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatout.base.errors import UsageError
from flatout.cli.output import check_page_path, print_json, write_page
from flatout.cli.places import allow_deterministic_cuda, cache_folder, quiet_torch

if TYPE_CHECKING:
    from flatout.base.events import Observer
    from flatout.recipe.schema import Recipe
    from flatout.runs.verbs import Run

RecipePath = Annotated[Path, typer.Argument(help="A recipe: .yaml, or .py that defines `recipe`.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value on top of the recipe, such as lr=3e-4 or data.window=64.", show_default=False),
]
Runs = Annotated[Path, typer.Option("--runs", help="The folder that holds the runs.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Pin a setting: --set precision=fp32. May be repeated.")]
Offs = Annotated[list[str] | None, typer.Option("--off", help="Switch a setting off: --off compile. May be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
RunName = Annotated[str, typer.Argument(help="A run's name, its folder, or `last`.", show_default=False)]
Planning = Annotated[
    str, typer.Option("--planning", help="The most that trials of settings may take, such as '2 min'; off: none are made.")
]
Mesh = Annotated[
    str | None,
    typer.Option("--mesh", help="How processes share it: data=2,tensor=2, shard=4, pipeline=2, context=2. Else: what fits."),
]
On = Annotated[str | None, typer.Option("--on", help="ray: the cluster at RAY_ADDRESS, or one on this machine for this run.")]
RayWorkers = Annotated[
    str, typer.Option("--workers", help="With --on ray: processes, such as 8; 2:8 begins with fewer where there are no more.")
]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, ...")]

NEXT_STEPS = {
    "flatout run {recipe} lr=1e-3 budget='20 epochs'{runs}": "any key can be set from the command line",
    "flatout runs compare {run} last{runs}": "what differed, and what it did",
    "flatout explain {recipe} --json": "the plan for a program to read",
    "flatout drill {recipe} --kills 5": "kill it at random, resume, compare every bit",
    "flatout probe": "what this machine can do, and what is mis-set on it",
}


def run(
    recipe: RecipePath,
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    sets: Sets = None,
    offs: Offs = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, even if an unfinished run could be resumed.")] = False,
    planning: Planning = "5 min",
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
    devices: Annotated[
        int | None, typer.Option("--devices", help="Start as many processes on this machine, one a device, and train together.")
    ] = None,
    mesh: Mesh = None,
    on: On = None,
    workers: RayWorkers = "1",
) -> None:
    """Train a recipe. The same command again resumes an unfinished run. Under torchrun the processes train together."""
    from flatout.cli.progress import progress_view
    from flatout.runs import verbs
    from flatout.world.joining import is_first, is_launched

    pins = [*(sets or []), *([] if mesh is None else [f"mesh={mesh}"])]
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
    with progress_view(quiet or not speaks) as observers:
        done = verbs.run(asked, runs=runs, fresh=fresh, observers=observers, cache=cache_folder(), planning=planning)
    if speaks:
        print_json(done.result) if as_json else _print_outcome(done)


def _run_here(devices: int) -> int:
    """This very command in several processes: they know from torchrun that they are not to start others."""
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
    """What each worker of a cluster does. `again`, after a loss: then the fresh run is the one that was begun."""
    from flatout.runs import verbs

    asked, anew = read_asked(recipe, overrides, sets, offs), fresh and not again
    return verbs.run(asked, runs=runs, fresh=anew, observers=observers, cache=cache_folder(), planning=planning).path


def explain(
    recipe: RecipePath,
    overrides: Overrides = None,
    sets: Sets = None,
    offs: Offs = None,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Try the settings out and show what was measured beside what was predicted.")
    ] = False,
    planning: Planning = "5 min",
    as_json: Json = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the plan and its roofline to this file.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", help="Lay it out on as many devices, which need not be here.")
    ] = None,
    device_kind: Annotated[
        str | None, typer.Option("--device-kind", help="Of which kind these are, such as h100 or a100-80gb.")
    ] = None,
    per_node: Annotated[int | None, typer.Option("--per-node", help="How many of them a machine has; else as usual.")] = None,
) -> None:
    """Say how a recipe would be trained here and why, without training a step; or how many devices would share it."""
    from flatout.base.tree import to_data, to_text
    from flatout.models.dataless import WeightsBudget, sparing_weights
    from flatout.runs import verbs

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if html is not None:
        check_page_path(html)
    with nullcontext() if analyze else sparing_weights(WeightsBudget()):  # a recipe in Python may hold a model that is built
        asked = read_asked(recipe, overrides, sets, offs)
    if devices is None and device_kind is None:
        doc = verbs.explain(asked, cache=cache_folder(), analyze=analyze, planning=planning, say=say)
    elif devices is None or device_kind is None:
        raise UsageError("layouts are explained for a number of devices of a kind: --devices 64 --device-kind h100")
    else:
        many: Any = {"devices": devices, "device_kind": device_kind, "per_node": per_node}
        doc = verbs.explain_layouts(asked, cache=cache_folder(), **many)
    if html is not None:
        from flatout.base.html import to_html

        write_page(html, to_html(doc, f"Plan for {recipe.name}"))
    print_json(to_data(doc)) if as_json else print(to_text(doc))


def receipt(run: RunName, runs: Runs = Path("runs"), as_json: Json = False) -> None:
    """What was tried before a run, kept and rejected, with both arms' numbers and the proof."""
    from flatout.base.tree import to_data, to_text
    from flatout.plan.receipt_view import receipt_doc
    from flatout.runs import verbs

    found = verbs.load(run, runs=runs)
    if found.receipt is None:
        raise UsageError(
            f"{found.name} has no receipt: no setting was to be tried (--planning off, or a run of unknown length)"
        )
    doc = receipt_doc(found.name, found.receipt)
    print_json(to_data(doc)) if as_json else print(to_text(doc))


def evaluate(
    run: RunName,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Other data than the run's own: a file, x=FILE,y=FILE, or for a table a query."),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option("--part", help="A part of the run's own data: validation (the default), test or train."),
    ] = None,
    runs: Runs = Path("runs"),
    device: DeviceName = "auto",
    as_json: Json = False,
) -> None:
    """Metrics of a run's model on its validation, test or train part, or on other data."""
    from flatout.runs import verbs

    other = None if data is None else _file_or_columns(data)
    metrics = verbs.evaluate(_load(run, runs), other, part=part, device=device, cache=cache_folder())
    print_json(metrics) if as_json else print("\n".join(f"{name:12} {value:.6g}" for name, value in metrics.items()))


def predict(
    run: RunName,
    data: Annotated[
        str,
        typer.Argument(help="What to predict: files as in training, or for a table a query, 'select ...'.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", help="Where to: .parquet, .csv or .npz.")] = Path("predictions.parquet"),
    runs: Runs = Path("runs"),
    device: DeviceName = "auto",
) -> None:
    """Predict with a run's model and write the result as a table, with the names of the classes where they have some."""
    from flatout.cli.tables import check_table_path, write_table
    from flatout.runs import verbs

    check_table_path(out)
    columns = verbs.predict(_load(run, runs), data, device=device, cache=cache_folder())
    write_table(out, columns)
    print(f"{len(next(iter(columns.values())))} rows of {', '.join(columns)} in {out}")


def demo(runs: Runs = Path("runs"), as_json: Json = False) -> None:
    """Train on the built-in handwritten digits and show the plan, where the time went, and what to try next."""
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
        print(f"\nThe recipe was {example}: copy it to begin.")
    else:
        print(f"\nTo begin with a copy of its recipe: cp {path} {path.name}")
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

    result = done.result
    rate = result["tokens_per_s"] or result["samples_per_s"]
    unit = "tokens" if result["tokens_per_s"] else "samples"
    metrics = ", ".join(f"{name} {show_metric(value)}" for name, value in result["metrics"].items() if value is not None)
    if ledger:
        print(to_text(ledger_doc(result)) + "\n")
    print(f"{done.name}: {result['reason']} after {result['steps']} steps, {result['samples']} samples")
    print(f"  {metrics}")
    training, wall = show_seconds(result["train_seconds"]), show_seconds(result["wall_seconds"])
    print(f"  {show_rate(rate, unit)} over {training} of training, {wall} in all")
    print(f"  everything is in {done.path}")


def read_asked(path: Path, overrides: list[str] | None, sets: list[str] | None, offs: list[str] | None) -> Recipe:
    quiet_torch()
    pins: dict[str, Any] = {}
    for pin in sets or []:
        name, equals, value = pin.partition("=")
        if not equals:
            raise UsageError(f"--set takes name=value, such as --set precision=fp32; got {pin!r}")
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
    return recipe


def _off_value(name: str) -> Any:
    from flatout.plan.knobs.all import off_value  # a command without --off need not wait for it

    return off_value(name)


def _file_or_columns(text: str) -> str | dict[str, str]:
    """`x=images.idx,y=labels.idx` names a file for each column."""
    from flatout.data.sources.tables.query import is_query

    if "=" not in text or is_query(text) or Path(text).exists():
        return text
    return {
        name.strip(): str(Path(path.strip()).resolve()) for name, _, path in (part.partition("=") for part in text.split(","))
    }


def _load(name: str, runs: Path) -> Run:
    from flatout.runs import verbs

    quiet_torch()
    run = verbs.load(name, runs=runs)
    _import_from(Path(run.folder.read("origin.json")["folder"]))
    return run


def _import_from(folder: Path) -> None:
    """module:name in a recipe means a file beside it, as for a script."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
