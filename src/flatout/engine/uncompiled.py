"""torch's compiler stays unloaded in a process that compiles nothing: loading it takes seconds.

Torch keeps its compiler out of some of its own functions, such as those of its optimizers, and the first call of one of them
loads the compiler to tell it so. As long as the compiler isn't there, it needs no telling.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch.optim import Optimizer

_KEPT_OUT = "__dynamo_disable"  # where torch remembers how to call a function past its compiler


def compiler_loaded() -> bool:
    return "torch._dynamo" in sys.modules


@contextmanager
def compiler_left_out() -> Iterator[None]:
    """Within, using an optimizer does not load the compiler."""
    wrapped = (Optimizer.add_param_group, Optimizer.state_dict, Optimizer.load_state_dict, Optimizer.zero_grad)
    plain = [one.__wrapped__ for one in wrapped if hasattr(one, "__wrapped__")]
    marked = [] if compiler_loaded() else [one for one in plain if not hasattr(one, _KEPT_OUT)]
    for one in marked:
        setattr(one, _KEPT_OUT, one)
    try:
        yield
    finally:
        for one in marked:
            delattr(one, _KEPT_OUT)
