"""Trainings whose speed others published, by model: one measured rate corrects the others, as a user's own would.

None of these rows was used to fit the estimator (its four are in `_published_layouts`). Rates are tokens a second of all
devices together.

MPT: scripts/train/benchmarking/README.md of mosaicml/llm-foundry at 8c8dd48, 2,048 tokens a row, FSDP, bf16, not compiled.
GPT-3: the training steps in the logs of NVIDIA's results (result_0.txt) in mlcommons/training_results_v4.1, of eos_n32, eos_n64
and b200_n8: float8, 2,048 rows a step. MPT-7B's whole training: 1e12 tokens in 9.5 days on 440 A100 of 40 GB for about
200,000 USD, as announced at mosaicml.com/blog/mpt-7b; that is 1.99 USD for a device and hour. Other prices are made up: their
error is that of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from _described_transformers import Transformer

MPT, GPT3 = 50368, 51200


def plain_mlp(name: str, layers: int, width: int, heads: int, vocabulary: int) -> Transformer:
    """A gated MLP of two thirds of the width has the weights and products of the plain one of these models."""
    return Transformer(name, layers, width, heads, heads, round(8 * width / 3), vocabulary)


@dataclass(frozen=True)
class Training:
    """`measured_here`: the row that a user is supposed to have measured; all others are scored. `usd`: published price."""

    model: Transformer
    kind: str
    devices: int
    batch: int
    rate: float
    measured_here: bool = False
    float8: bool = False
    length: int = 2048
    tokens: float = 1e11
    usd: float | None = None

    @property
    def name(self) -> str:
        return f"{self.model.name}, {self.devices} x {self.kind}"


_1B = plain_mlp("MPT-1B", 24, 2048, 16, MPT)
_3B = plain_mlp("MPT-3B", 32, 2560, 20, MPT)
_7B = plain_mlp("MPT-7B", 32, 4096, 32, MPT)
_13B = plain_mlp("MPT-13B", 40, 5120, 40, MPT)
_30B = plain_mlp("MPT-30B", 48, 7168, 56, MPT)
_70B = plain_mlp("MPT-70B", 80, 8192, 64, MPT)
_175B = plain_mlp("GPT-3", 96, 12288, 96, GPT3)
_MPT_7B_USD, _MPT_7B_S = 200_000.0, 9.5 * 86400

PRICES = {"a100-40gb": _MPT_7B_USD / (_MPT_7B_S / 3600 * 440), "a100": 2.0, "h100": 4.0, "b200": 6.0}  # a device and hour

TRAININGS = (
    Training(_1B, "a100-40gb", 8, 512, 154171, measured_here=True),
    Training(_1B, "a100-40gb", 16, 128, 305372),
    Training(_1B, "a100-40gb", 64, 640, 1216104),
    Training(_1B, "a100-40gb", 128, 1280, 2386897),
    Training(_1B, "a100", 8, 448, 164109),
    Training(_1B, "h100", 8, 112, 363645),
    Training(_1B, "h100", 64, 1280, 2841754),
    Training(_1B, "h100", 512, 6144, 20396905),
    Training(_3B, "a100-40gb", 8, 320, 80520, measured_here=True),
    Training(_3B, "a100-40gb", 32, 192, 317261),
    Training(_3B, "a100-40gb", 128, 768, 1220885),
    Training(_3B, "a100", 8, 160, 86491),
    Training(_3B, "h100", 64, 1152, 1441663),
    Training(_3B, "h100", 512, 4096, 11092218),
    Training(_7B, "a100-40gb", 8, 384, 29436, measured_here=True),
    Training(_7B, "a100-40gb", 32, 576, 119202),
    Training(_7B, "a100-40gb", 128, 2304, 463749),
    Training(_7B, "a100-40gb", 440, 1760, 1e12 / _MPT_7B_S, tokens=1e12, usd=_MPT_7B_USD),
    Training(_7B, "a100", 8, 96, 37130),
    Training(_7B, "h100", 8, 48, 85144),
    Training(_7B, "h100", 128, 768, 1340830),
    Training(_7B, "h100", 512, 3072, 4951479),
    Training(_13B, "a100-40gb", 16, 160, 31900, measured_here=True),
    Training(_13B, "a100-40gb", 128, 2048, 252444),
    Training(_13B, "a100", 8, 48, 18097),
    Training(_13B, "h100", 8, 16, 38336),
    Training(_13B, "h100", 512, 8192, 2535811),
    Training(_30B, "a100-40gb", 32, 128, 27431, measured_here=True),
    Training(_30B, "a100-40gb", 128, 768, 110803),
    Training(_30B, "a100", 8, 504, 7330),
    Training(_30B, "h100", 8, 504, 16022),
    Training(_30B, "h100", 32, 1344, 73860),
    Training(_30B, "h100", 512, 4096, 1083366),
    Training(_70B, "a100", 64, 2048, 26274, measured_here=True),
    Training(_70B, "a100-40gb", 128, 512, 48194),
    Training(_70B, "h100", 64, 2048, 66523),
    Training(_70B, "h100", 512, 4096, 515636),
    Training(_175B, "h100", 256, 2048, 2048 * 2048 / 18.37, measured_here=True, float8=True),
    Training(_175B, "h100", 512, 2048, 2048 * 2048 / 9.495, float8=True),
    Training(_175B, "b200", 64, 2048, 2048 * 2048 / 36.04, float8=True),
)
