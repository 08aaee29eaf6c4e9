"""Optimisations that the doctor, the plan and boost all know: one name, one description and one expected gain for each.

The doctor's finding says that one is missing, the plan's knob and boost's remedy switch it on. How much it gains is measured
on this machine (machine.gains). The gains written here are for where nothing was measured; each says where it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Optimisation:
    """Gains are times as fast, by kind of device, or by device and format. Empty: only a measurement can tell."""

    name: str  # of the remedy, and of the setting if it has one
    words: str  # in a list of optimisations worth trying
    finding: str = ""  # id of the finding that says it is missing
    usual: Mapping[str, float] = field(default_factory=dict)  # of the part of a step that it is about
    usual_of_step: Mapping[str, float] = field(default_factory=dict)  # of a step in which that part takes long

    def usual_gain(self, device: str, dtype: str = "float32") -> float | None:
        return self.usual.get(f"{device} {dtype}", self.usual.get(device))


CHANNELS_LAST = Optimisation(
    "channels_last",
    "channels_last",
    "channels_first",
    {
        "cpu": 1.38,  # convolutions of a convnet on two cores
        "cuda": 1.0,  # in fp32 and tf32 no difference to speak of
        "cuda float16": 1.9,
        "cuda bfloat16": 1.9,  # ResNet-50 on an H200
    },
    {"cpu": 1.3, "cuda": 1.5},  # where convolutions dominate
)
OWN_CONVOLUTIONS = Optimisation("own_convolutions", "own convolutions", "slow_convolutions")
FUSED_OPTIMIZER = Optimisation(
    "fused_optimizer",
    "fused optimizer",
    "unfused_optimizer",
    {"cpu": 1 / 0.35, "cuda": 1 / 0.35},  # of the time of the update
    {"cpu": 1.2, "cuda": 1.2},  # on steps of a few hundred microseconds; less where the update is a small part
)
# Both of large products on an H200, over fp32.
AUTOCAST = Optimisation("autocast", "bf16 autocast", "fp32_matmul", {"cuda": 15.0})
TF32 = Optimisation("tf32", "tf32", "fp32_matmul", {"cuda": 7.7})
# Pinned over pageable memory on an H200: 55 over 19 GB/s.
PINNED_COPIES = Optimisation("async_copies", "pinned copies", "pageable_copy", {"cuda": 2.9})
# Of a step of GPT-2 in bf16 with 50,257 tokens, on an H200: 1.7 without a compiler, less with one, which does the same.
ALIGNED_PRODUCTS = Optimisation("aligned_products", "aligned products", usual_of_step={"cuda": 1.1})
# Compiling takes longer than any measurement here may. On a CPU the gain was 0.83 to 1.22 on small models: worth a trial in a
# long run, never taken without one. On a GPU the cost model predicts it.
COMPILE = Optimisation("compile", "compile", "launch_bound", usual_of_step={"cpu": 1.15})
# Beyond compile, on GPT-2 and ResNet-50.
MAX_AUTOTUNE = Optimisation("max_autotune", "max-autotune", usual_of_step={"cuda": 1.02})
