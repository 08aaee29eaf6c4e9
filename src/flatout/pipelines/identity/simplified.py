"""Other ways to write the same: each becomes one of them, so that only what means something else counts.

A rule is here only if Python gives both ways the same meaning whatever the values are:

- operators on numbers and texts that are written out are worked out, as Python's compiler does it
- `x in [a, b]` and `for x in [a, b]` take a tuple as well: nobody else can see or change that list
- `not x in y` is `x not in y`, `not x is y` is `x is not y`; `a and (b and c)` is `a and b and c`
- `"{:.1f} h".format(a)` is `f"{a:.1f} h"` where a is a name: taking it runs nothing
- `else` after a branch that always leaves is what follows the `if`; `return a if c else b` is such an `if`
- `if a: if b:` without `else` is `if a and b:`; `with a: with b:` is `with a, b:`
- `return None`, `return` and the end of a function are one; `nonlocal a, b` is two such statements
- `x = f()` followed by `return x` is `return f()`, if nothing else names x; a constant in a local that nothing reads does
  nothing; annotations inside of functions are never evaluated
"""

from __future__ import annotations

import ast
import operator
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_LARGEST, _LONGEST_POWER = 1 << 128, 64


def simplified(node: ast.expr) -> ast.expr:
    """The outermost part only: whoever writes the tree asks for each of its parts."""
    if isinstance(node, ast.BinOp | ast.UnaryOp):
        return _worked_out(node)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(node.op, [inner for value in node.values for inner in _operands(value, node.op)])
    if isinstance(node, ast.Compare) and isinstance(node.ops[-1], ast.In | ast.NotIn):
        return ast.Compare(node.left, node.ops, [*node.comparators[:-1], as_tuple(node.comparators[-1])])
    if isinstance(node, ast.Call):
        return _formatted(node) or node
    if isinstance(node, ast.JoinedStr):
        return _joined(node.values)
    return node


def as_tuple(node: ast.expr) -> ast.expr:
    """Of something that is gone through once, on the spot."""
    return ast.Tuple(node.elts, ast.Load()) if isinstance(node, ast.List) else node


def _operands(node: ast.expr, op: ast.boolop) -> list[ast.expr]:
    if isinstance(node, ast.BoolOp) and type(node.op) is type(op):
        return [inner for value in node.values for inner in _operands(value, op)]
    return [node]


def _worked_out(node: ast.BinOp | ast.UnaryOp) -> ast.expr:
    if isinstance(node, ast.UnaryOp):
        inner = _worked_out(node.operand) if isinstance(node.operand, ast.BinOp | ast.UnaryOp) else node.operand
        if isinstance(node.op, ast.Not) and isinstance(inner, ast.Compare) and len(inner.ops) == 1:
            negated = _NEGATED.get(type(inner.ops[0]))
            if negated is not None:
                return simplified(ast.Compare(inner.left, [negated()], inner.comparators))
        if isinstance(node.op, ast.USub | ast.UAdd | ast.Invert) and _is_number(inner):
            value = inner.value  # type: ignore[attr-defined]
            if isinstance(node.op, ast.Invert) and not isinstance(value, int):
                return node
            return ast.Constant(
                -value if isinstance(node.op, ast.USub) else +value if isinstance(node.op, ast.UAdd) else ~value
            )
        return node if inner is node.operand else ast.UnaryOp(node.op, inner)
    left, right = (_worked_out(one) if isinstance(one, ast.BinOp | ast.UnaryOp) else one for one in (node.left, node.right))
    found = _result(node.op, left, right)
    return ast.BinOp(left, node.op, right) if found is None else found


def _result(op: ast.operator, left: ast.expr, right: ast.expr) -> ast.Constant | None:
    if not isinstance(left, ast.Constant) or not isinstance(right, ast.Constant):
        return None
    one: Any = left.value
    other: Any = right.value
    texts = isinstance(one, str) and isinstance(other, str) and isinstance(op, ast.Add)
    numbers = _is_number(left) and _is_number(right) and type(op) in _OPERATORS
    if not texts and not numbers:
        return None
    if isinstance(op, ast.Pow | ast.LShift) and not -_LONGEST_POWER <= other <= _LONGEST_POWER:
        return None
    if numbers and max(abs(one), abs(other)) > _LARGEST:
        return None
    try:
        found = _OPERATORS[type(op)](one, other)
    except (ArithmeticError, ValueError, TypeError):
        return None  # it fails when it runs
    return ast.Constant(found) if isinstance(found, str | int | float) else None


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _joined(values: Sequence[ast.expr]) -> ast.expr:
    found: list[ast.expr] = []
    for one in values:
        if isinstance(one, ast.Constant) and found and isinstance(found[-1], ast.Constant):
            found[-1] = ast.Constant(f"{found[-1].value!s}{one.value!s}")
        else:
            found.append(one)
    if not found:
        return ast.Constant("")
    return found[0] if len(found) == 1 and isinstance(found[0], ast.Constant) else ast.JoinedStr(found)


