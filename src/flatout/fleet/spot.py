"""Spot nodes of three clouds: how a pod requests one, and how much notice it gets before the node is reclaimed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flatout.base.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Cloud:
    name: str
    words: str
    node_labels: Mapping[str, str]
    taint: tuple[str, str] | None  # key and value; None: the cloud sets none by default
    notice_s: float  # from the first SIGTERM in a pod to the end of its node, as promised by the cloud
    notice_why: str

    def tolerations(self) -> list[dict[str, Any]]:
        if self.taint is None:
            return []
        key, value = self.taint
        return [{"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}]


CLOUDS = {
    "gke": Cloud(
        "gke",
        "Spot VM of Google Kubernetes Engine",
        {"cloud.google.com/gke-spot": "true"},
        ("cloud.google.com/gke-spot", "true"),
        15.0,
        "a node gets 30 s notice, of which the kubelet reserves 15 s for system pods",
    ),
    # without karpenter.sh/do-not-disrupt: it would also prevent draining at the notice, so pods would end without a signal
    "eks": Cloud(
        "eks",
        "spot node of Karpenter on Amazon EKS",
        {"karpenter.sh/capacity-type": "spot"},
        None,
        120.0,
        "a node gets 2 min notice; Karpenter then drains it if its interruption queue is set up",
    ),
    "aks": Cloud(
        "aks",
        "spot node of Azure Kubernetes Service",
        {"kubernetes.azure.com/scalesetpriority": "spot"},
        ("kubernetes.azure.com/scalesetpriority", "spot"),
        30.0,
        "a node gets 30 s notice",
    ),
}  # fmt: skip
_OTHER_NAMES = {
    "aws": "eks", "amazon": "eks", "karpenter": "eks", "gcp": "gke", "google": "gke", "azure": "aks", "microsoft": "aks"
}  # fmt: skip


def pick_cloud(name: str) -> Cloud:
    if name in CLOUDS:
        return CLOUDS[name]
    meant = _OTHER_NAMES.get(name.lower())
    hint = f"did you mean {meant!r}?" if meant else did_you_mean(name.lower(), CLOUDS)
    raise UsageError(f"--spot: unknown cloud {name!r}; {hint}")
