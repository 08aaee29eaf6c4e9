"""A column `mask` for models of transformers: 1 for the tokens of a row, 0 for its padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from flatout.base.errors import DataError
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Column, Schema


@dataclass(frozen=True)
class AttentionMask:
    """From the column `length`; rows that were padded by someone else have none, and there `pad` is no token."""

    pad: int = 0

    def describe(self, schema: Schema) -> dict[str, Column]:
        if "x" not in schema or len(schema["x"].shape) != 1:
            raise DataError(f"attention_mask needs rows of tokens as x, got {', '.join(schema)}")
        return {**schema, "mask": Column(torch.int64, schema["x"].shape)}

    def __call__(self, batch: Batch, keys: Keys) -> Batch:
        x = batch["x"]
        places = torch.arange(x.shape[1], device=x.device)
        mask = places < batch["length"].unsqueeze(1) if "length" in batch else x != self.pad
        return {**batch, "mask": mask.to(torch.int64)}

    def written(self) -> Any:
        return {"attention_mask": self.pad}
