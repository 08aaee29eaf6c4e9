"""How a run is carried out on this machine. What is learned (batch, rate, schedule, samples) is not here: it is the user's."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from flatout.base.budget import Budget
from flatout.base.errors import UsageError, did_you_mean
from flatout.base.option_types import LARGEST
from flatout.base.units import parse_bytes, parse_seconds
from flatout.data.serving.evaluation import TIERS
from flatout.data.stores.compression import COMPRESSIONS

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
COMPILES = ("off", "on", "reduce-overhead", "max-autotune")
ATTENTIONS = ("auto", "flash", "cudnn", "efficient", "math", "flex")
LOSS_HEADS = ("plain", "fused", "joined", "chunked")
RESIDUALS = ("float32", "autocast")
PIPELINES = ("1f1b", "gpipe", "interleaved")
ALLOCATORS = ("default", "expandable")
MIXED = ("bf16", "fp16", "fp8")  # precisions in which the most is computed in fewer bits than it is kept in
LOG_SLOTS = 4096  # the most steps between two log points


@dataclass(frozen=True)
class Settings:
    device: str = "cpu"
    tier: str = "resident"  # where the data lives: on the device, in host memory, in a cache file, at its source
    reader_threads: int = 0  # that read and decode ahead; 0: as many as it turns out to take
    prefetch: int = 0  # batches that are read ahead of the loop; 0: as many as it turns out to take
    disk_budget: str = "auto"  # for caches of data: "50 GB"; auto: half of what is free
    cache_compression: str = "auto"  # of rows that are written there from now on; auto: as the plan finds
    precision: str = "fp32"
    compile: str = "off"
    graph: bool = False  # the whole step, update included, as one CUDA graph
    fused_optimizer: bool = True
    channels_last: bool = False
    attention: str = "auto"
    loss_head: str = "plain"  # of tokens: torch's own, a pass over all logits each way, one in all, or a part of them at a time
    vocabulary_padding: int = 0  # logits are computed for a multiple of it, where the model can; 0: as many as there are
    residual: str = "float32"  # what flows between the blocks of a model of tokens; autocast: in the format of its products
    micro_batch: int = 0  # 0: the whole batch at once
    activation_checkpointing: bool = False
    activation_offload: bool = False  # what the backward needs waits in host memory
    optimizer_offload: bool = False  # the optimizer and its state live in host memory
    allocator: str = "default"  # of device memory; expandable: segments that grow, so that fewer holes are left
    deterministic: bool = True
    log_every: int = 0  # steps; 0: about twice a second
    evaluation_batch: int = 0  # 0: as the training batch
    checkpoint_every: str = "auto"  # from what a save takes; or "2 min", "500 steps"; "end": not on the way
    failure_every: str = "24 h"  # how long a run goes on average until something kills it
    keep_checkpoints: int = 2
    nonfinite_limit: int = 10  # skipped steps in a row before rolling back
    grace: str = "30 s"  # how long a scheduler waits between SIGTERM and SIGKILL
    mesh: str = ""  # of several processes: "data=2,tensor=2"; empty: each has all weights and a share of each batch
    pipeline: str = "1f1b"  # of a mesh with stages: the order in which they take parts of a batch forward and back
    bucket_mb: int = 25  # gradients that are exchanged together, while the backward goes on
    reshard: bool = True  # of sharded weights: a block's are let go after its forward, and gathered again for its backward
    own: Mapping[str, Any] = field(default_factory=dict)  # of knobs that the recipe brings along

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_NAMES = frozenset(one.name for one in fields(Settings) if one.name != "own")


def conflicts(settings: Settings) -> list[str]:
    """Settings that can't go together, each with the way out."""
    on = settings.device.partition(":")[0]
    found = []
    if settings.graph and on != "cuda":
        found.append(f"graph=on needs a CUDA device and the run is on {on}: --off graph")
    if settings.allocator == "expandable" and on != "cuda":
        found.append(f"allocator=expandable is of CUDA devices and the run is on {on}: --off allocator")
    if settings.graph and settings.compile == "reduce-overhead":
        found.append(
            "compile=reduce-overhead makes CUDA graphs of its own, which can't be inside of graph=on: --set compile=on"
        )
    if settings.precision == "fp16" and not settings.fused_optimizer:
        found.append("fp16 needs a fused optimizer, which can skip a step that overflowed: --set precision=bf16")
    if settings.precision == "tf32" and on == "cpu":
        found.append("tf32 is a format of GPUs, and on a CPU it would be fp32: --off precision")
    if settings.attention in ("cudnn", "efficient") and on == "cpu":
        found.append(f"attention={settings.attention} is a kernel of GPUs and the run is on a CPU: --off attention")
    if settings.precision == "fp8" and on != "cuda":
        found.append(f"fp8 needs a CUDA device and the run is on {on}: --off precision")
    if settings.residual == "autocast" and settings.precision not in MIXED:
        found.append(
            f"residual=autocast is a matter of mixed precision and precision={settings.precision} is none: --off residual"
        )
    if settings.attention == "flex" and settings.compile == "off":
        found.append("attention=flex is fast only where it is compiled: --set compile=on, or --off attention")
    if settings.precision == "fp16" and settings.optimizer_offload:
        found.append("fp16 scales the loss on the device, where optimizer_offload=on has no optimizer: --set precision=bf16")
    if settings.activation_offload and settings.compile == "reduce-overhead":
        found.append(
            "activation_offload=on hands out memory that the graphs of compile=reduce-overhead can't know: --set compile=on"
        )
    found += _conflicts_of_a_mesh(settings)
    for name in ("activation_offload", "optimizer_offload"):
        if getattr(settings, name) and on == "cpu":
            found.append(f"{name}=on moves memory to the host, where a run on cpu has it already: --off {name}")
        if getattr(settings, name) and settings.graph:
            found.append(f"{name}=on waits for the host within a step, which a graph can't: --off graph")
    return found


