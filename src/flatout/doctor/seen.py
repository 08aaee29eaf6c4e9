"""What was seen of a script, in plain figures: filled while it runs, read by the findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ScriptLoader:
    """One DataLoader of the script."""

    where: str  # the line that goes through it
    made: str  # the line that made it
    workers: int
    batch: int | None
    pins: bool
    persistent: bool
    dataset: str
    iterable: bool
    batched: bool = True  # by a sampler, whoever made it
    context: str = ""
    ahead: int = 0  # so many batches its workers may have ready
    waits_s: list[float] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)  # each time that a pass over it began
    firsts_s: list[float] = field(default_factory=list)  # what the first batch of each pass took then
    ends_s: list[float] = field(default_factory=list)  # from its last batch on
    length: int | None = None  # batches of a pass, where it says so
    told_epoch: bool = False  # its dataset has a set_epoch: it is another one in each pass
    fills: bool = False  # its dataset has kept more and more of what was read
    samples: int = 0
    in_steps: int = 0  # batches that were read in the plain window
    batch_bytes: int = 0  # of the largest of them
    waited: list[tuple[int, int]] = field(default_factory=list)  # for each of them, and for the start of a pass: from, to

    @property
    def wait_s(self) -> float:
        return sum(self.waits_s)


@dataclass(frozen=True)
class Fetched:
    """What one worker of a loader says of itself."""

    loader: int
    worker: int
    batches: int
    fetch_s: float
    collate_s: float
    lines: dict[str, int]  # samples by the line that was running
    random_states: str  # of all generators that the dataset holds, and of the global ones, before the first sample
    own_generators: bool
    drew: bool  # did they move while it read?
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
    without_gradient: int = 0  # tensors that never had one
    without_gradient_elements: int = 0
    can_fuse: bool = False
    on: str = "cpu"
    sizes: tuple[int, ...] = ()  # elements of each tensor
    dtype: str = "float32"
    options: Mapping[str, Any] = field(default_factory=dict)  # that it was made with, but for those that say how it is run


def is_odd(columns: int) -> bool:
    return columns >= 1024 and columns % 8 != 0


@dataclass
class Calls:
    """All calls of one module from one line that the script makes itself."""

    module: str
    where: str
    training: bool
    gradient: bool
    autocast: str  # "bfloat16", or "" where it is off
    parameter_dtype: str
    device: str
    has_convolutions: bool
    channels_last: bool | None  # of a four-dimensional input; None: it has none
    compiled: bool
    count: int = 0
    seconds: float = 0.0
    between: int = 0  # in how many of the gaps between two steps it was called
    batch: int = 0  # the first dimension of its first tensor
    parallel: bool = False  # nn.DataParallel
    mode_matters: bool = False  # it has dropout or batch norm
    of_torch: bool = False  # its forward is torch's own: it is a Sequential, or the like
    odd_products: bool = False  # a large linear layer whose columns are no multiple of what tensor cores take

    def is_in(self, periods: list[Period]) -> bool:
        """Was it called so in one of these?"""
        return any((p.where, p.training, p.gradient) == (self.where, self.training, self.gradient) for p in periods)


@dataclass(frozen=True)
class Period:
    """A stretch of time that is no training step. Nanoseconds of the wall clock."""

    start: int
    end: int
    where: str
    training: bool = False  # how the model was called in it
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
    """A graph that is kept alive from step to step: the name that holds it, and the line that adds to it."""

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
    page_faults: int = 0  # of the host, in the plain window
    system_s: float = 0.0  # which the operating system took there, of all threads


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
    threads_set: str = ""  # the line that set them, if it was the script
    cores: int = 1
    matmul_precision: str = "highest"
    cudnn_benchmark: bool = False
    scaler: bool = False  # was a GradScaler used
    backwards: int = 0
    words: dict[str, int] = field(default_factory=dict)  # calls of print and loggers in the profiled window, by line
    reads: dict[str, int] = field(default_factory=dict)  # values read from the device, by line
    copies: dict[tuple[str, bool, bool], list[int]] = field(default_factory=dict)  # line, pinned, waits: bytes of each
    run_s: float = 0.0  # from the first step to the end
    window_steps: int = 0  # in the plain window
    window_s: float = 0.0
    started_s: float = 0.0  # before the first step
