"""Whether PyTorch computes fp8 products with a scale for each row on this device."""

from __future__ import annotations

from functools import cache

import torch

from flatout.base.errors import MachineError

FP8_PRODUCT = "aten._scaled_mm.default"


def check_row_scales(device: torch.device) -> None:
    """MachineError if it can't. A GPU was asked about its capability when the product was chosen."""
    if device.type == "cpu" and not _a_cpu_has_them():
        raise MachineError(
            f"this model has layers in fp8, which PyTorch {torch.__version__} computes on a GPU only: "
            "use one (device: cuda), or PyTorch 2.13, which computes them on a CPU too"
        )


@cache
def _a_cpu_has_them() -> bool:
    values, scale = torch.zeros(16, 16, dtype=torch.float8_e4m3fn), torch.ones(16, 1)
    try:
        torch._scaled_mm(values, values.t(), scale, scale.t(), out_dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return True
