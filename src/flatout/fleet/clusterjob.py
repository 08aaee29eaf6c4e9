"""The description of a cluster job, checked before anything is written. All problems are reported at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from flatout.base.errors import UsageError, did_you_mean
from flatout.fleet.interruptions import Interruptions
from flatout.fleet.kubernetes_names import (
    FILE,
    cores_problems,
    image_problems,
    label_problems,
    name_problems,
    object_name_problems,
    resource_problems,
    size_problems,
)

KINDS = {"trainjob": "TrainJob", "rayjob": "RayJob"}
MOST_BYTES = 2**20 - 2**16  # a ConfigMap holds 1 MiB


@dataclass(frozen=True)
class Nodes:
    """Number of machines: `most`, or as few as `least` for a while if the kind of job allows it."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Nodes:
        match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
        if match is None:
            raise UsageError(f"--nodes must be a number such as 4 or a range such as 2:8, got {text!r}")
        least, most = int(match[1]), int(match[2] or match[1])
        if least < 1:
            raise UsageError(f"--nodes: training needs at least 1 node, got {text!r}")
        if least > most:
            raise UsageError(f"--nodes must be LEAST:MOST, got {text!r}; did you mean {most}:{least}?")
        return cls(least, most)

    @property
    def varies(self) -> bool:
        return self.least != self.most

    def __str__(self) -> str:
        return f"{self.least} to {self.most}" if self.varies else str(self.most)


@dataclass(frozen=True)
class ClusterJob:
    """`files`: the recipe first, then other files it needs. `storage` requests a new volume claim, `runs_claim` names one."""

    kind: str
    name: str
    image: str
    files: Mapping[str, str]
    interruptions: Interruptions
    nodes: Nodes = field(default_factory=lambda: Nodes(1, 1))
    devices: int = 1
    resource: str | None = "nvidia.com/gpu"
    cpus: str | None = None
    memory: str | None = None
    runs_claim: str | None = None
    storage: str | None = None
    storage_class: str | None = None
    data_claim: str | None = None
    namespace: str | None = None
    queue: str | None = None
    node_labels: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()  # for `flatout run`, after the recipe
    restarts: int = 5

    def __post_init__(self) -> None:
        if problems := _problems(self):
            raise UsageError("\n".join(problems))

    @property
    def recipe_name(self) -> str:
        return next(iter(self.files))

    @property
    def claim(self) -> str:
        return self.runs_claim or f"{self.name}-runs"

    @property
    def workers(self) -> int:
        """Training processes when all nodes are available."""
        return self.nodes.most * self.devices

    @property
    def cores(self) -> str:
        """The minimum that is requested: three cores per GPU fit the smallest machines that have one."""
        return self.cpus or str(self.devices * (3 if self.resource else 1))

    @property
    def host_memory(self) -> str:
        return self.memory or f"{self.devices * (12 if self.resource else 4)}Gi"


def _problems(job: ClusterJob) -> list[str]:
    found = [*_of_names(job), *_of_amounts(job)]
    if job.kind not in KINDS:
        found.append(f"--kind: unknown kind {job.kind!r}; {did_you_mean(job.kind.lower(), KINDS)}")
    found += image_problems(job.image)
    if job.runs_claim is None and job.storage is None:
        found.append(
            "runs must be stored outside the pods: name an existing volume claim with --runs-claim, "
            "or request a new one with --storage 100Gi"
        )
    if job.runs_claim is not None and job.storage is not None:
        found.append("--runs-claim names an existing claim and --storage requests a new one: give only one of them")
    if job.storage_class is not None and job.storage is None:
        found.append("--storage-class applies to a new claim: add --storage")
    if job.kind == "trainjob" and job.nodes.varies:
        found.append(
            f"--nodes: a TrainJob has a fixed number of nodes, got {job.nodes.least}:{job.nodes.most}; "
            f"use --nodes {job.nodes.most}, or --kind rayjob, whose cluster grows and shrinks"
        )
    if job.queue is not None and job.nodes.varies:
        found.append("--queue: Kueue needs a fixed number of nodes; give --nodes a single number")
    size = sum(len(text.encode()) for text in job.files.values())
    if size > MOST_BYTES:
        found.append(f"the recipe and its files have {size:,} bytes, but a ConfigMap holds 1 MiB: put them into the image")
    return found


def _of_names(job: ClusterJob) -> list[str]:
    found = name_problems(job.name, job.namespace)
    for option, name in (
        ("--runs-claim", job.runs_claim), ("--data-claim", job.data_claim), ("--queue", job.queue),
        ("--storage-class", job.storage_class),
    ):  # fmt: skip
        found += object_name_problems(option, name)
    for key, value in job.node_labels.items():
        found += label_problems(key, value)
    found += [
        f"{name}: a file name in a ConfigMap can only have letters, digits, '-', '_' and '.'"
        for name in job.files
        if not FILE.fullmatch(name)
    ]
    return found


def _of_amounts(job: ClusterJob) -> list[str]:
    found = []
    if job.devices < 1:
        found.append(f"--devices: each node needs at least 1, got {job.devices}")
    if job.restarts < 0:
        found.append(f"--restarts: expected 0 or more, got {job.restarts}")
    found += [*resource_problems(job.resource), *cores_problems(job.cpus)]
    return [*found, *size_problems("--memory", job.memory), *size_problems("--storage", job.storage)]
