"""Matrix products in float32 where the machine has units that are many times as fast."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor import kinds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_WORTH = 1.3
# on an H200, where this machine was not measured
_FACTORS = {"bf16": 15.0, "tf32": 7.7}


def look(case: Case) -> Iterator[Finding]:
    plain = [call for call in case.training_calls if not call.autocast and call.parameter_dtype == "float32"]
    if not plain:
        return
    products = case.rows[kinds.MATMUL] + case.rows[kinds.ATTENTION]
    convolutions = case.rows[kinds.CONVOLUTION]
    fast = _factor(case, "bf16")
    if fast < _WORTH:
        return
    is_tf32 = case.on_device and case.seen.matmul_precision != "highest"
    of_products = fast / _factor(case, "tf32") if is_tf32 else fast
    of_convolutions = fast / _factor(case, "tf32") if case.on_device else fast  # cuDNN takes tf32 by itself
    cost = products * (1 - 1 / max(of_products, 1)) + convolutions * (1 - 1 / max(of_convolutions, 1))
    call = max(plain, key=lambda one: one.seconds)
    yield Finding(
        "fp32_matmul",
        cost,
        call.where,
        "The model runs in float32: the fast units of this machine stand idle" if not is_tf32 else "The model runs in tf32",
        f"{show_seconds((products + convolutions) / 1e3)} of products and convolutions a step; "
        f"bf16 products are {fast:.2g} times as fast here",
        "with torch.autocast(device_type, dtype=torch.bfloat16): around the model's call and the loss; at the least "
        'torch.set_float32_matmul_precision("high")',
        short="bf16 autocast",
    )


def _factor(case: Case, precision: str) -> float:
    """How many times as fast as fp32 this machine multiplies."""
    rates = {} if case.probe is None else case.probe.ceilings.matmul_flops
    if precision in rates and "fp32" in rates:
        return rates[precision].value / rates["fp32"].value
    return _FACTORS[precision] if case.on_device and not rates else 1.0
