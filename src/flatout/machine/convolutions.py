"""torch's own convolutions, without oneDNN and NNPACK, which torch asks where it has them: on some CPUs they are faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_convolutions() -> Iterator[None]:
    """Neither of the two: pictures are laid out as matrices, and multiplied."""
    onednn, nnpack = torch.backends.mkldnn.enabled, torch.backends.nnpack.set_flags(False)[0]
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = onednn
        torch.backends.nnpack.set_flags(nnpack)
