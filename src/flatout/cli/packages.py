"""export and why; `predict` and `explain` of a package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.base.errors import UsageError
from flatout.cli.output import print_json
from flatout.cli.places import cache_folder

if TYPE_CHECKING:
    from flatout.base.tree import Doc
    from flatout.packaging.package import Package

Runs = Annotated[Path, typer.Option("--runs", help="The folder with all runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PackagePath = Annotated[Path, typer.Argument(help="The folder of a package.", show_default=False)]


def export(
    run: Annotated[str, typer.Argument(help="The name of a run, its folder, or `last`.", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="package: a folder; onnx: one file for onnxruntime.")] = "package",
    out: Annotated[
        Path | None, typer.Option("--out", help="What to write. Default: package, or model.onnx.", show_default=False)
    ] = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Write a finished run as a package that takes raw rows, checked against the run. Or write one ONNX file.

    Example: flatout export last --out churn/
    """
    if to not in ("package", "onnx"):
        raise UsageError(f"--to is package or onnx, got {to!r}")
    from flatout.base.units import show_bytes, show_seconds
    from flatout.packaging.export import export as export_run
    from flatout.packaging.export import export_onnx
    from flatout.packaging.runtimes.choice import fastest
    from flatout.runs.record import load

    found = load(run, runs=runs)
    if to == "onnx":
        target = out or Path("model.onnx")
        notes = export_onnx(found, target, cache=cache_folder(), say=_say)
        if as_json:
            print_json({"file": str(target), "bytes": target.stat().st_size, "notes": notes})
            return
        print("\n".join([f"wrote {target}: {show_bytes(target.stat().st_size)}", *(f"  {note}" for note in notes)]))
        return
    target = out or Path("package")
    done = export_run(found, target, cache=cache_folder(), say=_say)
    package = done.package
    if as_json:
        print_json({"package": str(target), "hash": package.folder.hash, "notes": list(done.notes),
                    "runtimes": [one.to_json() for one in done.measured]})  # fmt: skip
        return
    size = sum(file.stat().st_size for file in target.iterdir())
    best = fastest(done.measured, 1)
    seconds = best.seconds(1)
    assert seconds is not None
    print(f"wrote {target}: {show_bytes(size)}, {len(package.samples)} samples from {package.samples.origin}")
    for one in done.measured:
        if one.parity is not None and one.parity.holds:
            print(f"  {one.name}: same outputs as the run, largest difference {one.parity.worst:.1g}")
        else:
            print(f"  {one.name}: left out, {one.why_not}")
    print(f"  fastest here for one row: {best.name}, {show_seconds(seconds)}")
    for note in done.notes:
        print(f"  {note}")


def why(package: PackagePath, as_json: Json = False) -> None:
    """Show where a package comes from: its run, plan, recipe and data, and whether the run still exists.

    If a pipeline made it, also the stages behind it: gate, run, code, data.

    Example: flatout why production/current
    """
    from flatout.base.tree import Doc, TextLine, to_data, to_text
    from flatout.packaging.package import open_package
    from flatout.packaging.verbs import why as lineage
    from flatout.pipelines.stages.lineage import lineage_beside, lineage_nodes

    doc = lineage(open_package(package))
    if (made := lineage_beside(package)) is not None:
        doc = Doc((*doc.nodes, TextLine(), *lineage_nodes(made)))
    print_json(to_data(doc)) if as_json else print(to_text(doc))


def opened(path: Path) -> Package | None:
    """The package in this folder, if it is one."""
    from flatout.packaging.folder import is_package
    from flatout.packaging.package import open_package

    return open_package(path) if is_package(path) else None


def package_folder(given: str, runs: Path, say: Callable[[str], None]) -> tuple[str, Path]:
    """The folder of a package, and a name for it: that of the folder, or of the run. A run is exported first, once."""
    from flatout.packaging.folder import is_package

    if is_package(Path(given)):
        return Path(given).resolve().name or "model", Path(given)
    from flatout.base.child import Child, Printed
    from flatout.base.errors import ModelError, NotARun
    from flatout.packaging.verbs import exported_place
    from flatout.runs.record import load

    try:
        run = load(given, runs=runs)
    except NotARun as error:
        raise NotARun(f"{given} is no package, and {error}") from error
    cache = cache_folder()
    target = exported_place(run, cache)
    if is_package(target):
        return run.name, target
    target.parent.mkdir(parents=True, exist_ok=True)
    say(f"exporting {run.name}")
    command = [sys.executable, "-m", "flatout", "export", str(run.path), "--out", str(target)]
    with Child(command, output=Printed.DROPPED) as child:  # a process of its own: this one is forked later
        if child.wait() != 0:
            raise ModelError(f"{run.name} can't be exported: {child.printed().strip() or child.how_it_ended()}")
    return run.name, target


def explained(package: Package, say: Callable[[str], None]) -> Doc:
    from flatout.packaging.verbs import explain_package

    return explain_package(package, cache=cache_folder(), say=say)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
