"""Which operators a stored program may call: functions of tensors and numbers, none that reads or writes a file.

A program is data from elsewhere, so every name in it is looked up here, never imported or evaluated.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch

from flatout.base.errors import ModelError

_ATEN = re.compile(r"(aten|prims)\.(\w+)\.(\w+)")
_TOUCHES_FILES = frozenset({"from_file", "save", "load", "warn", "format", "print"})  # of the aten namespace
_PYTHON = {
    f"operator.{name}": getattr(operator, name)
    for name in ("getitem", "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pow", "eq", "ne", "lt", "le", "gt", "ge")
}
_SYMBOLIC = {f"torch.{name}": getattr(torch, name) for name in ("sym_int", "sym_float", "sym_max", "sym_min", "sym_not")}
_MATH = {f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")}
_PLAIN: dict[str, Callable[..., Any]] = {**_PYTHON, **_SYMBOLIC, **_MATH}
_NAMES = {function: name for name, function in _PLAIN.items()}


def operator_name(function: Any) -> str:
    """The name of an operator in a stored program. ModelError if a program may not call it."""
    if isinstance(function, torch._ops.OpOverload):
        name = f"{function.namespace}.{function._opname}.{function._overloadname}"
        operator_called(name)
        return name
    if function in _NAMES:
        return _NAMES[function]
    raise ModelError(f"the model calls {function}, which is not an operator of PyTorch's ATen")


def operator_called(name: str) -> Callable[..., Any]:
    """The operator of a name. ModelError if there is none, or if a program may not call it."""
    if name in _PLAIN:
        return _PLAIN[name]
    matched = _ATEN.fullmatch(name)
    if matched is None:
        raise ModelError(f"the model calls {name!r}, an operator that only its own code or library defines")
    namespace, short, overload = matched.groups()
    if short in _TOUCHES_FILES:
        raise ModelError(f"the program calls {name!r}, which reads or writes outside of tensors")
    try:
        found: Any = getattr(getattr(getattr(torch.ops, namespace), short), overload)
    except AttributeError as error:
        raise ModelError(f"this version of torch, {torch.__version__}, has no operator {name!r}") from error
    if not isinstance(found, torch._ops.OpOverload):
        raise ModelError(f"{name!r} is no operator")
    return found
