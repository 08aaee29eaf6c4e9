"""Probabilities where the loss expects logits: a softmax or sigmoid at the end of a model, which then learns less."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flatout.objectives.binary import Binary
from flatout.objectives.classify import Classify
from flatout.objectives.multilabel import Multilabel
from flatout.objectives.next_token import NextToken
from flatout.objectives.objective import Objective, full_precision

_CLASSES_ALONG = {Classify.loss: 1, NextToken.loss: -1, Binary.loss: None, Multilabel.loss: None}
_OWN = {Classify.loss: "softmax", NextToken.loss: "softmax", Binary.loss: "sigmoid", Multilabel.loss: "sigmoid"}
_ENDS = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
_SAME_NUMBERS = (  # operations after which the numbers are still those of the softmax
    "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "Permute", "T", "Slice", "Select", "Alias",
    "Clone", "ToCopy", "Clamp", "Expand",
)  # fmt: skip


def takes_logits(objective: Objective) -> bool:
    """Whether its loss is one of those built in that apply softmax or sigmoid; a subclass may have another loss."""
    return type(objective).loss in _CLASSES_ALONG


def why_no_logits(objective: Objective, output: Any) -> str | None:
    """What is wrong and what to do, if `output` are probabilities. `output` was computed with gradients, so that it tells its
    last operation: numbers between 0 and 1 alone may well be logits of an untrained model."""
    loss = type(objective).loss
    if loss not in _CLASSES_ALONG or not isinstance(output, Tensor) or not output.numel():
        return None
    values, along = full_precision(output.detach()), _CLASSES_ALONG[loss]
    if not bool(((values >= 0) & (values <= 1)).all()):
        return None
    if (last := last_operation(output)) is not None:
        seen = f"the model ends in a {last}"
    elif along is not None and _sum_to_one(values, along, output.dtype):
        seen, last = "the model's outputs are all between 0 and 1, and those of each row sum to 1", "softmax"
    else:
        return None
    own, instead = _OWN[loss], "output.log()" if last == "softmax" else "output.logit()"
    return (
        f"{seen}, but {objective.name} expects logits and applies {own} itself: with it twice, the model learns slowly or not "
        f"at all. Remove the {last} at the end of the model, or return {instead}"
    )


def last_operation(output: Tensor) -> str | None:
    """ "softmax" or "sigmoid" if the output is computed by one, also through a view or a copy of it."""
    node = output.grad_fn
    while node is not None:
        name = node.name()
        if name in _ENDS:
            return _ENDS[name]
        if name.rstrip("0123456789").removesuffix("Backward") not in _SAME_NUMBERS:
            return None
        node = node.next_functions[0][0]
    return None


def _sum_to_one(values: Tensor, along: int, dtype: torch.dtype) -> bool:
    near = 1e-4 if dtype in (torch.float32, torch.float64) else 2e-2
    return values.shape[along] > 1 and bool(((values.sum(along) - 1).abs() < near).all())
