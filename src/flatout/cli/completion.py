"""completion: a script with which a shell completes commands and options when Tab is pressed."""

from __future__ import annotations

from typing import Annotated

import typer

from flatout.base.errors import UsageError, did_you_mean
from flatout.cli.places import COMPLETING

PROGRAM = "flatout"
"""With it the shell's script asks for completions instead of running a command."""
_SHELLS = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", metavar="SHELL", show_default=False)],
) -> None:
    """Print a script for your shell that completes commands and options.

    Example: flatout completion bash >> ~/.bashrc

    Example: flatout completion zsh > ~/.zfunc/_flatout

    Example: flatout completion fish > ~/.config/fish/completions/flatout.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    if shell not in _SHELLS:
        raise UsageError(f"completion works in {', '.join(_SHELLS)}, not in {shell!r}; {did_you_mean(shell, _SHELLS)}")
    print(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETING, shell=shell))


def prepare_answers() -> None:
    """Answers in the form that these scripts read."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
