"""torch's own convolutions instead of oneDNN and NNPACK: faster on some CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_convolutions() -> Iterator[None]:
    """Turns off both libraries: convolutions become matrix products (im2col)."""
    onednn, nnpack = torch.backends.mkldnn.enabled, torch.backends.nnpack.set_flags(False)[0]
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = onednn
        torch.backends.nnpack.set_flags(nnpack)
