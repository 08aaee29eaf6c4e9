"""Every knob, in the order in which defaults are decided: later ones look at earlier ones."""

from __future__ import annotations

from flatout.plan.knobs import (
    activation_checkpointing,
    activation_offload,
    allocator,
    attention,
    channels_last,
    compile,
    fused_optimizer,
    graph,
    loss_head,
    micro_batch,
    optimizer_offload,
    precision,
    residual,
    vocabulary_padding,
)
from flatout.plan.knobs.knob import Knob

KNOBS: tuple[Knob, ...] = (
    precision, graph, compile, fused_optimizer, channels_last, micro_batch, attention, activation_checkpointing,
    loss_head, vocabulary_padding, residual, activation_offload, optimizer_offload, allocator,
)  # fmt: skip
