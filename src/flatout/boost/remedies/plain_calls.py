"""Is a call computed at once, on tensors like any other?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (Tensor, nn.Parameter)  # no subclass of a script's or a library's


def is_plain(*tensors: Any) -> bool:
    """Nothing that traces, transforms or simulates calls, and no other kind of tensor."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    if not all(type(one) in PLAIN for one in tensors) or any(one.is_inference() for one in tensors):
        return False
    return torch._C._functorch.peek_interpreter_stack() is None
