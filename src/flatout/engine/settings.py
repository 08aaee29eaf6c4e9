"""How a run is carried out on this machine. What is learned (batch, rate, schedule, samples) is not here: it is the user's.

A setting is one field here and one file of the same name in plan/knobs. The field has the default, and its type says what may
be written. The file has the rest: when it is chosen and why, values worth a trial, its value when it is off, settings that it
can't go with, its words in `explain`. A setting that is only ever pinned needs no file.
"""

# no annotations from __future__ here: the types of the fields are read, and as text they would have to be evaluated first

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, Literal

from flatout.base.errors import UsageError, did_you_mean
from flatout.engine.setting_values import INTERVAL, SIZE, TIME, NumberRange, SettingScope, is_of, typed, untyped

MIXED = ("bf16", "fp16", "fp8")  # precisions in which the most is computed in fewer bits than it is kept in
LOG_SLOTS = 4096  # the most steps between two log points
_AROUND, _PROCESSES = SettingScope.AROUND_THE_STEP, SettingScope.PROCESSES


@dataclass(frozen=True)
class Settings:
    """In the order in which settings are decided: the file of one may look at what those above it came to."""

    device: str = "cpu"
    # where the data lives: on the device, in host memory, in a cache file, at its source
    tier: Annotated[Literal["resident", "pinned", "mapped", "streamed"], _AROUND] = "resident"
    reader_threads: Annotated[int, NumberRange(most=1024), _AROUND] = 0  # that read and decode ahead; 0: as many as it takes
    prefetch: Annotated[int, NumberRange(most=4096), _AROUND] = 0  # batches read ahead of the loop; 0: as many as it takes
    disk_budget: Annotated[str, SIZE, _AROUND] = "auto"  # for caches of data: "50 GB"; auto: half of what is free
    # of rows that are written there from now on; auto: as the plan finds
    cache_compression: Annotated[Literal["auto", "none", "lz4", "zstd"], _AROUND] = "auto"
    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp8"] = "fp32"
    graph: bool = False  # the whole step, update included, as one CUDA graph
    compile: Literal["off", "on", "reduce-overhead", "max-autotune"] = "off"
    fused_optimizer: bool = True
    channels_last: bool = False
    micro_batch: int = 0  # 0: the whole batch at once
    attention: Literal["auto", "flash", "cudnn", "efficient", "math", "flex"] = "auto"
    activation_checkpointing: bool = False
    # of tokens: torch's own, a pass over all logits each way, one in all, or a part of them at a time
    loss_head: Literal["plain", "fused", "joined", "chunked"] = "plain"
    # logits are computed for a multiple of it, where the model can; 0: as many as there are
    vocabulary_padding: Annotated[int, NumberRange(most=1024)] = 0
    # what flows between the blocks of a model of tokens; autocast: in the format of its products
    residual: Literal["float32", "autocast"] = "float32"
    activation_offload: bool = False  # what the backward needs waits in host memory
    optimizer_offload: bool = False  # the optimizer and its state live in host memory
    # of device memory; expandable: segments that grow, so that fewer holes are left
    allocator: Literal["default", "expandable"] = "default"
    deterministic: bool = True
    evaluation_batch: Annotated[int, _AROUND] = 0  # 0: as the training batch
    # from what a save takes; or "2 min", "500 steps"; "end": not on the way
    checkpoint_every: Annotated[str, INTERVAL, _AROUND] = "auto"
    log_every: Annotated[int, NumberRange(most=LOG_SLOTS), _AROUND] = 0  # steps; 0: about twice a second
    failure_every: Annotated[str, TIME, _AROUND] = "24 h"  # how long a run goes on average until something kills it
    keep_checkpoints: Annotated[int, NumberRange(least=1), _AROUND] = 2
    nonfinite_limit: Annotated[int, NumberRange(least=1), _AROUND] = 10  # skipped steps in a row before rolling back
    grace: Annotated[str, TIME, _AROUND] = "30 s"  # how long a scheduler waits between SIGTERM and SIGKILL
    # of several processes: "data=2,tensor=2"; empty: each has all weights and a share of each batch
    mesh: Annotated[str, _PROCESSES] = ""
    # of a mesh with stages: the order in which they take parts of a batch forward and back
    pipeline: Annotated[Literal["1f1b", "gpipe", "interleaved"], _PROCESSES] = "1f1b"
    bucket_mb: Annotated[int, NumberRange(least=1), _PROCESSES] = 25  # gradients exchanged together, while the backward goes on
    # of sharded weights: a block's are let go after its forward, and gathered again for its backward
    reshard: Annotated[bool, _PROCESSES] = True
    own: Mapping[str, Any] = field(default_factory=dict)  # of knobs that the recipe brings along

    @property
    def device_kind(self) -> str:
        return self.device.partition(":")[0]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_TYPES: dict[str, Any] = {one.name: one.type for one in fields(Settings) if one.name != "own"}
SETTING_NAMES = tuple(_TYPES)


def is_setting(name: str) -> bool:
    return name in _TYPES


@cache
def settings_of(scope: SettingScope) -> frozenset[str]:
    return frozenset(name for name, kind in _TYPES.items() if is_of(kind, scope))


def is_switch(name: str) -> bool:
    return isinstance(value_of(Settings(), name), bool)


def value_of(settings: Settings, name: str) -> Any:
    """Of a setting, or of a knob that the recipe brings along."""
    return getattr(settings, name) if is_setting(name) else settings.own.get(name)


def with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    own = {name: value for name, value in values.items() if not is_setting(name)}
    known = {name: value for name, value in values.items() if is_setting(name)}
    return replace(settings, **known, own={**settings.own, **own})


def parse_pins(pins: Mapping[str, object], own: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """What the user pinned, typed, and all the mistakes in it at once. `own`: names of knobs that the recipe brings along."""
    parsed: dict[str, Any] = {}
    problems: list[str] = []
    for name, written in pins.items():
        if name in own:
            parsed[name] = untyped(written)
            continue
        if not isinstance(name, str) or not is_setting(name):
            problems.append(f"settings.{name}: no such setting; {did_you_mean(name, SETTING_NAMES)}")
            continue
        try:
            parsed[name] = typed(_TYPES[name], written)
        except UsageError as error:
            problems.append(f"settings.{name}: {error}")
    return parsed, problems
