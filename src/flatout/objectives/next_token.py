"""The next token at every position: cross entropy per token, perplexity, accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from flatout.base.errors import DataError, ModelError
from flatout.objectives.chunked_loss import HasHead, chunked_loss, joined_loss, lacks_head, projection_of
from flatout.objectives.class_rows import ClassRows, Scratch, class_rows
from flatout.objectives.inputs import Batch
from flatout.objectives.joining import JoinedMeter
from flatout.objectives.likeliest import highest_place
from flatout.objectives.metrics import SumMeter, of_rows, ratio
from flatout.objectives.objective import Loss, LossFunction, Meter, Objective, Task, checked_targets, full_precision, shown
from flatout.objectives.token_loss import fused_loss, has_kernels, plain_loss, token_loss

NEVER = -(2**31)
FROM_HIDDEN = ("joined", "chunked")  # forms of the loss that compute the logits themselves instead of the model's forward


@dataclass(frozen=True)
class NextToken(Objective):
    """Logits [rows, length, vocabulary] against tokens [rows, length]. Targets equal to `ignore` do not count.

    With `ignore: null` every target counts, and the weight follows from the shapes alone.
    """

    ignore: int | None = -100

    name: ClassVar[str] = "next_token"
    metric: ClassVar[str] = "loss"
    better: ClassVar[Literal["max", "min"]] = "min"
    task: ClassVar[Task | None] = "tokens"

    def loss(self, output: Tensor, batch: Batch) -> Loss:
        target = _tokens(batch)
        return self._weighed(token_loss(output.flatten(0, -2), target, self._ignored), target)

    def with_loss_head(self, kind: str, model: nn.Module, device: torch.device) -> LossFunction:
        found = super().with_loss_head(kind, model, device)
        if self._is_redefined:
            return found
        if kind in FROM_HIDDEN:
            return partial(self._with_head, joined_loss if kind == "joined" else chunked_loss)
        return partial(self._whole, fused_loss if kind == "fused" else plain_loss)

    def why_no_loss_head(self, kind: str, model: nn.Module, device: torch.device) -> str | None:
        if kind != "plain" and self._is_redefined:
            return f"loss_head={kind}: {type(self).__name__} computes its own loss: --off loss_head"
        if kind == "fused" and not has_kernels(device):
            return f"loss_head=fused needs a CUDA device and Triton, but the run is on {device}: --off loss_head"
        if kind in FROM_HIDDEN and (missing := lacks_head(model)) is not None:
            return f"loss_head={kind}: {type(model).__name__} lacks {missing}; use --off loss_head, or add it"
        return None

    def _whole(self, formula: Callable[[Tensor, Tensor, int], Tensor], model: nn.Module, batch: Batch) -> Loss:
        target = _tokens(batch)
        return self._weighed(formula(self.forward(model, batch).flatten(0, -2), target, self._ignored), target)

    def _with_head(self, formula: Callable[..., Tensor], model: nn.Module, batch: Batch) -> Loss:
        target, offers = _tokens(batch), cast(HasHead, model)
        hidden = self.inputs.call(offers.hidden, batch).flatten(0, -2)
        return self._weighed(formula(hidden, *projection_of(offers.head), target, self._ignored), target)

    def _weighed(self, loss: Tensor, target: Tensor) -> Loss:
        if self.ignore is None:
            return loss, float(target.numel())
        return loss, (target != self.ignore).sum().to(loss.dtype)

    @property
    def ignored_target(self) -> int | None:
        return self.ignore

    @property
    def loss_is_log_loss(self) -> bool:
        return not self._is_redefined

    def joins(self, batch: Batch) -> bool:
        return not self._is_redefined

    def rows(self, output: Tensor, batch: Batch, scratch: Scratch) -> ClassRows | None:
        return None if self._is_redefined else class_rows(output.flatten(0, -2), _tokens(batch), self._ignored, scratch)

    @property
    def _ignored(self) -> int:
        return NEVER if self.ignore is None else self.ignore

    @property
    def _is_redefined(self) -> bool:
        """By a subclass: then the subclass's formula is used."""
        return any(getattr(type(self), name) is not getattr(NextToken, name) for name in ("__call__", "forward", "loss"))

    def check(self, output: Any, batch: Batch, outputs: int | None = None) -> None:
        logits, target = checked_targets(self.name, output, batch)
        if target.is_floating_point() or target.is_complex():
            raise ModelError(f"next_token needs integer tokens in 'y', got {target.dtype}: store the tokens as integers")
        if logits.shape[:-1] != target.shape or logits.dim() < 2:
            raise ModelError(
                f"next_token needs logits [rows, length, vocabulary] for targets {shown(target)}, got {shown(logits)}: "
                "the model must return one number per token of the vocabulary at every position"
            )
        columns = logits.shape[-1]
        if outputs is not None and columns < outputs:
            raise ModelError(
                f"the vocabulary has {outputs} tokens, the model returns {columns} logits: build it with vocabulary: {outputs}"
            )
        counted = target if self.ignore is None else target[target != self.ignore]
        if counted.numel() == 0:
            raise ModelError(f"every target of the first batch is {self.ignore}, which next_token ignores: nothing to learn")
        low, high = int(counted.min()), int(counted.max())
        if low < 0 or high >= columns:
            raise ModelError(
                f"the targets are {low} to {high}, but the model returns {columns} logits, for tokens 0 to {columns - 1}: "
                f"build it with vocabulary: {max(high, 0) + 1}, and mark targets to ignore with {self.ignore}"
            )

    def outputs_for(
        self, *, classes: int | None = None, target_shape: Sequence[int] = (), vocabulary: int | None = None
    ) -> int:
        if vocabulary is None:
            raise DataError("next_token needs data with a vocabulary: use text data, or set vocabulary")
        return vocabulary

    def meter(self, device: torch.device) -> Meter:
        return JoinedMeter(SumMeter(device, self._measure, _finish, of_rows), device, self)

    def decode(self, output: Tensor) -> dict[str, Tensor]:
        """The most likely next token after every position; the last column continues the text."""
        best = full_precision(output).log_softmax(-1).max(-1)
        return {"prediction": best.indices, "log_probability": best.values}

    def _measure(self, output: Tensor, batch: Batch) -> dict[str, Tensor | float]:
        # No prediction equals an ignored target, so the weight of the loss is also the number of tokens that can be right.
        return {"correct": (highest_place(output) == batch["y"]).sum()}


def _tokens(batch: Batch) -> Tensor:
    return batch["y"].long().flatten()


def _finish(total: Mapping[str, float]) -> dict[str, float]:
    loss = ratio(total["loss"], total["weight"])
    perplexity = math.exp(loss) if loss < 700 else loss if math.isnan(loss) else math.inf
    return {"loss": loss, "perplexity": perplexity, "accuracy": ratio(total["correct"], total["weight"])}
