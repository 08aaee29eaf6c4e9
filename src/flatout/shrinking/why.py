"""Why a change did not pay, in words, from the profiles of both models: where the time of a call goes before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.units import show_seconds

_ROUNDING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast")
_PRODUCTS = (
    "MatMul", "Gemm", "FusedMatMul", "FusedGemm", "Conv", "FusedConv", "MatMulInteger", "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul", "QLinearConv", "QLinearMatMul", "QGemm", "QAttention", "ConvInteger", "MatMulNBits",
)  # fmt: skip
_INT8 = (
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "QLinearConv",
    "QLinearMatMul",
    "QGemm",
    "ConvInteger",
)
_MOST = 0.3  # of a call: below that, faster products can hardly show
_SLOWER = 1.02
_NOTICED = 0.02  # of a call: conversions of single values, such as of pixels, are no reason


def why_no_gain(before: Mapping[str, Any], after: Mapping[str, Any], batch: int) -> str:
    """`before`: of the float32 model. Both have `whole_us` and `operators_us`."""
    was, now = before["operators_us"], after["operators_us"]
    products_was, products_now = _sum(was, _PRODUCTS), _sum(now, _PRODUCTS)
    rounding = _sum(now, _ROUNDING) - _sum(was, _ROUNDING)
    saved, whole = products_was - products_now, before["whole_us"]
    outside = whole - sum(was.values())
    size = f"at batch {batch}"
    if not any(name in now for name in _INT8) and rounding > _NOTICED * whole and saved <= 0.1 * products_was:
        return (
            f"onnxruntime has no faster kernel for this format on this CPU: {_us(rounding)} of conversions come on top {size}"
        )
    if products_was < _MOST * whole:
        rest = f"{_us(whole - products_was)} of a call's {_us(whole)}"
        what = "outside of all operators" if outside > whole - products_was - outside else "in other operators"
        return f"products take only {products_was / whole:.0%} of the time {size}; {rest} are elsewhere, mostly {what}"
    if products_now > products_was * _SLOWER:
        return f"its products take {_us(products_now)} and those of float32 {_us(products_was)} {size}: too small to gain"
    if rounding >= saved > 0:
        return f"quantising and dequantising costs {_us(rounding)} {size}, and the products save {_us(saved)}"
    return f"the products save {_us(max(saved, 0.0))} of {_us(whole)} {size}, and other work costs as much"


def _sum(operators: Mapping[str, float], names: tuple[str, ...]) -> float:
    return sum(operators.get(name, 0.0) for name in names)


def _us(microseconds: float) -> str:
    return show_seconds(microseconds / 1e6)
