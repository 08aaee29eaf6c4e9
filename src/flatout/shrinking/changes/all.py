"""All changes. A new one is a module of its own and a word here."""

from __future__ import annotations

from flatout.shrinking.changes.bfloat16 import Bfloat16
from flatout.shrinking.changes.change import ModelChange
from flatout.shrinking.changes.distill import Distill
from flatout.shrinking.changes.float16 import Float16
from flatout.shrinking.changes.fp8 import Fp8
from flatout.shrinking.changes.int8_dynamic import Int8Dynamic
from flatout.shrinking.changes.int8_products import Int8Products
from flatout.shrinking.changes.int8_static import Int8Static
from flatout.shrinking.changes.low_rank import LowRank
from flatout.shrinking.changes.program_change import ProgramChange
from flatout.shrinking.changes.prune import Prune
from flatout.shrinking.changes.shallow import Shallow
from flatout.shrinking.changes.small_weights import SmallWeights
from flatout.shrinking.changes.sparse_2_4 import Sparse24
from flatout.shrinking.changes.trained import TrainedChange

CHANGES: dict[str, ModelChange] = {
    one.name: one for one in (Int8Dynamic(), Int8Static(), Float16(), Bfloat16(), SmallWeights(), LowRank())
}
OF_PROGRAMS: dict[str, ProgramChange] = {one.name: one for one in (Fp8(), Int8Products(), Sparse24())}
"""On a GPU, where the model is its program and not its ONNX file."""
TRAINED: dict[str, TrainedChange] = {one.name: one for one in (Prune(), Distill(), Shallow())}


def untrained(name: str) -> ModelChange | ProgramChange:
    return CHANGES[name] if name in CHANGES else OF_PROGRAMS[name]


def comes_first(name: str) -> bool:
    """In a candidate; the other changes start from what it made."""
    return name in TRAINED or untrained(name).comes_first
