"""Options that people know from other trainers, such as --lr: the answer says how it is written here."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from flatout.base.errors import UsageError

_COMMANDS = {"train": "run", "fit": "run", "test": "evaluate", "validate": "evaluate", "list": "runs", "init": "new"}


class Commands(TyperGroup):
    """The commands of flatout; one that another trainer has is answered with its name here."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _COMMANDS:
            raise UsageError(f"{args[0]}: no such command; it is flatout {_COMMANDS[args[0]]}")
        return super().resolve_command(ctx, args)


class RecipeCommand(TyperCommand):
    """A command that takes a recipe and key=value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)  # of typer's error for an option that does not exist
            answer = _answer(str(option), typed) if option else None
            if answer is None:
                raise
            raise UsageError(f"{option}: no such option; {answer}") from error


def _answer(option: str, typed: list[str]) -> str | None:
    from flatout.engine.settings import is_setting
    from flatout.recipe.schema import Recipe
    from flatout.recipe.slips import answer_to

    key, value = option.lstrip("-").replace("-", "_"), _value(option, typed)
    if key in Recipe.model_fields:
        return f"keys of the recipe are written key=value: {key}={value}"
    if is_setting(key):
        return f"it is a setting: --set {key}={value}"
    answer = answer_to(key, ())
    return None if answer is None else f"{answer}; on the command line key=value, such as lr=1e-3"


def _value(option: str, typed: list[str]) -> str:
    for place, word in enumerate(typed):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and place + 1 < len(typed):
            return typed[place + 1]
    return "..."
