"""Attention written by hand, recognised while it runs: `softmax(q @ k.T * scale + mask) @ v`.

The product of q and k is not computed at once but noted as `Scores`, a tensor that remembers what the script does with it.
A softmax and a product with v turn it into one call of torch's scaled_dot_product_attention, which never writes the scores to
memory. Anything else computes the scores as the script wrote them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only

from flatout.boost.remedies.einsum_letters import of_queries_and_keys, of_values
from flatout.boost.remedies.plain_calls import PLAIN

NAME = "fused_attention"
_FACTS = frozenset({
    "shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu", "is_sparse", "is_quantized", "is_nested", "is_meta",
    "requires_grad",
})  # fmt: skip
_ASKED = frozenset({"size", "dim", "numel", "nelement", "ndimension", "is_floating_point", "is_complex", "__len__"})
_KEEPS_FORM = frozenset({"view", "reshape", "mean", "squeeze", "unsqueeze", "flatten"})  # what is done with returned weights
_WIDEST = 512  # a wider product is no head of attention
_LOWEST = -1e3  # a score: its share is 0, and rounding it changes no other
_LEAST = 1024  # scores of one head: below that, calls take longer than the scores

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class _Attention:
    """`query` and `key`: [batch, heads, rows, width] or [batch, rows, width]. `keep`: True where a key may be looked at, other
    scores are -inf. `hidden`: True where the score is `low`, a number so low that its share is 0."""

    query: Tensor
    key: Tensor
    scale: float = 1.0
    bias: Tensor | None = None
    keep: Tensor | None = None
    hidden: Tensor | None = None
    low: float = 0.0
    normalised: bool = False  # the softmax was taken
    dropped: float = 0.0

    def of(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """`dtype`: in which it is computed."""
        query, bias, keep = self.query, self.bias, self.keep
        if self.hidden is not None:  # a row that is hidden as a whole looks at all keys alike, and nothing is learned from it
            seen = (~self.hidden).any(-1, keepdim=True)
            query, bias = query * seen, None if bias is None else bias.masked_fill(~seen, 0.0)
            shown = ~(self.hidden & seen)
            keep = shown if keep is None else keep & shown
        flat, mask = query.ndim == 3, keep
        if bias is not None:
            mask = bias.clamp(min=_LOWEST).masked_fill(bias == -math.inf, -math.inf).to(dtype)
            mask = mask if keep is None else mask.masked_fill(~keep, -math.inf)
        if mask is not None and mask.ndim < 2:
            mask = mask.expand(1, self.key.shape[-2])
        if mask is not None and mask.ndim == 3:
            mask = mask.unsqueeze(1 if flat else 0)
        q, k, v = (one.unsqueeze(1) if flat else one for one in (query, self.key, value))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropped, scale=self.scale)
        return found.squeeze(1) if flat else found


@dataclass(frozen=True)
class _Around:
    """What decides about a result besides its inputs."""

    learns: bool
    autocast: torch.dtype | None

    @classmethod
    def now(cls, device: str) -> _Around:
        on = torch.is_autocast_enabled(device)
        return cls(torch.is_grad_enabled(), torch.get_autocast_dtype(device) if on else None)

    @contextmanager
    def again(self, device: str) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.learns))
            if _Around.now(device) != self:
                stack.enter_context(torch.autocast(device, self.autocast, enabled=self.autocast is not None))
            yield


class Scores(Tensor):
    """Computed when something other than attention needs them."""

    _calls: tuple[Call, ...]  # the product, and what was done with it
    _attention: _Attention | None  # None: computed, or used as attention
    _around: _Around
    _versions: tuple[tuple[Tensor, int], ...]
    _computed: Tensor | None

    @staticmethod
    def made(
        call: Call,
        attention: _Attention | None,
        around: _Around,
        shape: torch.Size,
        dtype: torch.dtype,
        *,
        after: Scores | None,
    ) -> Scores:
        """`after`: the scores that the call was made with, if they are not new."""
        versions = tuple((one, one._version) for one in (*call[1], *call[2].values()) if isinstance(one, Tensor))
        device = (versions if after is None else after._versions)[0][0].device
        found: Scores = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            Scores, shape, dtype=dtype, device=device, requires_grad=False
        )
        found._calls, found._versions = (call,), versions
        if after is not None:
            found._calls, found._versions = (*after._calls, call), (*after._versions, *versions)
        found._attention, found._around, found._computed = attention, around, None
        return found

    def computed(self) -> Tensor:
        """As the script wrote it."""
        if self._computed is None:
            self._look_at_versions()
            with torch._C.DisableTorchFunctionSubclass(), self._around.again(self._versions[0][0].device.type):
                value: Any = None
                for function, args, named in self._calls:
                    value = function(*(value if one is _BEFORE else one for one in args), **named)
            self._computed, self._attention = value, None
        return self._computed

    def _look_at_versions(self) -> None:
        if any(one._version != version for one, version in self._versions):
            raise RuntimeError(
                f"the script changed a query, a key or a mask in place before it used their product: it can't use {NAME}"
            )

    def _with(self, call: Call, attention: _Attention, dtype: torch.dtype | None = None) -> Scores:
        return Scores.made(call, attention, self._around, self.shape, dtype or self.dtype, after=self)

    def _becomes(self, other: Scores) -> Scores:
        """After an operation in place."""
        self._calls, self._attention, self._versions = other._calls, other._attention, other._versions
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named, func = kwargs or {}, getattr(func, _ORIGINAL, func)
        name = getattr(func, "__name__", "")
        if name in _ASKED or (name == "__get__" and func.__self__.__name__ in _FACTS):
            if name == "__get__" and func.__self__.__name__ == "requires_grad":
                return _learns(args[0])
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **named)
        if (noted := _noted(name, func, args, named)) is not None:
            return noted
        given, with_names = tree_map_only(Scores, Scores.computed, (tuple(args), dict(named)))
        return func(*given, **with_names)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise TypeError(f"{func} can't take attention scores that were not computed: this script can't use {NAME}")


_BEFORE = object()  # stands for the result of the call before


def _learns(scores: Scores) -> bool:
    return scores._around.learns and any(one.requires_grad for one, _ in scores._versions)


# ---- a product that may become attention ----


def of_product(function: Any, args: tuple[Any, ...], named: dict[str, Any], query: Tensor, key: Tensor) -> Scores | None:
    """None if it does not look like attention. `query` and `key`: as attention takes them, in these `args` in some form."""
    shapes = query.shape, key.shape
    if len(shapes[0]) not in (3, 4) or shapes[0][:-2] != shapes[1][:-2] or shapes[0][-1] != shapes[1][-1] or query.numel() == 0:
        return None
    if shapes[0][-1] > _WIDEST or shapes[0][-2] * shapes[1][-2] < _LEAST or not query.is_floating_point():
        return None
    if query.dtype != key.dtype or query.device != key.device or query.device.type not in ("cpu", "cuda"):
        return None
    around = _Around.now(query.device.type)
    dtype = query.dtype if around.autocast is None or query.dtype == torch.float64 else around.autocast
    attention, call = _Attention(query, key), (function, args, named)
    if function.__name__ == "baddbmm":
        if (attended := _with_input(attention, args[0], named)) is None:
            return None
        attention = attended
    return Scores.made(call, attention, around, torch.Size((*shapes[0][:-1], shapes[1][-2])), dtype, after=None)


def _with_input(attention: _Attention, added: Tensor, named: dict[str, Any]) -> _Attention | None:
    """torch.baddbmm adds its first argument."""
    if set(named) - {"beta", "alpha"} or named.get("alpha", 1) <= 0:
        return None
    beta = named.get("beta", 1)
    shape = (*attention.query.shape[:-1], attention.key.shape[-2])
    if beta and (added.ndim > len(shape) or torch.broadcast_shapes(added.shape, shape) != shape):
        return None
    return replace(attention, scale=float(named.get("alpha", 1)), bias=added * beta if beta else None)


def of_einsum(function: Any, args: tuple[Any, ...]) -> Scores | None:
    forms = of_queries_and_keys(args[0])
    if forms is None or any(one.ndim != len(form) for one, form in zip(args[1:], forms, strict=True)):
        return None
    query, key = (one.permute(form) for one, form in zip(args[1:], forms, strict=True))
    return of_product(function, args, {}, query, key)


# ---- what may follow it ----


def _noted(name: str, func: Any, args: Any, named: dict[str, Any]) -> Any:
    """The result as attention or as scores to be computed later; None if this call needs the scores."""
    scores = next((one for one in args if isinstance(one, Scores)), None)
    if scores is None or scores._computed is not None or sum(isinstance(one, Scores) for one in args) > 1:
        return None
    if any(isinstance(one, Scores) for one in named.values()):
        return None
    call: Call = (func, tuple(_BEFORE if one is scores else one for one in args), dict(named))
    attention = scores._attention
    if attention is None:
        return _reshaped(scores, name, call) if name in _KEEPS_FORM and args[0] is scores else None
    if name in _VALUES:
        return _attended(scores, attention, name, args, named)
    follow = _FOLLOWS.get(name)
    found = None if follow is None else follow(scores, attention, call, args, named)
    return scores._becomes(found) if found is not None and _is_in_place(name, named) else found


def _is_in_place(name: str, named: dict[str, Any]) -> bool:
    return bool((name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or named.get("inplace"))


def _reshaped(scores: Scores, name: str, call: Call) -> Scores:
    """Weights that were used as attention, in another form: most scripts return them and nobody looks."""
    function, args, named = call
    like = torch.empty(scores.shape, dtype=scores.dtype, device="meta")
    shape = function(*(like if one is _BEFORE else one for one in args), **named).shape
    return Scores.made(call, None, scores._around, shape, scores.dtype, after=scores)


def _attended(scores: Scores, attention: _Attention, name: str, args: Any, named: dict[str, Any]) -> Tensor | None:
    """The product of the weights with the values."""
    at = 1 if name == "einsum" else 0
    value: Any = args[at + 1] if len(args) == at + 2 and args[at] is scores and not named else None
    forms = of_values(args[0]) if name == "einsum" else None
    if not attention.normalised or type(value) not in PLAIN or (name == "einsum" and forms is None):
        return None
    if forms is not None:
        if value.ndim != len(forms[0]):
            return None
        value = value.permute(forms[0])
    around, device = scores._around, attention.query.device
    if value.ndim != scores.ndim or value.shape[:-1] != (*scores.shape[:-2], scores.shape[-1]) or value.device != device:
        return None
    if _Around.now(device.type) != around:
        return None
    if around.autocast is None and not value.dtype == scores.dtype == attention.query.dtype:
        return None
    scores._look_at_versions()
    found = attention.of(value, around.autocast or value.dtype)
    scores._attention = None
    return found if forms is None else found.permute(forms[1])


def _scaled(scores: Scores, attention: _Attention, call: Call, args: Any, named: dict[str, Any]) -> Scores | None:
    number = _number(_other(args, scores))
    if number is None or named or attention.normalised:
        return None
    function = call[0].__name__
    if "div" in function:
        if not _is_first(scores, args) or number == 0:
            return None
        number = 1 / number
    if not number > 0 or not math.isfinite(number):
        return None
    bias = None if attention.bias is None else attention.bias * number
    return scores._with(call, replace(attention, scale=attention.scale * number, bias=bias, low=attention.low * number))


def _added(scores: Scores, attention: _Attention, call: Call, args: Any, named: dict[str, Any]) -> Scores | None:
    other = _other(args, scores)
    if named or attention.normalised or attention.hidden is not None or not isinstance(other, Tensor):
        return None
    if not other.is_floating_point() or not _fits(other, scores):
        return None
    dtype = torch.promote_types(scores.dtype, other.dtype) if other.ndim else scores.dtype
    if _is_in_place(call[0].__name__, named) and dtype != scores.dtype:
        return None
    bias = other if attention.bias is None else attention.bias + other
    return scores._with(call, replace(attention, bias=bias), dtype)


def _filled(scores: Scores, attention: _Attention, call: Call, args: Any, named: dict[str, Any]) -> Scores | None:
    """masked_fill(mask, value)"""
    if not _is_first(scores, args) or set(named) - {"mask", "value"}:
        return None
    mask = named.get("mask", args[1] if len(args) > 1 else None)
    return _hidden(scores, attention, call, mask, named.get("value", args[-1]))


def _chosen(scores: Scores, attention: _Attention, call: Call, args: Any, named: dict[str, Any]) -> Scores | None:
    """torch.where(keep, scores, value)"""
    if named or len(args) != 3 or args[1] is not scores or not isinstance(args[0], Tensor) or args[0].dtype != torch.bool:
        return None
    return _hidden(scores, attention, call, ~args[0], args[2])


def _hidden(scores: Scores, attention: _Attention, call: Call, mask: Any, value: Any) -> Scores | None:
    number = _number(value)
    is_mask = isinstance(mask, Tensor) and mask.dtype == torch.bool and _fits(mask, scores)
    if number is None or number > _LOWEST or not is_mask or attention.normalised:
        return None
    if number == -math.inf:
        keep = ~mask if attention.keep is None else attention.keep & ~mask
        return scores._with(call, replace(attention, keep=keep))
    # a row that is hidden as a whole would look at the higher ones
    if attention.keep is not None or (attention.hidden is not None and number != attention.low):
        return None
    hidden = mask if attention.hidden is None else attention.hidden | mask
    return scores._with(call, replace(attention, hidden=hidden, low=number))


def _normalised(scores: Scores, attention: _Attention, call: Call, args: Any, named: dict[str, Any]) -> Scores | None:
    dim = named.get("dim", args[1] if len(args) > 1 else None)
    is_known = all(one is None or isinstance(one, int | torch.dtype) for one in (*args[1:], *named.values()))
    if not _is_first(scores, args) or attention.normalised or not is_known or set(named) - {"dim", "dtype", "_stacklevel"}:
        return None
    if dim not in (-1, scores.ndim - 1):
        return None
    given = next((one for one in (*args[1:], *named.values()) if isinstance(one, torch.dtype)), None)
    wide = torch.float32 if scores._around.autocast is not None and scores.dtype != torch.float64 else scores.dtype
    return scores._with(call, replace(attention, normalised=True), given or wide)


def _dropped(scores: Scores, attention: _Attention, call: Call, args: Any, named: dict[str, Any]) -> Scores | None:
    given = {**dict(zip(("input", "p", "training", "inplace"), args, strict=False)), **named}
    share, trains = given.get("p", 0.5), given.get("training", given.get("train", True))
    if (
        not _is_first(scores, (given["input"],))
        or not attention.normalised
        or attention.dropped
        or not isinstance(share, float | int)
    ):
        return None
    if not 0 <= share < 1:
        return None
    return scores._with(call, replace(attention, dropped=float(share) if trains else 0.0))


def _cast(scores: Scores, attention: _Attention, call: Call, args: Any, named: dict[str, Any]) -> Scores | None:
    if not _is_first(scores, args) or named or len(args) > 2:
        return None
    name = call[0].__name__
    if name in _TO:
        dtype: Any = _TO[name]
    else:
        other = args[1] if len(args) == 2 else None
        dtype = other.dtype if name == "type_as" and isinstance(other, Tensor) else other
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return None
    return scores._with(call, attention, dtype)


def _is_first(scores: Scores, args: Any) -> bool:
    return args[0] is scores


def _other(args: Any, scores: Scores) -> Any:
    return next((one for one in args if one is not scores), None) if len(args) == 2 else None


def _number(value: Any) -> float | None:
    """None for what is not a fixed number on the host."""
    if isinstance(value, Tensor):
        is_here = value.numel() == 1 and not value.requires_grad and value.device.type == "cpu" and value.ndim == 0
        return float(value) if is_here else None
    return float(value) if isinstance(value, int | float) else None


def _fits(mask: Tensor, scores: Scores) -> bool:
    """Does it hold for these scores as they are, and is it a tensor like any other?"""
    if type(mask) not in PLAIN or mask.ndim > scores.ndim or mask.is_inference() or mask.device != scores.device:
        return False
    ends = zip(reversed(mask.shape), reversed(scores.shape), strict=False)
    return all(one in (1, size) for one, size in ends)


_VALUES = frozenset({"matmul", "__matmul__", "bmm", "einsum"})
_TO = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}
_Follow = Callable[[Scores, _Attention, Call, Any, dict[str, Any]], "Scores | None"]
_FOLLOWS: dict[str, _Follow] = {
    **dict.fromkeys(("mul", "mul_", "__mul__", "__rmul__", "__imul__"), _scaled),
    **dict.fromkeys(("div", "div_", "__truediv__", "__itruediv__", "__div__", "true_divide"), _scaled),
    **dict.fromkeys(("add", "add_", "__add__", "__radd__", "__iadd__"), _added),
    **dict.fromkeys(("masked_fill", "masked_fill_"), _filled),
    "where": _chosen,
    "softmax": _normalised,
    "dropout": _dropped,
    **dict.fromkeys(("to", "type", "type_as", *_TO), _cast),
}


_ORIGINAL = f"of_{NAME}"


def as_plain(original: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Calls `original` where nothing was noted. Torch finds it under the wrapper, whose name it asks for."""

    def wrapped(note: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            noted = note(*args, **named)
            return original(*args, **named) if noted is None else noted

        setattr(call, _ORIGINAL, original)
        return call

    return wrapped
