"""Observations of a script as plain numbers: filled while it runs, read by the findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass
class ScriptLoader:
    """A DataLoader of the script."""

    where: str  # the line that iterates over it
    made: str  # the line that created it
    workers: int
    batch: int | None
    pins: bool
    persistent: bool
    dataset: str
    iterable: bool
    in_order: bool = False  # reads a dataset from its first row to its last
    batched: bool = True  # by a batch sampler, the script's or torch's
    context: str = ""
    ahead: int = 0  # batches that its workers prefetch
    waits_s: list[float] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)  # time to start the iterator, per pass
    firsts_s: list[float] = field(default_factory=list)  # time to get the first batch after that, per pass
    ends_s: list[float] = field(default_factory=list)  # time after the last batch, per pass
    length: int | None = None  # batches per pass, if known
    told_epoch: bool = False  # its dataset has set_epoch, so its data differs in each pass
    fills: bool = False  # its dataset caches the samples it reads
    samples: int = 0
    in_steps: int = 0  # batches read in the plain window
    passes_in_steps: int = 0  # passes that began in the plain window
    batch_bytes: int = 0  # of the largest batch
    waited: list[tuple[int, int]] = field(default_factory=list)  # begin and end of waits for a batch or for a pass to start

    @property
    def wait_s(self) -> float:
        return sum(self.waits_s)


@dataclass(frozen=True)
class Fetched:
    """The report of one worker of a loader."""

    loader: int
    worker: int
    batches: int
    fetch_s: float
    collate_s: float
    lines: dict[str, int]  # profiler samples by line
    random_states: str  # digest of the dataset's and the global random generators before the first sample
    own_generators: bool
    drew: bool  # reading changed the random states
    first_batch: str


@dataclass
class Optimizer:
    kind: str
    made: str
    stepped: str
    fused: bool
    foreach: bool
    capturable: bool
    tensors: int
    elements: int
    steps: int = 0
    without_gradient: int = 0  # tensors that never had a gradient
    without_gradient_elements: int = 0
    highest_rate: float = 0.0
    tiny_rates: int = 0  # steps with less than a hundred-thousandth of it
    cut_off: int = 0  # of them those that modules computed with, with gradients on
    can_fuse: bool = False
    on: str = "cpu"
    sizes: tuple[int, ...] = ()  # elements of each tensor
    dtype: str = "float32"
    options: Mapping[str, Any] = field(default_factory=dict)  # constructor arguments, without fused, foreach and the like


def is_odd(columns: int) -> bool:
    return columns >= 1024 and columns % 8 != 0


@dataclass
class Calls:
    """All calls of one module from one line of the script."""

    module: str
    where: str
    training: bool
    gradient: bool
    autocast: str  # "bfloat16", or "" where it is off
    parameter_dtype: str
    device: str
    has_convolutions: bool
    channels_last: bool | None  # layout of a four-dimensional input; None without one
    compiled: bool
    count: int = 0
    seconds: float = 0.0
    between: int = 0  # number of steps in which it was called
    batch: int = 0  # the first dimension of its first tensor
    parallel: bool = False  # nn.DataParallel
    spread: bool = False  # over several devices by it
    mode_matters: bool = False  # has dropout or batch norm
    of_torch: bool = False  # its forward is torch's: a Sequential, for example
    odd_products: bool = False  # has a large linear layer whose width does not suit tensor cores

    def is_in(self, periods: list[Period]) -> bool:
        """Was it called in one of these periods?"""
        return any((p.where, p.training, p.gradient) == (self.where, self.training, self.gradient) for p in periods)


@dataclass(frozen=True)
class Period:
    """A period outside training steps, in nanoseconds of the wall clock."""

    start: int
    end: int
    where: str
    training: bool = False  # the model was in training mode
    gradient: bool = False

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


@dataclass
class CompileRecord:
    seconds: float = 0.0
    compiles: int = 0
    recompiles: list[tuple[str, str, float]] = field(default_factory=list)  # where, why, seconds
    breaks: list[tuple[str, str]] = field(default_factory=list)  # where, why
    in_windows_s: float = 0.0


@dataclass(frozen=True)
class GrowingGraph:
    """A variable that keeps autograd graphs alive from step to step, and the line that adds to it."""

    name: str
    where: str
    nodes: int


@dataclass
class MemoryRecord:
    bytes_by_step: list[tuple[int, int]] = field(default_factory=list)
    kept: list[GrowingGraph] = field(default_factory=list)
    device_allocations: int = 0  # cudaMalloc in the windows
    retries: int = 0
    cache_emptied: dict[str, int] = field(default_factory=dict)  # by line, in the windows
    page_faults: int = 0  # on the host, in the plain window
    system_s: float = 0.0  # system time of all threads in the plain window


@dataclass(frozen=True)
class Lookup:
    """An embedding whose gradient is dense."""

    where: str
    rows: int
    elements: int
    looked_up: float  # indices per step

    def more(self, looked_up: float) -> Lookup:
        return replace(self, looked_up=self.looked_up + looked_up)


@dataclass
class CloseLook:
    """Observations of two steps of the warm-up."""

    steps: int = 0
    updates: int = 0  # optimizer steps after a backward pass
    refused: dict[str, tuple[str, str]] = field(
        default_factory=dict
    )  # by line: a loss, and "softmax" or "sigmoid" of its input
    not_finite: list[str] = field(default_factory=list)  # backward passes of a loss that was NaN or infinite
    one_class: list[str] = field(default_factory=list)  # losses whose targets were all of one class
    copied: list[str] = field(default_factory=list)  # lines of losses whose targets are the model's inputs
    broadcast: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)  # by line: two shapes
    cut: list[str] = field(default_factory=list)  # lines that detach what has a gradient
    without_gradient: list[str] = field(default_factory=list)  # updates: where the gradients were cleared
    kept_gradients: list[str] = field(default_factory=list)  # updates with gradients of the step before
    computed_with: set[int] = field(default_factory=set)  # weights that modules computed with, with gradients on
    untrained: dict[int, tuple[int, bool]] = field(
        default_factory=dict
    )  # weights with a gradient and no optimizer: elements, registered
    step_lines: set[str] = field(default_factory=set)  # the lines that led to an update, from the innermost to the script's own
    stale: bool = False  # an optimizer has weights that no module has
    nodes: dict[str, tuple[int, int]] = field(default_factory=dict)  # of the backward pass, by name: needless ones, all
    lookups: dict[int, Lookup] = field(default_factory=dict)
    repeated: dict[str, tuple[int, int, str]] = field(
        default_factory=dict
    )  # line: modules, most calls of one per step, its class


@dataclass(frozen=True)
class Pass:
    """A whole pass over a loader in which the model was called and nothing was trained: an evaluation."""

    where: str
    loader: int
    trained: int  # the loader of the last training before it
    rows: int  # -1 if unknown
    shared: int  # rows that both loaders read; -1 if unknown


@dataclass
class ScriptRecord:
    device: str = "cpu"
    steps: int = 0
    loaders: list[ScriptLoader] = field(default_factory=list)
    fetched: list[Fetched] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    calls: list[Calls] = field(default_factory=list)
    evaluations: list[Period] = field(default_factory=list)
    checkpoints: list[Period] = field(default_factory=list)
    compiles: CompileRecord = field(default_factory=CompileRecord)
    memory: MemoryRecord = field(default_factory=MemoryRecord)
    threads: int = 1
    threads_set: str = ""  # the line of the script that set the threads, or ""
    cores: int = 1
    matmul_precision: str = "highest"
    cudnn_benchmark: bool = False
    scaler: bool = False  # a GradScaler was used
    backwards: int = 0
    outer_calls: int = 0  # of modules, from the script
    look: CloseLook | None = None  # None if the script compiles, or did not train long enough
    passes: list[Pass] = field(default_factory=list)
    scheduled: str = ""  # the line that made the last learning rate scheduler
    anomaly: bool = False  # autograd's anomaly detection was on
    words: dict[str, int] = field(default_factory=dict)  # calls of print and loggers in the profiled window, by line
    writes: dict[str, int] = field(default_factory=dict)  # calls of functions that write files, likewise
    synced: int = 0  # of them those that wait for the disk
    reads: dict[str, int] = field(default_factory=dict)  # values read from the device, by line
    copies: dict[tuple[str, bool, bool], list[int]] = field(default_factory=dict)  # line, pinned, waits: bytes of each
    run_s: float = 0.0  # from the first step to the end
    window_steps: int = 0  # in the plain window
    window_s: float = 0.0
    started_s: float = 0.0  # time before the first step
