"""Spot nodes of three clouds: how a pod asks for one, and how long before its end a node is told."""

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
    taint: tuple[str, str] | None  # key and value; None: its nodes carry none unless their owner says so
    notice_s: float  # between the first SIGTERM in a pod and the end of its node, as far as the cloud promises any
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
        "a node is told 30 s ahead, and the kubelet keeps 15 s of them for system pods",
    ),
    # no karpenter.sh/do-not-disrupt: with it a pod is not drained at the notice either, and ends with its node, unasked
    "eks": Cloud(
        "eks",
        "spot node of Karpenter on Amazon EKS",
        {"karpenter.sh/capacity-type": "spot"},
        None,
        120.0,
        "a node is told 2 min ahead; Karpenter drains it then, if its interruption queue is set up",
    ),
    "aks": Cloud(
        "aks",
        "spot node of Azure Kubernetes Service",
        {"kubernetes.azure.com/scalesetpriority": "spot"},
        ("kubernetes.azure.com/scalesetpriority", "spot"),
        30.0,
        "a node is told 30 s ahead",
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
    raise UsageError(f"--spot: no cloud {name!r}; {hint}")
