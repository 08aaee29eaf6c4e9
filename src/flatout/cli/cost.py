"""runs cost: what the runs of a folder took, and how much of it was not training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.base.errors import MachineError, StoreError, UsageError
from flatout.cli.output import print_json
from flatout.cli.places import price_per_hour

if TYPE_CHECKING:
    from flatout.runs.costs import RunCost

_DAY_S = 86400.0


def cost(
    runs: Annotated[
        list[Path] | None,
        typer.Option("--runs", help="A folder with runs. May be repeated. Default: runs.", show_default=False),
    ] = None,
    last: Annotated[
        str, typer.Option("--last", help="Runs that began within this time: '30 days', '12 h'; or all.")
    ] = "30 days",
    since: Annotated[
        str | None, typer.Option("--since", help="Runs that began on this day or later: 2026-11-01.", show_default=False)
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Runs that began before this day: 2026-12-01.", show_default=False)
    ] = None,
    price: Annotated[
        float | None,
        typer.Option("--price", help="USD per hour of runs that have no price of their own.", show_default=False),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option("--prices", help="A YAML file of machines and their USD per hour: NVIDIA H200: 3.5", show_default=False),
    ] = None,
    carbon: Annotated[
        float | None,
        typer.Option("--carbon", help="kg of CO2 per kWh where the machines are, such as 0.35.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What runs took: hours, energy and USD by the kind of work, and how much was not training.

    Example: flatout runs cost --last '7 days' --price 3.5 --carbon 0.35
    """
    from flatout.base.tree import to_data, to_text
    from flatout.runs.cost_view import costs_doc

    for name, value in (("--price", price), ("--carbon", carbon)):
        if value is not None and not 0 <= value < 1e9:
            raise UsageError(f"{name} must be 0 or more, got {value:g}")
    folders = runs or [Path("runs")]
    known = _price_list(prices)
    fallback = price if price is not None else price_per_hour()
    begin, end, words = _window(last, since, until)
    found, unreadable = _read(folders, lambda began: begin <= began < end)
    priced = [one if one.price is not None else replace(one, price=_price_of(one, known, fallback)) for one in found]
    where = ", ".join(str(folder) for folder in folders)
    doc = costs_doc(priced, unreadable, window=f"in {where}{words}", co2_per_kwh=carbon)
    print_json(to_data(doc)) if as_json else print(to_text(doc))


def _read(folders: list[Path], wanted: Callable[[float], bool]) -> tuple[list[RunCost], dict[str, str]]:
    from flatout.runs.costs import cost_of
    from flatout.store.run_folder import all_runs
    from flatout.tuning.study.cost import cost_of_study
    from flatout.tuning.study.folder import all_studies

    found: list[RunCost] = []
    unreadable: dict[str, str] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"--runs: there is no folder {folder}")
        for run in all_runs(folder, lambda path, error: unreadable.__setitem__(str(path), str(error))):
            try:
                if wanted(float(run.about["created"])):
                    found.append(cost_of(run))
            except (StoreError, OSError) as error:
                unreadable[str(run.path)] = str(error)
        for study in all_studies(folder):
            try:
                cost = cost_of_study(study)
            except (StoreError, OSError, KeyError, TypeError, ValueError) as error:
                unreadable[str(study.path)] = f"{study.path}: {error}"
            else:
                found += [cost] if wanted(cost.began) else []
    return found, unreadable


def _price_of(cost: RunCost, known: dict[str, float], fallback: float | None) -> float | None:
    """By the name of its machine, of which the list may have the beginning; else the price for all others."""
    named = [name for name in known if cost.machine.lower().startswith(name.lower())]
    return known[max(named, key=len)] if named else fallback


def _price_list(path: Path | None) -> dict[str, float]:
    if path is None:
        return {}
    import yaml

    try:
        written = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise MachineError(f"--prices: {path} can't be read: {error}") from error
    if not isinstance(written, dict) or any(isinstance(v, bool) or not isinstance(v, int | float) for v in written.values()):
        raise UsageError(f"--prices: {path} must have lines such as `NVIDIA H200: 3.5`, a machine and its USD per hour")
    return {str(name): float(value) for name, value in written.items()}


def _window(last: str, since: str | None, until: str | None) -> tuple[float, float, str]:
    """First and last moment, and the window in words."""
    if since is None and until is None:
        if last == "all":
            return 0.0, float("inf"), ""
        return time.time() - _span_s(last), float("inf"), f" of the last {last}"
    begin = 0.0 if since is None else _day("--since", since)
    end = float("inf") if until is None else _day("--until", until)
    if begin >= end:
        raise UsageError(f"--since {since} is not before --until {until}")
    return begin, end, (f" since {since}" if since else "") + (f" until {until}" if until else "")


def _span_s(last: str) -> float:
    from flatout.base.units import parse_seconds

    words = last.strip().split()
    try:
        if len(words) == 2 and words[1] in ("day", "days", "d", "week", "weeks"):
            return float(words[0]) * _DAY_S * (7 if words[1].startswith("w") else 1)
        return parse_seconds(last)
    except (UsageError, ValueError):
        raise UsageError(f"--last must be a time such as '30 days' or '12 h', or all; got {last!r}") from None


def _day(option: str, written: str) -> float:
    try:
        return time.mktime(time.strptime(written, "%Y-%m-%d"))
    except (ValueError, OverflowError):
        raise UsageError(f"{option} must be a day such as 2026-11-01, got {written!r}") from None
