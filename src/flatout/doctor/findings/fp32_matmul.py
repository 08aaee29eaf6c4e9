"""Matrix products in float32 on a machine that is much faster in bf16."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor import kinds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.machine.comparisons import in_bfloat16
from flatout.machine.gains import Gain
from flatout.machine.optimisations import AUTOCAST, TF32, Optimisation
from flatout.measure.groups import CONVOLUTIONS, PRODUCTS

_WORTH = 1.3


def look(case: Case) -> Iterator[Finding]:
    plain = [call for call in case.training_calls if not call.autocast and call.parameter_dtype == "float32"]
    if not plain:
        return
    products = case.rows[kinds.MATMUL] + case.rows[kinds.ATTENTION]
    convolutions = case.rows[kinds.CONVOLUTION]
    fast = _factor(case, "bf16", AUTOCAST)
    if fast < _WORTH:
        return
    is_tf32 = case.on_device and case.seen.matmul_precision != "highest"
    over_tf32 = fast / _factor(case, "tf32", TF32)
    of_products = _gain(case, PRODUCTS, products, over_tf32 if is_tf32 else fast)
    of_convolutions = _gain(case, CONVOLUTIONS, convolutions, over_tf32 if case.on_device else fast)  # cuDNN defaults to tf32
    cost = products * (1 - 1 / max(of_products.factor, 1)) + convolutions * (1 - 1 / max(of_convolutions.factor, 1))
    call = max(plain, key=lambda one: one.seconds)
    measured = [
        f"{name} in bf16, {gain.words}"
        for name, gain in (("products", of_products), ("convolutions", of_convolutions))
        if gain.measured
    ]
    yield Finding(
        AUTOCAST.finding,
        cost,
        call.where,
        "The model runs in float32; this machine is much faster in bf16" if not is_tf32 else "The model runs in tf32",
        f"matrix products and convolutions take {show_seconds((products + convolutions) / 1e3)} per step; "
        + ("; ".join(measured) or f"bf16 products are {fast:.2g} times as fast on this machine"),
        "with torch.autocast(device_type, dtype=torch.bfloat16): around the model's call and the loss, or at least "
        'torch.set_float32_matmul_precision("high")',
        short=AUTOCAST.words,
        estimate=not measured,
    )


def _gain(case: Case, group: str, spent_ms: float, by_ceilings: float) -> Gain:
    """The gain for the script's own operators. They are smaller than the products that `flatout probe` times, and gain less."""
    seen = [one for one in case.trace.operations if one.group == group]
    compared = in_bfloat16(case.device, seen, case.seen.matmul_precision) if case.share(spent_ms) >= 0.01 else None
    factor = None if compared is None else case.gains.measured(compared, case.device)
    return Gain(by_ceilings, measured=False) if factor is None else Gain(factor, measured=True)


def _factor(case: Case, precision: str, optimisation: Optimisation) -> float:
    """Speed of large matrix products in `precision`, relative to fp32, on this machine."""
    rates = {} if case.probe is None else case.probe.ceilings.matmul_flops
    if precision in rates and "fp32" in rates:
        return rates[precision].value / rates["fp32"].value
    return (optimisation.usual_gain(case.device.type) or 1.0) if not rates else 1.0