def _formatted(node: ast.Call) -> ast.expr | None:
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "format" or not isinstance(node.func.value, ast.Constant):
        return None
    given: dict[str, ast.expr] = {str(place): one for place, one in enumerate(node.args)}
    given |= {one.arg: one.value for one in node.keywords if one.arg is not None}
    count = len(node.args) + len(node.keywords)
    if not isinstance(node.func.value.value, str) or len(given) != count:
        return None
    if not all(isinstance(one, ast.Name | ast.Constant) for one in given.values()):
        return None
    if len({one.id for one in given.values() if isinstance(one, ast.Name)}) > 1:
        return None  # to format one could change what the other stands for
    values: list[ast.expr] = []
    used: set[str] = set()
    try:
        fields = list(string.Formatter().parse(node.func.value.value))
    except ValueError:
        return None  # it fails when it runs
    automatic = 0
    for text, name, form, conversion in fields:
        if text:
            values.append(ast.Constant(text))
        if name is None:
            continue
        if name == "":
            name, automatic = str(automatic), automatic + 1
        if name not in given or (form and "{" in form) or (automatic and name.isdigit() and int(name) != automatic - 1):
            return None
        used.add(name)
        spec = ast.JoinedStr([ast.Constant(form)]) if form else None
        values.append(ast.FormattedValue(given[name], ord(conversion) if conversion else -1, spec))
    return _joined(values) if used == given.keys() else None


def simplified_statements(
    body: Sequence[ast.stmt],
    *,
    in_function: bool = False,
    ends_function: bool = False,
    unread: Callable[[str], int] | None = None,
) -> list[ast.stmt]:
    """`ends_function`: what follows the last one is the end of the function.

    `unread`: how often a local name is read; None where names can be seen from outside. Negative: something else binds it too.
    """
    found: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        found += [one for one in (_plainer(node) if in_function else [node]) if not _is_dead(one, unread)]
    found = _flat(found)
    if unread is not None:
        found = _returned_at_once(found, unread)
    if ends_function and found and isinstance(found[-1], ast.Return) and _is_none(found[-1].value):
        found.pop()
    return found


def _is_none(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _plainer(node: ast.stmt) -> list[ast.stmt]:
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [ast.Assign([node.target], node.value)]  # annotations inside of functions are never evaluated
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return []  # that makes the name a local one, as which it is written then
    if isinstance(node, ast.Global | ast.Nonlocal):
        return [type(node)([name]) for name in node.names]
    if isinstance(node, ast.Return):
        if isinstance(node.value, ast.IfExp):
            taken, other = (ast.Return(one) for one in (node.value.body, node.value.orelse))
            return [ast.If(node.value.test, [taken], []), *_plainer(other)]
        return [ast.Return(None)] if _is_none(node.value) else [node]
    return [node]


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If):
            inner = _sole(node.body)
            if isinstance(inner, ast.If) and not node.orelse and not inner.orelse:
                found += _flat([ast.If(ast.BoolOp(ast.And(), [node.test, inner.test]), inner.body, [])])
            elif node.orelse and _leaves(node.body):
                found += [ast.If(node.test, node.body, []), *_flat(node.orelse)]
            else:
                found.append(node)
        elif isinstance(node, ast.With | ast.AsyncWith):
            inner = _sole(node.body)
            if type(inner) is type(node):
                merged: Any = type(node)([*node.items, *inner.items], inner.body)  # type: ignore[union-attr]
                found += _flat([merged])
            else:
                found.append(node)
        else:
            found.append(node)
    return found


def _sole(body: Sequence[ast.stmt]) -> ast.stmt | None:
    plain = [one for one in body if not isinstance(one, ast.Pass)]
    return plain[0] if len(plain) == 1 else None


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], _LEAVING)


def _is_dead(node: ast.stmt, unread: Callable[[str], int] | None) -> bool:
    if unread is None or not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.targets[0], ast.Name) and unread(node.targets[0].id) == 0


def _returned_at_once(body: list[ast.stmt], unread: Callable[[str], int]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for node in body:
        before = found[-1] if found else None
        if (
            isinstance(node, ast.Return) and isinstance(node.value, ast.Name)
            and isinstance(before, ast.Assign) and len(before.targets) == 1 and isinstance(before.targets[0], ast.Name)
            and before.targets[0].id == node.value.id and unread(node.value.id) == 1
        ):  # fmt: skip
            found[-1:] = _plainer(ast.Return(before.value))
        else:
            found.append(node)
    return found


def times_read(function: ast.AST, own: Sequence[str]) -> Callable[[str], int]:
    """Of names that are local and that no function inside names: how often each is read, if one assignment alone binds it."""
    read: Counter[str] = Counter()
    bound: Counter[str] = Counter()
    hidden: set[str] = set()
    waiting: list[tuple[ast.AST, bool]] = [(one, False) for one in ast.iter_child_nodes(function)]
    while waiting:
        node, is_inside = waiting.pop()
        is_inside = is_inside or isinstance(
            node,
            ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.GeneratorExp | ast.ListComp | ast.SetComp
            | ast.DictComp,
        )  # fmt: skip
        if isinstance(node, ast.Name):
            if is_inside:
                hidden.add(node.id)
            (read if isinstance(node.ctx, ast.Load) else bound)[node.id] += 1
        elif isinstance(node, ast.Global | ast.Nonlocal):
            hidden |= set(node.names)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            hidden.add(node.target.id)
        waiting += [(one, is_inside) for one in ast.iter_child_nodes(node)]
    known = set(own) - hidden
    return lambda name: read[name] if name in known and bound[name] == 1 else -1
