"""Every knob, in the order in which defaults are decided: later ones look at earlier ones."""

from __future__ import annotations

from flatout.plan.knobs import (
    activation_checkpointing,
    attention,
    channels_last,
    compile,
    fused_optimizer,
    graph,
    micro_batch,
    precision,
)
from flatout.plan.knobs.knob import Knob

KNOBS: tuple[Knob, ...] = (
    precision, graph, compile, fused_optimizer, channels_last, micro_batch, attention, activation_checkpointing,
)  # fmt: skip