def _conflicts_of_a_mesh(settings: Settings) -> list[str]:
    found = []
    if "context" in settings.mesh and settings.attention == "flex":
        found.append("attention=flex is not for sequences split by context: --off attention")
    split = [axis for axis in ("pipeline", "shard", "tensor") if axis in settings.mesh]
    if not split:
        return found
    axis = split[0]
    refused = {
        "graph": ("off", bool(settings.graph)),
        "optimizer_offload": ("off", settings.optimizer_offload),
        "precision": ("bf16", settings.precision in ("fp8", "fp16")),
    }
    if "tensor" in split or "pipeline" in split:
        axis = "tensor" if "tensor" in split else "pipeline"
        refused["loss_head"] = ("plain", settings.loss_head != "plain")
        refused["vocabulary_padding"] = ("0", settings.vocabulary_padding > 0)
    if "pipeline" in split:
        refused["compile"] = ("off", settings.compile != "off")
    for name, (instead, wrong) in refused.items():
        if wrong:
            found.append(f"{name}={value_of(settings, name)} is not for weights split by {axis}: --set {name}={instead}")
    return found


_CHOICES: dict[str, tuple[str, ...]] = {
    "precision": PRECISIONS, "compile": COMPILES, "attention": ATTENTIONS, "tier": TIERS,
    "cache_compression": ("auto", *COMPRESSIONS), "loss_head": LOSS_HEADS, "allocator": ALLOCATORS,
    "residual": RESIDUALS, "pipeline": PIPELINES,
}  # fmt: skip
# The most that can be: threads are not without end, and a log point can look back on so many steps.
_MOST = {"reader_threads": 1024, "prefetch": 4096, "vocabulary_padding": 1024, "log_every": LOG_SLOTS}
# What a setting is when it is off: as a plain loop has it, or as little of it as there can be.
_PLAIN: dict[str, Any] = {
    "device": "cpu", "tier": "streamed", "reader_threads": 1, "prefetch": 1, "cache_compression": "none",
    "compile": "off", "precision": "fp32", "attention": "auto", "micro_batch": 0,
    "loss_head": "plain", "vocabulary_padding": 0, "residual": "float32", "allocator": "default",
    "log_every": LOG_SLOTS, "evaluation_batch": 0, "checkpoint_every": "end", "mesh": "",
    "pipeline": "1f1b",
}  # fmt: skip
_ON = {"on", "true", "yes", "1"}
_OFF = {"off", "false", "no", "0"}


