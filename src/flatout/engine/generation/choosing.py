"""From logits to the next token of each text.

Whether a cache was used, and which texts share a batch, changes logits by rounding. A greedy choice must not depend on that:
where the two most likely tokens are closer than rounding, the logits are computed again for that text alone, without a cache.
Random numbers depend only on the seed, the text's number and the token's place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from flatout.engine.generation.options import GenerateOptions

_ROUNDING = 1e-4  # of a logit, relative to the largest one; float32 differs by a tenth of that in deep models


def most_likely(logits: Tensor, exact: Callable[[int], Tensor] | None) -> list[int]:
    """`exact` computes the logits of one row alone; None if rounding does not matter."""
    found: list[int] = logits.argmax(-1).tolist()
    if exact is None or logits.shape[-1] < 2:
        return found
    best = logits.float().topk(2, -1).values
    near = best[:, 0] - best[:, 1] <= _ROUNDING * (1 + logits.float().abs().amax(-1))
    for row in near.nonzero().flatten().tolist():
        found[row] = int(exact(row).argmax())
    return found


def sampled(logits: Tensor, draws: Tensor, options: GenerateOptions) -> list[int]:
    """`draws` [rows]: a number from 0 to 1 for each row."""
    scores = logits.double() / options.temperature  # in double: thousands of small probabilities are added up
    if options.top_k is not None and options.top_k < scores.shape[-1]:
        least = scores.topk(options.top_k, -1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    odds = scores.softmax(-1)
    if options.top_p is not None and options.top_p < 1:
        ranked, order = odds.sort(-1, descending=True)
        before = ranked.cumsum(-1) - ranked  # the most likely token always stays
        odds = odds.masked_fill((before >= options.top_p).scatter(-1, order, before >= options.top_p), 0.0)
    # in the order of the vocabulary: rounding can swap tokens that are ranked by probability
    reached = odds.cumsum(-1)
    wanted = draws.to(reached.device, reached.dtype)[:, None] * reached[:, -1:]
    place = torch.searchsorted(reached, wanted, right=True).flatten()
    last = odds.shape[-1] - 1 - (odds > 0).flip(-1).byte().argmax(-1)  # rounding may lead behind the last possible token
    chosen: list[int] = torch.minimum(place, last).tolist()
    return chosen


def draws_of(seed: int, number: int, tokens: int) -> Tensor:
    """A number from 0 to 1 for each token of a text: text `number` with `seed` gets those of text 0 with `seed + number`."""
    return torch.rand(tokens, generator=torch.Generator().manual_seed(seed + number), dtype=torch.float64)
