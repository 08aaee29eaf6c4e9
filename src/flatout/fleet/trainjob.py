"""A Kubeflow TrainJob (Trainer v2) with its own runtime.

Each job has its own runtime because only there the handling of lost pods can be set. A pod exits with 143 if its run was asked
to stop and has saved, and Kubernetes marks a pod that it evicts as a DisruptionTarget. Both fail the Job with the reason
PodFailurePolicy, which recreates all pods without counting a failure; any other failure is counted.
"""

from __future__ import annotations

from typing import Any

from flatout.fleet.clusterjob import ClusterJob
from flatout.fleet.node import SAVED_AND_LEFT
from flatout.fleet.pods import meta, mounts, placement, pod_meta, queue_labels, resources, run_command, volumes

API = "trainer.kubeflow.org/v1alpha1"
_NODE = "node"  # the job and container in which the controller sets PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR, ...
_TO_LEAVE_S = 5  # for the launcher to exit after its processes


def training_runtime(job: ClusterJob) -> dict[str, Any]:
    disrupted = {
        "failurePolicy": {
            "maxRestarts": job.restarts,
            "rules": [
                {
                    "name": "disrupted",
                    "action": "RestartJobSetAndIgnoreMaxRestarts",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                }
            ],
        },
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
    }
    node = {
        "name": _NODE,
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {
                "backoffLimit": 0,
                "podFailurePolicy": {
                    "rules": [
                        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                        {
                            "action": "FailJob",
                            "onExitCodes": {"containerName": _NODE, "operator": "In", "values": [SAVED_AND_LEFT]},
                        },
                    ]
                },
                "template": {"metadata": pod_meta(job), "spec": _pod(job)},
            },
        },
    }
    return {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        "metadata": meta(job, job.name, labels={**meta(job, job.name)["labels"], "trainer.kubeflow.org/framework": "torch"}),
        "spec": {
            "mlPolicy": {"numNodes": job.nodes.most, "torch": {}},
            "template": {"spec": {**disrupted, "replicatedJobs": [node]}},
        },
    }


def train_job(job: ClusterJob) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": meta(job, job.name, labels=queue_labels(job)),
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name},
            "trainer": {
                "image": job.image,
                "command": ["flatout", "fleet", "node", "-m"],
                "args": run_command(job),
                "numNodes": job.nodes.most,
                "numProcPerNode": job.devices,
                "resourcesPerNode": resources(job),
            },
        },
    }


def _pod(job: ClusterJob) -> dict[str, Any]:
    waits = max(1, job.interruptions.grace_s - _TO_LEAVE_S)
    container = {
        "name": _NODE,
        "image": job.image,
        # torchrun kills its processes 30 s after a SIGTERM unless told how long a save may take
        "env": [{"name": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "value": str(waits)}],
        "volumeMounts": [*mounts(job), {"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    shared = {
        "name": "shared-memory",
        "emptyDir": {"medium": "Memory"},
    }  # the default of 64 MB is too little for NCCL
    return {"restartPolicy": "Never", **placement(job), "containers": [container], "volumes": [*volumes(job), shared]}
