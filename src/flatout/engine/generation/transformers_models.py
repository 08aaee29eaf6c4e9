"""Models of transformers: their own `generate`, which knows their caches, in a thread so that its tokens can be followed."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flatout.base.errors import UsageError
from flatout.data.fitted.token_rows import TextCode
from flatout.engine.generation.growing import GrowingText, TextPart
from flatout.engine.generation.options import GenerateOptions
from flatout.engine.precision import autocast
from flatout.models.adapters import without_adapters

_ROWS = 16


def generates_itself(model: nn.Module) -> bool:
    """Whether it is a model of transformers with a `generate` of its own, perhaps with adapters."""
    model, library = without_adapters(model), sys.modules.get("transformers")  # without it no model can be of it
    return library is not None and isinstance(model, library.GenerationMixin) and bool(model.can_generate())


def written_by_itself(
    model: Any,
    prompts: Sequence[Sequence[int]],
    options: GenerateOptions,
    code: TextCode | None,
    *,
    window: int,
    precision: str,
    use_cache: bool,
    say: Callable[[str], None],
) -> Iterator[TextPart]:
    model = without_adapters(model)
    window = int(getattr(model.config, "max_position_embeddings", None) or window)
    if options.tokens >= window:
        raise UsageError(
            f"tokens must be below {window}, which is all that the model takes with the prompt; got {options.tokens}"
        )
    room = window - options.tokens
    if any(len(ids) > room for ids in prompts):
        say(f"the model takes {window} tokens: only the last {room} tokens of a longer prompt are used")
    for first in range(0, len(prompts), _ROWS):
        some = prompts[first : first + _ROWS]
        texts = [GrowingText(first + place, ids[-room:], options, code) for place, ids in enumerate(some)]
        yield from _one_batch(model, texts, options, code, precision, use_cache)


def _one_batch(
    model: Any, texts: list[GrowingText], options: GenerateOptions, code: TextCode | None, precision: str, use_cache: bool
) -> Iterator[TextPart]:
    from transformers import StoppingCriteria, StoppingCriteriaList  # type: ignore[import-not-found, unused-ignore]

    parts: queue.SimpleQueue[TextPart | BaseException | None] = queue.SimpleQueue()
    abandoned = threading.Event()
    device = next(model.parameters()).device

    class Followed(StoppingCriteria):  # type: ignore[misc, unused-ignore]
        """Called after each token of all texts; what it returns ends texts."""

        def __call__(self, ids: Tensor, scores: Any, **more: Any) -> Tensor:
            for text, token in zip(texts, ids[:, -1].tolist(), strict=True):
                if text.ended is None:
                    parts.put(text.add(token))
            ended = [text.ended is not None or abandoned.is_set() for text in texts]
            return torch.tensor(ended, device=ids.device)

    longest = max(len(text.ids) for text in texts)
    padding = [longest - len(text.ids) for text in texts]
    ids = torch.tensor([[0] * pad + text.ids for pad, text in zip(padding, texts, strict=True)], device=device)
    seen = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding], device=device)
    how: dict[str, Any] = {"do_sample": False}
    if not options.most_likely:
        how = {
            "do_sample": True,
            "temperature": options.temperature,
            "top_k": options.top_k or 0,
            "top_p": options.top_p or 1.0,
        }

    spare = range(code.vocabulary, model.config.vocab_size) if code is not None else ()
    if spare:  # a vocabulary may be larger than the text's: such tokens have no text
        how["suppress_tokens"] = list(spare)

    def work() -> None:
        try:
            with torch.random.fork_rng(), torch.inference_mode(), autocast(precision, device):
                torch.manual_seed(options.seed + texts[0].number)
                model.generate(
                    ids, attention_mask=seen, max_new_tokens=options.tokens, pad_token_id=0, use_cache=use_cache,
                    stopping_criteria=StoppingCriteriaList([Followed()]), **how,
                )  # fmt: skip
            parts.put(None)
        except BaseException as error:  # raised again where the parts are read
            parts.put(error)

    thread = threading.Thread(target=work, name="flatout-generate", daemon=True)
    thread.start()
    try:
        while (part := parts.get()) is not None:
            if isinstance(part, BaseException):
                raise part
            yield part
    finally:
        abandoned.set()
        thread.join()
