"""The loop: the logits of all texts, a choice for each, the next token. Texts that have ended leave the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from flatout.data.fitted.token_rows import TextCode
from flatout.engine.generation.choosing import most_likely, sampled
from flatout.engine.generation.contexts import NextLogits
from flatout.engine.generation.growing import GrowingText, TextPart
from flatout.engine.generation.options import GenerateOptions


def write_texts(
    source: NextLogits,
    prompts: Sequence[Sequence[int]],
    options: GenerateOptions,
    code: TextCode | None,
    *,
    exact: bool,
    say: Callable[[str], None],
) -> Iterator[TextPart]:
    """Parts of all texts as they are made. `exact`: a greedy choice does not depend on rounding."""
    texts = [GrowingText(number, ids, options, code) for number, ids in enumerate(prompts)]
    longest = max(len(text.ids) for text in texts)
    if longest + options.tokens > source.window + 1:  # the last token is never read
        say(
            f"the model takes {source.window} tokens at a time: a longer text is continued from its last "
            f"{source.window // 2 + 1} to {source.window} tokens"
        )
    rows = source.rows_at_once(longest + options.tokens)
    for first in range(0, len(texts), rows):
        yield from _write_batch(source, texts[first : first + rows], options, exact)


def _write_batch(source: NextLogits, texts: list[GrowingText], options: GenerateOptions, exact: bool) -> Iterator[TextPart]:
    while texts:
        logits = source.next_logits(texts)
        if options.most_likely:
            chosen = most_likely(logits, (lambda row: source.alone(texts[row])) if exact else None)  # noqa: B023
        else:
            chosen = sampled(logits, torch.stack([text.draw for text in texts]), options)
        for text, token in zip(texts, chosen, strict=True):
            yield text.add(token)
        texts = [text for text in texts if text.ended is None]
