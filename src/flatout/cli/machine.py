"""probe and env: facts about this machine and its measured speed."""

from __future__ import annotations

from typing import Annotated

import typer

from flatout.cli.output import print_json
from flatout.cli.places import cache_folder

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def probe(
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again instead of using stored results.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Take only a few seconds, with less precise results.")] = False,
    as_json: Json = False,
) -> None:
    """Measure how fast this machine is. Also reports what is misconfigured.

    Example: flatout probe
    """
    from flatout.base.tree import to_data, to_text
    from flatout.machine.device import pick_device
    from flatout.machine.probe import doc
    from flatout.machine.probe import probe as measure

    found = doc(measure(pick_device(device), cache_folder(), quick=quick, fresh=fresh, look_at_others=True))
    print_json(to_data(found)) if as_json else print(to_text(found))


def env(as_json: Json = False) -> None:
    """Print versions and facts about this machine, for a bug report.

    Example: flatout env --json
    """
    from flatout import __version__
    from flatout.machine.facts import read_facts
    from flatout.machine.others_work import others_now

    facts = {"flatout": __version__, **read_facts(others=others_now()).to_dict()}
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for inner, detail in value.items():
                print(f"  {inner}: {detail}")
        elif isinstance(value, list | tuple):
            print(f"{name}: {'none' if not value else ''}")
            for item in value:
                print(f"  - {item}")
        else:
            print(f"{name}: {value}")
