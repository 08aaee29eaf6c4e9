"""generate: text from a trained model, printed as it is made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatout.base.errors import UsageError
from flatout.cli import packages
from flatout.cli.output import print_json
from flatout.cli.training import DeviceName, Json, Runs, load_run

if TYPE_CHECKING:
    from flatout.packaging.package import Package


def generate(
    run: Annotated[str, typer.Argument(help="A run (its name, its folder, or `last`), or a package.", show_default=False)],
    prompts: Annotated[list[str], typer.Argument(help="Text to continue. Several are continued together.", show_default=False)],
    tokens: Annotated[int, typer.Option("--tokens", help="How many tokens to make at most.")] = 200,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the most likely token.")] = False,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="Below 1: less varied. 0: the same as --greedy. Default: 0.8.", show_default=False),
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Choose among this many of the most likely tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Choose among the most likely tokens with this total probability.")
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", help=r"End before this text; \n is a line break. May be repeated.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same text.")] = 0,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compute all tokens again for each new one.")] = False,
    runs: Runs = Path("runs"),
    device: DeviceName = "auto",
    as_json: Json = False,
) -> None:
    """Continue texts with a model that was trained to predict the next token. One text is printed as it is made.

    Example: flatout generate last 'To be, or' --tokens 100
    """
    stops = [text.replace("\\n", "\n").replace("\\t", "\t") for text in stop or []]
    how: dict[str, Any] = {"tokens": tokens, "stop": stops, "say": _say}
    package = packages.opened(Path(run))
    if package is not None:
        chosen = {"--temperature": temperature, "--top-k": top_k, "--top-p": top_p}
        continued = _of_package(package, device, [name for name, value in chosen.items() if value is not None])
    else:
        continued = load_run(run, runs).generate
        how |= {"greedy": greedy, "temperature": 0.8 if temperature is None else temperature, "top_k": top_k, "top_p": top_p,
                "seed": seed, "use_cache": not no_cache, "device": device}  # fmt: skip
    if as_json:
        texts = continued(prompts, **how)
        print_json({"texts": [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts, strict=True)]})
    elif len(prompts) == 1:
        notes: list[str] = []  # for after the text, which they would interrupt
        pieces = continued(prompts[0], stream=True, **{**how, "say": notes.append})
        print(prompts[0], end="", flush=True)  # here: a prompt that can't be used is an error of the line above
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
        for note in notes:
            _say(note)
    else:
        for prompt, text in zip(prompts, continued(prompts, **how), strict=True):
            print(f"{prompt}{text}\n{'-' * 20}")


def _of_package(package: Package, device: str, chosen: list[str]) -> Callable[..., Any]:
    from functools import partial

    from flatout.machine.device import pick_device

    if chosen:
        raise UsageError(
            f"a package has only the most likely next token, so {', '.join(chosen)} can't be used: leave it out, "
            "or generate from the run"
        )
    return partial(package.generate, device=pick_device(device))


def _say(line: str) -> None:
    print(f"flatout: {line}", file=sys.stderr, flush=True)
