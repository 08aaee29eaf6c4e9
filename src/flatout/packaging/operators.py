"""Which operators a stored program may call: functions of tensors and numbers, none that reads or writes a file.

A program is data from elsewhere, so every name in it is looked up here, never imported or evaluated.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection
from typing import Any

import torch

from flatout.base.errors import ModelError

_ATEN = re.compile(r"(aten|prims)\.(\w+)\.(\w+)", re.ASCII)
_READS_ELSEWHERE = frozenset(
    {"from_file", "_reshape_alias", "_nested_view_from_buffer", "_nested_view_from_jagged",
     "_sparse_coo_tensor_unsafe", "_sparse_compressed_tensor_unsafe"}
)  # fmt: skip
"""Operators that read a file, or memory outside of their tensors: they don't check sizes and strides."""
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
    if short in _READS_ELSEWHERE:
        raise ModelError(f"the program calls {name!r}, which reads outside of its tensors")
    try:
        found: Any = getattr(getattr(getattr(torch.ops, namespace), short), overload)
    except AttributeError as error:
        raise ModelError(f"this version of torch, {torch.__version__}, has no operator {name!r}") from error
    if not isinstance(found, torch._ops.OpOverload):
        raise ModelError(f"{name!r} is no operator")
    if not _is_function_of_tensors(found._schema):
        raise ModelError(f"the program calls {name!r}, which is not a function of tensors: it would change or print something")
    return found


def check_call(name: str, positions: int, names: Collection[str]) -> None:
    """ModelError if the operator `name` does not take so many arguments by position, and these by name.

    Names of arguments become part of the code that PyTorch generates for a graph, so only those of the operator are allowed.
    """
    function = operator_called(name)
    known = [one.name for one in function._schema.arguments] if isinstance(function, torch._ops.OpOverload) else []
    for given in names:
        if given not in known:
            raise ModelError(f"the program calls {name!r} with an argument {given!r}, which it does not have")
    if isinstance(function, torch._ops.OpOverload) and positions + len(names) > len(known):
        raise ModelError(f"the program calls {name!r} with {positions + len(names)} arguments; it takes {len(known)}")


def _is_function_of_tensors(schema: Any) -> bool:
    """Whether it returns something that it computes from tensors or shapes, and changes none of its arguments."""
    if schema.is_mutable or not schema.returns:
        return False
    types = [str(one.type) for one in (*schema.arguments, *schema.returns)]
    return any("Tensor" in one or "SymInt" in one for one in types)
