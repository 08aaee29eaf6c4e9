"""How a run computes on this machine. What affects learning (batch, rate, schedule, samples) is in the recipe, not here.

A setting is one field here and one file of the same name in plan/knobs. The field has the default, and its type says which
values are allowed. The file has the rest: when it is chosen and why, values worth a trial, its value when it is off, conflicts
with other settings, its text in `explain`. A setting that is only ever pinned needs no file.
"""

# no annotations from __future__ here: the types of the fields are read at import, and must not be strings

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, Literal

from flatout.base.errors import UsageError, did_you_mean
from flatout.engine.setting_values import INTERVAL, SIZE, TIME, NumberRange, SettingScope, is_of, typed, untyped

MIXED = ("bf16", "fp16", "fp8")  # most is computed in fewer bits than it is stored in
LOG_SLOTS = 4096  # the most steps between two log points
_AROUND, _PROCESSES = SettingScope.AROUND_THE_STEP, SettingScope.PROCESSES


@dataclass(frozen=True)
class Settings:
    """In the order in which they are chosen: the file of a setting may look at the values of those above it."""

    device: str = "cpu"
    # that compute a step on a CPU; 0: as many as torch starts. A resumed run may change it
    threads: Annotated[int, NumberRange(most=1024), _PROCESSES] = 0
    # where the data lives: on the device, in host memory, in a cache file, at its source
    tier: Annotated[Literal["resident", "pinned", "mapped", "streamed"], _AROUND] = "resident"
    reader_threads: Annotated[int, NumberRange(most=1024), _AROUND] = 0  # 0: as many as needed
    prefetch: Annotated[int, NumberRange(most=4096), _AROUND] = 0  # batches read ahead; 0: as many as needed
    disk_budget: Annotated[str, SIZE, _AROUND] = "auto"  # for cached data: "50 GB"; auto: half of the free space
    # of rows written to the cache from now on; auto: the plan chooses
    cache_compression: Annotated[Literal["auto", "none", "lz4", "zstd"], _AROUND] = "auto"
    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp8"] = "fp32"
    graph: bool = False  # the whole step, update included, as one CUDA graph
    compile: Literal["off", "on", "reduce-overhead", "max-autotune"] = "off"
    fused_optimizer: bool = True
    channels_last: bool = False
    micro_batch: int = 0  # 0: the whole batch at once
    attention: Literal["auto", "flash", "cudnn", "efficient", "math", "flex"] = "auto"
    activation_checkpointing: bool = False
    # loss of tokens: torch's own; one pass over the logits per direction; one in all; a part of the logits at a time
    loss_head: Literal["plain", "fused", "joined", "chunked"] = "plain"
    # pads the logits to a multiple of it, if the model can; 0: no padding
    vocabulary_padding: Annotated[int, NumberRange(most=1024)] = 0
    # format of the residual stream of a token model; autocast: the format of its matrix products
    residual: Literal["float32", "autocast"] = "float32"
    activation_offload: bool = False  # activations wait in host memory for the backward
    optimizer_offload: bool = False  # the optimizer and its state live in host memory
    # of device memory; expandable: segments grow, which reduces fragmentation
    allocator: Literal["default", "expandable"] = "default"
    power_limit: Annotated[int, NumberRange(most=10_000)] = 0  # of the GPU, in watts; 0: as it is set
    deterministic: bool = True
    evaluation_batch: Annotated[int, _AROUND] = 0  # 0: the training batch
    # auto: from the time a save takes; or "2 min", "500 steps"; "end": only at the end
    checkpoint_every: Annotated[str, INTERVAL, _AROUND] = "auto"
    log_every: Annotated[int, NumberRange(most=LOG_SLOTS), _AROUND] = 0  # steps; 0: about twice a second
    failure_every: Annotated[str, TIME, _AROUND] = "24 h"  # mean time between failures
    keep_checkpoints: Annotated[int, NumberRange(least=1), _AROUND] = 2
    nonfinite_limit: Annotated[int, NumberRange(least=1), _AROUND] = 10  # skipped steps in a row before rolling back
    grace: Annotated[str, TIME, _AROUND] = "30 s"  # how long a scheduler waits between SIGTERM and SIGKILL
    # layout of several processes: "data=2,tensor=2"; empty: each has all weights and a share of each batch
    mesh: Annotated[str, _PROCESSES] = ""
    # pipeline schedule: the order of forwards and backwards of micro-batches
    pipeline: Annotated[Literal["1f1b", "gpipe", "interleaved"], _PROCESSES] = "1f1b"
    bucket_mb: Annotated[int, NumberRange(least=1), _PROCESSES] = 25  # gradients exchanged together during the backward
    # sharded weights of a block are freed after its forward and gathered again for its backward
    reshard: Annotated[bool, _PROCESSES] = True
    own: Mapping[str, Any] = field(default_factory=dict)  # values of the recipe's own knobs

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
    """The value of a setting, or of one of the recipe's own knobs."""
    return getattr(settings, name) if is_setting(name) else settings.own.get(name)


def with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    own = {name: value for name, value in values.items() if not is_setting(name)}
    known = {name: value for name, value in values.items() if is_setting(name)}
    return replace(settings, **known, own={**settings.own, **own})


def parse_pins(pins: Mapping[str, object], own: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Typed values of what the user pinned, and all mistakes in it. `own`: names of the recipe's own knobs."""
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
