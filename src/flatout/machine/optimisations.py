"""Optimisations shared by the doctor, the plan and boost: one name, one description and one expected gain for each.

The doctor's finding reports that one is missing; the plan's knob and boost's remedy turn it on. Its gain is measured on this
machine (machine.gains). The gains below are used if nothing was measured; each has its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Optimisation:
    """Gains are speed-up factors, by device, or by device and format. Empty: must be measured."""

    name: str  # of the remedy, and of the setting if there is one
    words: str  # text in lists of optimisations
    finding: str = ""  # id of the finding that reports it missing
    usual: Mapping[str, float] = field(default_factory=dict)  # for the part of a step that it changes
    usual_of_step: Mapping[str, float] = field(default_factory=dict)  # for a step dominated by that part

    def usual_gain(self, device: str, dtype: str = "float32") -> float | None:
        return self.usual.get(f"{device} {dtype}", self.usual.get(device))


CHANNELS_LAST = Optimisation(
    "channels_last",
    "channels_last",
    "channels_first",
    {
        "cpu": 1.38,  # convolutions of a convnet on two cores
        "cuda": 1.0,  # no real difference in fp32 and tf32
        "cuda float16": 1.9,
        "cuda bfloat16": 1.9,  # ResNet-50 on an H200
    },
    {"cpu": 1.3, "cuda": 1.5},  # if convolutions dominate
)
OWN_CONVOLUTIONS = Optimisation("own_convolutions", "own convolutions", "slow_convolutions")
FUSED_OPTIMIZER = Optimisation(
    "fused_optimizer",
    "fused optimizer",
    "unfused_optimizer",
    {"cpu": 1 / 0.35, "cuda": 1 / 0.35},  # for the update alone
    {"cpu": 1.2, "cuda": 1.2},  # for steps of a few hundred microseconds; less if the update is a small part
)
# Both for large products on an H200, compared with fp32.
AUTOCAST = Optimisation("autocast", "bf16 autocast", "fp32_matmul", {"cuda": 15.0})
TF32 = Optimisation("tf32", "tf32", "fp32_matmul", {"cuda": 7.7})
# Pinned compared with pageable memory on an H200: 55 and 19 GB/s.
PINNED_COPIES = Optimisation("async_copies", "pinned copies", "pageable_copy", {"cuda": 2.9})
# For a step of GPT-2 in bf16 with 50,257 tokens on an H200: 1.7 without a compiler, less with one, as it does the same.
ALIGNED_PRODUCTS = Optimisation("aligned_products", "aligned products", usual_of_step={"cuda": 1.1})
# Compiling takes longer than a measurement here may. On a CPU the gain was 0.83 to 1.22 on small models: worth a trial in a
# long run, never used without one. On a GPU the cost model predicts it.
COMPILE = Optimisation("compile", "compile", "launch_bound", usual_of_step={"cpu": 1.15})
# In addition to compile, on GPT-2 and ResNet-50.
MAX_AUTOTUNE = Optimisation("max_autotune", "max-autotune", usual_of_step={"cuda": 1.02})
