"""The next token at every position: cross entropy per token, perplexity, accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flatout.base.errors import DataError, ModelError
from flatout.objectives.inputs import Batch
from flatout.objectives.metrics import SumMeter, ratio
from flatout.objectives.objective import Loss, Meter, Objective, checked_targets, full_precision, shown
from flatout.objectives.token_loss import token_loss

NEVER = -(2**31)


@dataclass(frozen=True)
class NextToken(Objective):
    """Logits [rows, length, vocabulary] against tokens [rows, length]. Targets equal to `ignore` do not count.

    `ignore: null` says that every target counts; the weight is then known from the shapes alone.
    """

    ignore: int | None = -100

    name: ClassVar[str] = "next_token"
    metric: ClassVar[str] = "loss"
    better: ClassVar[Literal["max", "min"]] = "min"

    def loss(self, output: Tensor, batch: Batch) -> Loss:
        target = batch["y"].long().flatten()
        ignored = NEVER if self.ignore is None else self.ignore
        loss = token_loss(output.flatten(0, -2), target, ignored)
        if self.ignore is None:
            return loss, float(target.numel())
        return loss, (target != self.ignore).sum().to(loss.dtype)

    def check(self, output: Any, batch: Batch, outputs: int | None = None) -> None:
        logits, target = checked_targets(self.name, output, batch)
        if target.is_floating_point() or target.is_complex():
            raise ModelError(f"next_token needs integer tokens in 'y', got {target.dtype}: store the tokens as integers")
        if logits.shape[:-1] != target.shape or logits.dim() < 2:
            raise ModelError(
                f"next_token needs logits [rows, length, vocabulary] for targets {shown(target)}, got {shown(logits)}: "
                "the model must give one number for each token of the vocabulary at every position"
            )
        columns = logits.shape[-1]
        if outputs is not None and columns < outputs:
            raise ModelError(
                f"the vocabulary has {outputs} tokens and the model gives {columns} logits: build it with vocabulary: {outputs}"
            )
        counted = target if self.ignore is None else target[target != self.ignore]
        if counted.numel() == 0:
            raise ModelError(f"every target of the first batch is {self.ignore}, which next_token ignores: nothing to learn")
        low, high = int(counted.min()), int(counted.max())
        if low < 0 or high >= columns:
            raise ModelError(
                f"the targets run from {low} to {high} and the model gives {columns} logits, for tokens 0 to {columns - 1}: "
                f"build it with vocabulary: {max(high, 0) + 1}, and mark targets to pass over with {self.ignore}"
            )

    def outputs_for(
        self, *, classes: int | None = None, target_shape: Sequence[int] = (), vocabulary: int | None = None
    ) -> int:
        if vocabulary is None:
            raise DataError("next_token needs data with a vocabulary: use text data, or set vocabulary")
        return vocabulary

    def meter(self, device: torch.device) -> Meter:
        return SumMeter(device, self._measure, _finish)

    def decode(self, output: Tensor) -> dict[str, Tensor]:
        """The likeliest next token after every position; the last column continues the text."""
        best = full_precision(output).log_softmax(-1).max(-1)
        return {"prediction": best.indices, "log_probability": best.values}

    def _measure(self, output: Tensor, batch: Batch) -> dict[str, Tensor | float]:
        # No model gives an ignored target, so the weight of the loss is also the number of tokens that can be right.
        return {"correct": (output.argmax(-1) == batch["y"]).sum()}


def _finish(total: Mapping[str, float]) -> dict[str, float]:
    loss = ratio(total["loss"], total["weight"])
    perplexity = math.exp(loss) if loss < 700 else loss if math.isnan(loss) else math.inf
    return {"loss": loss, "perplexity": perplexity, "accuracy": ratio(total["correct"], total["weight"])}