def value_of(settings: Settings, name: str) -> Any:
    """Of a setting, or of a knob that the recipe brings along."""
    return getattr(settings, name) if name in _NAMES else settings.own.get(name)


def with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    own = {name: value for name, value in values.items() if name not in _NAMES}
    known = {name: value for name, value in values.items() if name in _NAMES}
    return replace(settings, **known, own={**settings.own, **own})


def parse_pins(pins: Mapping[str, object], own: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """What the user pinned, typed, and all the mistakes in it at once. `own`: names of knobs that the recipe brings along."""
    known = {one.name: one for one in fields(Settings) if one.name != "own"}
    parsed: dict[str, Any] = {}
    problems: list[str] = []
    for name, written in pins.items():
        if name in own:
            parsed[name] = _plainly(written)
            continue
        if not isinstance(name, str) or name not in known:
            problems.append(f"settings.{name}: no such setting; {did_you_mean(name, known)}")
            continue
        try:
            parsed[name] = _typed(name, str(known[name].type), written)
        except UsageError as error:
            problems.append(f"settings.{name}: {error}")
    return parsed, problems


def is_setting(name: str) -> bool:
    return name in _NAMES


def off_value(name: str) -> Any:
    """What `--off NAME` pins."""
    known = {one.name: one for one in fields(Settings) if one.name != "own"}
    if name not in known:
        raise UsageError(f"--off {name}: no such setting; {did_you_mean(name, known)}")
    if name in _PLAIN:
        return _PLAIN[name]
    if known[name].type == "bool":
        return False
    raise UsageError(f"--off {name}: this setting can't be off; pin a value with --set {name}=...")


def _typed(name: str, kind: str, written: object) -> Any:
    text = str(written).strip().lower()
    if name in _CHOICES:
        if name == "compile" and text in _ON | _OFF:  # YAML reads a bare on/off as a boolean
            return "on" if text in _ON else "off"
        if text not in _CHOICES[name]:
            raise UsageError(f"expected one of {', '.join(_CHOICES[name])}, got {written!r}")
        return text
    if kind == "bool":
        if text not in _ON | _OFF:
            raise UsageError(f"expected on or off, got {written!r}")
        return text in _ON
    if kind == "int":
        return _number(name, text, written)
    text = str(written)
    if name in ("grace", "failure_every") and _or_none(parse_seconds, text) is None:
        raise UsageError(f"expected a time, such as 30 s, got {written!r}")
    if name == "disk_budget" and text != "auto" and _or_none(parse_bytes, text) is None:
        raise UsageError(f"expected auto or a size, such as 50 GB, got {written!r}")
    if name == "checkpoint_every" and text not in ("auto", "end"):
        every = _or_none(Budget.parse, text)
        if every is None or every.target or every.unit not in ("seconds", "steps"):
            raise UsageError(f"expected auto, end, a time or steps, such as 2 min or 500 steps, got {written!r}")
    return text


def _number(name: str, text: str, written: object) -> int:
    number = None if isinstance(written, bool) else _whole(text)
    if number is None:
        raise UsageError(f"expected a whole number, got {written!r}")
    if number < 0:
        raise UsageError(f"expected a number that is not negative, got {written!r}")
    if number == 0 and name in ("nonfinite_limit", "keep_checkpoints", "bucket_mb"):
        raise UsageError("expected 1 or more, got 0")
    if number > (most := _MOST.get(name, LARGEST)):
        raise UsageError(f"expected {most:,} or less, got {written!r}")
    return number


def _whole(text: str) -> int | None:
    """Written as anywhere in a recipe: 1000, 1e3 or 1000.0."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if math.isfinite(number) and number.is_integer() else None


def _plainly(written: object) -> object:
    """A value of a knob that the recipe brings along: words of a command line as what they mean."""
    if not isinstance(written, str):
        return written
    for number in (int, float):
        try:
            return number(written)
        except ValueError:
            continue
    text = written.strip().lower()
    return text in _ON if text in _ON | _OFF else written


def _or_none(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except UsageError:
        return None
