"""Sources for the tests of stores: small, of every form, each row a pure function of its number."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from flatout.data.source import Batch, Column, Source

KINDS = ("photos", "documents", "table")


class MadeUp(Source):
    """`photos`: one ragged column. `documents`: two that share a start, of odd types. `table`: none. Counts what it reads."""

    def __init__(self, kind: str = "photos", rows: int = 200, mean: int = 300, name: str = "a") -> None:
        self.kind, self.rows, self.mean, self.name = kind, rows, mean, name
        self.rows_read = 0
        self._lock = threading.Lock()

    @property
    def schema(self) -> dict[str, Column]:
        whole = Column(torch.int64, ())
        if self.kind == "photos":
            return {"pixels": Column(torch.uint8, (), ragged=self.mean), "start": whole, "height": whole, "y": whole}
        if self.kind == "documents":
            tokens, scores = Column(torch.int16, (), ragged=self.mean), Column(torch.bfloat16, (), ragged=self.mean)
            return {"tokens": tokens, "scores": scores, "start": whole, "y": Column(torch.float32, (2,))}
        return {
            "x": Column(torch.float32, (3, 2)),
            "flag": Column(torch.bool, ()),
            "half": Column(torch.bfloat16, (5,)),
            "y": whole,
        }

    def __len__(self) -> int:
        return self.rows

    def size(self, row: int) -> int:
        """Some rows are empty, some are long."""
        return 0 if row % 17 == 3 else (row * 7919) % (2 * self.mean)

    def read(self, rows: Tensor) -> Batch:
        with self._lock:
            self.rows_read += len(rows)
        return self._made(rows)

    def _made(self, rows: Tensor) -> Batch:
        if self.kind == "table":
            x = (rows.double() * 0.37).sin().float()
            return {
                "x": x[:, None, None] + torch.arange(6.0).reshape(3, 2),
                "flag": rows % 3 == 0,
                "half": (x[:, None] * torch.arange(5.0)).to(torch.bfloat16),
                "y": rows * rows,
            }
        sizes = torch.tensor([self.size(row) for row in rows.tolist()], dtype=torch.int64)
        start = sizes.cumsum(0) - sizes
        runs = [np.random.default_rng([row, len(self.name)]).integers(0, 256, self.size(row)) for row in rows.tolist()]
        flat = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *runs]))
        if self.kind == "photos":
            return {"pixels": flat.to(torch.uint8), "start": start, "height": sizes * 2, "y": rows % 10}
        y = torch.stack([rows.float(), -rows.float()], dim=1)
        return {"tokens": (flat * 100).to(torch.int16), "scores": (flat / 7).to(torch.bfloat16), "start": start, "y": y}

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> Batch:
        """Ragged columns whole, as they are: only where each row begins is picked."""
        ragged = [name for name, column in self.schema.items() if column.ragged is not None]
        return {name: column if name in ragged else column.index_select(0, rows) for name, column in stored.items()}

    def fingerprint(self) -> str:
        return f"{self.kind}-{self.rows}-{self.mean}-{self.name}"


class Sized(MadeUp):
    """Knows the sizes of its rows before it reads them."""

    @property
    def sizes(self) -> Tensor:
        return torch.tensor([self.size(row) for row in range(self.rows)])


def equal(got: Batch, expected: Batch) -> bool:
    """Bit for bit, types and shapes included; NaN equals NaN of the same bits."""
    return got.keys() == expected.keys() and all(
        got[name].dtype == column.dtype
        and got[name].shape == column.shape
        and got[name].contiguous().flatten().view(torch.uint8).equal(column.contiguous().flatten().view(torch.uint8))
        for name, column in expected.items()
    )


def batches(rows: int, seed: int, size: int = 23, count: int | None = None) -> list[Tensor]:
    """All rows once, shuffled, in batches; with a `count`, draws in which rows come again."""
    generator = torch.Generator().manual_seed(seed)
    if count is None:
        return list(torch.randperm(rows, generator=generator).split(size))
    return list(torch.randint(rows, (count, size), generator=generator))
