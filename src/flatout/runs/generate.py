"""`generate`: a trained model of tokens continues texts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

from flatout.base.errors import UsageError
from flatout.data.fitted.token_rows import SequenceHost, TextCode, TextHost
from flatout.engine.generation.contexts import CachedTexts, NextLogits, WholeTexts
from flatout.engine.generation.growing import TextPart
from flatout.engine.generation.options import GenerateOptions
from flatout.engine.generation.prompts import generated
from flatout.engine.generation.transformers_models import generates_itself, written_by_itself
from flatout.engine.generation.writing import write_texts
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.models.gpt import GPT
from flatout.recipe.schema import Recipe
from flatout.runs.in_use import put_to_use
from flatout.runs.trained import job_of
from flatout.store.run_folder import RunFolder

_ANY_TOKEN = 1 << 31
_KNOWN_TO_GPT = {"x", "documents", "positions"}


def generate(
    folder: RunFolder,
    recipe: Recipe,
    settings: Settings,
    prompt: Any,
    options: GenerateOptions,
    *,
    stream: bool,
    use_cache: bool,
    device: str,
    say: Callable[[str], None] | None,
) -> Any:
    """As `Run.generate` says."""
    job = job_of(folder, recipe)
    code, window = _tokens_of(job, folder.name)
    used = put_to_use(folder, job, settings, device)
    model, precision = used.model, used.precision
    speak = say or _warn

    def write(ids: list[list[int]], text_code: TextCode | None) -> Iterator[TextPart]:
        if generates_itself(model):
            how: Any = {"window": window, "precision": precision, "use_cache": use_cache, "say": speak}
            return written_by_itself(model, ids, options, text_code, **how)
        whole = partial(WholeTexts, model, job.objective.inputs, job.data.fitted.device.to(used.device))
        source: NextLogits
        if isinstance(model, GPT):
            plain = whole(model.window, code.vocabulary, precision)
            simple = set(job.objective.inputs.columns) <= _KNOWN_TO_GPT and not job.data.fitted.device.steps
            source = CachedTexts(model, plain, options.tokens) if use_cache and simple else plain
        else:
            source = whole(window, code.vocabulary, precision)
        return write_texts(source, ids, options, text_code, exact=precision == "fp32", say=speak)

    with nullcontext() if stream else used.threads():  # a stream is computed while the caller reads it
        return generated(prompt, code, write, stream=stream, stops=bool(options.stops))


def _tokens_of(job: Job, name: str) -> tuple[TextCode, int]:
    """How text becomes tokens, and how many tokens the model was trained on at once."""
    if job.objective.name != "next_token":
        raise UsageError(
            f"generate needs a model that predicts the next token, and {name} was trained with objective {job.objective.name}: "
            "use predict, or train with objective: next_token on text"
        )
    host = job.data.fitted.host
    if isinstance(host, TextHost):
        return host.code, host.window
    if isinstance(host, SequenceHost):
        return host.code, host.longest
    shape = job.data.fitted.schema["x"].shape if "x" in job.data.fitted.schema else ()
    if len(shape) != 1:
        raise UsageError(f"generate needs rows of tokens as x, and {name} was trained on x of shape {list(shape)}")
    return TextCode(job.data.vocabulary or _ANY_TOKEN), shape[0]


def _warn(line: str) -> None:
    warnings.warn(line, UserWarning, stacklevel=6)
