"""`generate` of a package. Its program gives only the most likely next token, so the text is always the greedy one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.base.errors import ModelError, UsageError
from flatout.data.fitted import Fitted
from flatout.data.fitted.token_rows import SequenceHost, TextCode, TextHost
from flatout.engine.generation.contexts import context_start
from flatout.engine.generation.growing import GrowingText
from flatout.engine.generation.options import GenerateOptions
from flatout.engine.generation.prompts import generated
from flatout.engine.generation.writing import write_texts
from flatout.packaging.ports import Port

_ROWS = 16

RunProgram = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]


def generate_packaged(
    fitted: Fitted,
    objective: str,
    inputs: Sequence[Port],
    run: RunProgram,
    prompt: Any,
    options: GenerateOptions,
    *,
    device: torch.device,
    stream: bool,
    say: Callable[[str], None],
) -> Any:
    host = fitted.host
    if objective != "next_token" or not isinstance(host, TextHost | SequenceHost):
        raise UsageError(
            f"generate needs a package of a model that predicts the next token of text, and this one's is {objective}"
        )
    window = host.window if isinstance(host, TextHost) else host.longest
    source = PackagedTexts(run, inputs, window, host.code.vocabulary, device)

    def write(ids: list[list[int]], code: TextCode | None) -> Any:
        return write_texts(source, ids, options, code, exact=False, say=say)

    return generated(prompt, host.code, write, stream=stream, stops=bool(options.stops))


class PackagedTexts:
    """`next_logits` is 1 for the most likely token and 0 for all others. There is no cache: a program has no place for one."""

    def __init__(self, run: RunProgram, inputs: Sequence[Port], window: int, vocabulary: int, device: torch.device) -> None:
        tokens = next((port for port in inputs if port.name == "x"), None)
        if tokens is None or len(tokens.shape) != 2:
            raise ModelError(
                f"generate needs a program that takes tokens as x; it takes {', '.join(one.name for one in inputs)}"
            )
        self.window = window
        self._run, self._names, self._vocabulary, self._device = run, [port.name for port in inputs], vocabulary, device
        self._fixed = tokens.shape[1]  # None: rows of any length
        self._checked = self._fixed is None

    def rows_at_once(self, longest: int) -> int:
        return _ROWS

    def next_logits(self, texts: Sequence[GrowingText]) -> Tensor:
        contexts = [text.ids[context_start(len(text.ids), self.window) :] for text in texts]
        by_length: dict[int, list[int]] = {}
        for row, ids in enumerate(contexts):
            by_length.setdefault(len(ids), []).append(row)
        found = [0] * len(texts)
        for length, rows in by_length.items():
            chosen = self._predicted([contexts[row] for row in rows], length)
            for row, token in zip(rows, chosen, strict=True):
                found[row] = token
        return F.one_hot(torch.tensor(found), self._vocabulary).float()

    def alone(self, text: GrowingText) -> Tensor:
        return self.next_logits([text])[0]

    def _predicted(self, contexts: Sequence[list[int]], length: int) -> list[int]:
        answer = self._answer(contexts, 0)
        if not self._checked and self._fixed != length:
            if not torch.equal(answer[:, :length], self._answer(contexts, 1)[:, :length]):
                raise ModelError(
                    f"the package takes rows of exactly {self._fixed} tokens, and what it predicts depends on the tokens after "
                    "a text: generate from the run that it was exported from"
                )
            self._checked = True
        tokens: list[int] = answer[:, length - 1].tolist()
        return tokens

    @torch.inference_mode()
    def _answer(self, contexts: Sequence[list[int]], padding: int) -> Tensor:
        size = self._fixed or len(contexts[0])
        x = torch.tensor([ids + [padding] * (size - len(ids)) for ids in contexts], device=self._device)
        places = torch.arange(size, device=self._device).expand_as(x).contiguous()
        lengths = torch.tensor([len(ids) for ids in contexts], device=self._device)
        known = {"x": x, "positions": places, "documents": torch.zeros_like(x), "length": lengths}
        return self._run({name: known[name] for name in self._names})["prediction"]
