"""Counts the bits that differ between the final states of two runs."""

from __future__ import annotations

import torch
from torch import Tensor

from flatout.base.errors import StoreError
from flatout.store.run_folder import RunFolder
from flatout.store.tensors import encode, read_tensors


def differing_bits(a: RunFolder, b: RunFolder) -> tuple[int, int]:
    """(differing bits, tensors compared), over the exported weights and all tensors of the last checkpoint."""
    left, right = _final_tensors(a), _final_tensors(b)
    if left.keys() != right.keys():
        raise StoreError(f"the two runs have different tensors; in one run only: {sorted(left.keys() ^ right.keys())[:5]}")
    return sum(_bits(left[name], right[name]) for name in left), len(left)


def _final_tensors(folder: RunFolder) -> dict[str, Tensor]:
    folder.manifest.check(folder.weights_path.name)
    weights = {f"weights.{name}": tensor for name, tensor in read_tensors(folder.weights_path).items()}
    checkpoints = folder.checkpoints()
    state = checkpoints.load(checkpoints.steps()[-1])
    _, tensors = encode(state)
    return {**weights, **tensors}


def _bits(a: Tensor, b: Tensor) -> int:
    if a.shape != b.shape or a.dtype != b.dtype:
        return max(a.numel() * a.element_size(), b.numel() * b.element_size()) * 8
    changed = a.contiguous().reshape(-1).view(torch.uint8) ^ b.contiguous().reshape(-1).view(torch.uint8)
    return sum(int(((changed >> shift) & 1).sum()) for shift in range(8))
