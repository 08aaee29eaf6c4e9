"""The description of a service in a cluster, checked before anything is written. All problems are reported at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.latency_goal import LatencyGoal
from flatout.fleet.kubernetes_names import (
    cores_problems,
    image_problems,
    label_problems,
    name_problems,
    object_name_problems,
    resource_problems,
    size_problems,
)
from flatout.fleet.replica import Replica
from flatout.fleet.scaling import ScalingRule
from flatout.fleet.spot import Cloud

KINDS = {"deployment": "Deployment", "kserve": "InferenceService"}
AUTOSCALERS = ("hpa", "keda", "none")
PORT = 8000
SEEN_S = 5  # until all proxies of the cluster have seen that a pod ends; new connections come until then
LEAVING_S = 5  # for the processes to end
_MEMORY_ROOM, _MEMORY_LIMIT = 1.25, 2.0  # times the measured memory
_START_ROOM, _LEAST_START_S = 5.0, 60.0  # a node in use, with cold files, takes longer than here
_STEP_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Service:
    """`models` is where the package is in the pod. `claim` is a volume that has it, `storage_uri` is where KServe gets it;
    neither: the image has it."""

    kind: str
    name: str
    image: str
    models: str
    goal: LatencyGoal
    replica: Replica
    rule: ScalingRule
    autoscaler: str = "hpa"
    prometheus: str | None = None
    cpus: str = "1"
    memory: str | None = None
    resource: str | None = None
    devices: int = 0
    drain_s: float = 30.0
    cloud: Cloud | None = None
    claim: str | None = None
    storage_uri: str | None = None
    namespace: str | None = None
    token_secret: str | None = None
    node_labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if problems := _problems(self):
            raise UsageError("\n".join(problems))

    @property
    def scales(self) -> bool:
        return self.autoscaler != "none" and self.rule.replicas.varies

    @property
    def drains_s(self) -> int:
        """Time for requests under way; a spot node does not wait longer than its notice."""
        asked = math.ceil(self.drain_s)
        return asked if self.cloud is None else max(1, min(asked, int(self.cloud.notice_s) - SEEN_S - LEAVING_S))

    @property
    def grace_s(self) -> int:
        return SEEN_S + self.drains_s + LEAVING_S

    @property
    def start_limit_s(self) -> int:
        """A pod that is not ready by then is started again."""
        return math.ceil(max(_LEAST_START_S, _START_ROOM * (self.replica.start_s or _LEAST_START_S)))

    @property
    def requested_memory(self) -> str | None:
        return self.memory or _size(self.replica.memory_bytes, _MEMORY_ROOM)

    @property
    def memory_limit(self) -> str | None:
        return self.memory or _size(self.replica.memory_bytes, _MEMORY_LIMIT)


def _size(measured_bytes: int | None, room: float) -> str | None:
    if measured_bytes is None:
        return None
    return f"{math.ceil(measured_bytes * room / _STEP_BYTES) * 64}Mi"


def _problems(service: Service) -> list[str]:
    found = name_problems(service.name, service.namespace) + image_problems(service.image)
    if service.kind not in KINDS:
        found.append(f"--kind: unknown kind {service.kind!r}; {did_you_mean(service.kind.lower(), KINDS)}")
    if service.autoscaler not in AUTOSCALERS:
        hint = did_you_mean(service.autoscaler.lower(), AUTOSCALERS)
        found.append(f"--autoscaler: unknown autoscaler {service.autoscaler!r}; {hint}")
    needs_address = service.scales and (service.kind == "kserve" or service.autoscaler == "keda")
    if needs_address and service.prometheus is None:
        who = "KServe has KEDA scale it, and KEDA" if service.kind == "kserve" else "KEDA"
        found.append(f"--prometheus is missing: {who} asks Prometheus; such as --prometheus http://prometheus.monitoring:9090")
    if service.prometheus is not None and not service.prometheus.startswith(("http://", "https://")):
        found.append(f"--prometheus must be an address such as http://prometheus.monitoring:9090, got {service.prometheus!r}")
    if not service.models.startswith("/"):
        found.append(f"--path must be an absolute path in the pod such as /package, got {service.models!r}")
    if service.storage_uri is not None and service.kind != "kserve":
        found.append("--storage-uri is fetched by KServe: add --kind kserve, or name a volume with --claim")
    if service.storage_uri is not None and service.claim is not None:
        found.append("--claim and --storage-uri both say where the package is: give only one of them")
    if service.devices < 0:
        found.append(f"--devices: expected 0 or more, got {service.devices}")
    for option, name in (("--claim", service.claim), ("--token-secret", service.token_secret)):
        found += object_name_problems(option, name)
    for key, value in service.node_labels.items():
        found += label_problems(key, value)
    return [
        *found,
        *resource_problems(service.resource),
        *cores_problems(service.cpus),
        *size_problems("--memory", service.memory),
    ]
