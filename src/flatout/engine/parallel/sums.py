"""Sums gradients over processes with other rows, where no engine of torch does it during the backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flatout.store.tensors import local_part


@torch.no_grad()
def sum_gradients_(parameters: Iterable[Tensor], group: Any, bucket_bytes: int = 25 << 20) -> None:
    """In place, in buckets. With split gradients, `group` has the processes with the same part."""
    pending = []
    for bucket in _buckets((local_part(p.grad) for p in parameters if p.grad is not None), bucket_bytes):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        pending.append((bucket, flat, dist.all_reduce(flat, group=group, async_op=True)))
    for bucket, flat, work in pending:
        work.wait()
        parts = flat.split([gradient.numel() for gradient in bucket])
        torch._foreach_copy_(bucket, [part.view_as(gradient) for part, gradient in zip(parts, bucket, strict=True)])


def _buckets(gradients: Iterable[Tensor], limit: int) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for gradient in gradients:
        if bucket and (gradient.dtype != bucket[0].dtype or sum(one.nbytes for one in bucket) + gradient.nbytes > limit):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket
