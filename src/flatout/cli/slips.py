"""Options that people know from other trainers, such as --lr: the answer says how it is written here."""

from __future__ import annotations

from shlex import quote
from typing import Any

from typer.core import TyperCommand, TyperGroup

from flatout.base.errors import UsageError

_NAMES_OF_THE_TEXT = ("prompt", "prompts", "p", "text", "input", "inputs", "start", "context")
_NAMES_OF_THE_RUN = ("run", "model", "checkpoint", "ckpt", "out_dir")
_OF_GENERATE = {  # names in transformers, llama.cpp, vLLM, nanoGPT
    **dict.fromkeys(("max_new_tokens", "max_tokens", "max_length", "length"), "--tokens"),
    **dict.fromkeys(("num_tokens", "n_tokens", "n_predict", "n"), "--tokens"),
    **dict.fromkeys(("temp", "t"), "--temperature"),
    **dict.fromkeys(("top_k", "topk", "k"), "--top-k"),
    **dict.fromkeys(("top_p", "topp"), "--top-p"),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stop_sequence", "stop_token", "eos"), "--stop"),
    **dict.fromkeys(("random_seed", "manual_seed"), "--seed"),
}

_COMMANDS = {"train": "run", "fit": "run", "test": "evaluate", "validate": "evaluate", "list": "runs", "init": "new"}


class Commands(TyperGroup):
    """The commands of flatout; one that another trainer has is answered with its name here."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _COMMANDS:
            raise UsageError(f"{args[0]}: no such command; it is flatout {_COMMANDS[args[0]]}")
        return super().resolve_command(ctx, args)


class _Answering(TyperCommand):
    """Answers options that it does not have, where a habit is known."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)  # of typer's error for an option that does not exist
            answer = self._answer(option.lstrip("-").replace("-", "_"), _value(option, typed)) if option else None
            if answer is None:
                raise
            raise UsageError(f"{option}: no such option; {answer}") from error

    def _answer(self, key: str, value: str) -> str | None:
        raise NotImplementedError


class RecipeCommand(_Answering):
    """A command that takes a recipe and key=value."""

    def _answer(self, key: str, value: str) -> str | None:
        from flatout.engine.settings import is_setting
        from flatout.recipe.schema import Recipe
        from flatout.recipe.slips import answer_to

        if key in Recipe.model_fields:
            return f"keys of the recipe are written key=value: {key}={value}"
        if is_setting(key):
            return f"it is a setting: --set {key}={value}"
        answer = answer_to(key, ())
        return None if answer is None else f"{answer}; on the command line key=value, such as lr=1e-3"


class GenerateCommand(_Answering):
    def _answer(self, key: str, value: str) -> str | None:
        if key in _NAMES_OF_THE_TEXT:
            return f"the text comes after the run: flatout generate RUN {quote(value)}"
        if key in _NAMES_OF_THE_RUN:
            return f"the run is the first word: flatout generate {quote(value)} 'text'"
        if key in ("num_samples", "n_samples", "num_return_sequences"):
            return "give the text as often as you want it continued: flatout generate RUN 'text' 'text'"
        if key in ("do_sample", "sample"):
            return "it samples unless --greedy is given"
        option = _OF_GENERATE.get(key)
        return None if option is None else f"it is {option} {quote(value)}"


def _value(option: str, typed: list[str]) -> str:
    for place, word in enumerate(typed):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and place + 1 < len(typed):
            return typed[place + 1]
    return "..."
