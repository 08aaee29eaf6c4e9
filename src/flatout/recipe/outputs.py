"""Whether the model returns what the loss expects, where both can be computed and only learning suffers."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from flatout.engine.job import Job
from flatout.models.dataless import is_dataless
from flatout.objectives.probabilities import takes_logits, why_no_logits
from flatout.recipe.build import few_rows, first_output


def why_outputs_are_doubtful(job: Job, device: torch.device) -> str | None:
    """The reason and what to do, from one forward pass of two rows; None if nothing speaks against them."""
    if is_dataless(job.model) or not takes_logits(job.objective):
        return None
    batch, was_training = few_rows(job.data, device), job.model.training
    job.model.to(device).eval()
    try:
        with torch.enable_grad(), saved_tensors_hooks(_nothing, _nothing):  # there is no backward, so nothing has to be kept
            return why_no_logits(job.objective, first_output(job, batch))
    finally:
        job.model.train(was_training)


def _nothing(_: Any) -> Any:
    return None
