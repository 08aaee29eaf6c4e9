"""A KubeRay RayJob with a cluster of its own, and a Service under a name that is known beforehand.

The head holds the cluster together and trains nothing, so it never asks for a spot node: with it everything would be lost.
Workers come and go; Ray Train places the processes and starts them again from the last checkpoint.
"""

from __future__ import annotations

import shlex
from typing import Any

from flatout.fleet.clusterjob import ClusterJob
from flatout.fleet.pods import LABEL, meta, mounts, placement, pod_meta, queue_labels, resources, run_command, volumes

API = "ray.io/v1"
DASHBOARD = 8265
_PORTS = {"gcs-server": 6379, "dashboard": DASHBOARD, "client": 10001}
_HEAD = {"cpu": "2", "memory": "8Gi"}
_IDLE_S = 300  # a worker that stands idle between two attempts is not given back at once


def ray_job(job: ClusterJob) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "RayJob",
        "metadata": meta(job, job.name, labels=queue_labels(job)),
        "spec": {
            "entrypoint": shlex.join(run_command(job, "--on", "ray", "--workers", str(job.workers))),
            "submissionMode": "K8sJobMode",
            "backoffLimit": job.restarts,  # each with a new cluster; the same command goes on where the last one was
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "rayClusterSpec": {**_autoscaling(job), "headGroupSpec": _head(job), "workerGroupSpecs": [_workers(job)]},
        },
    }


def dashboard_service(job: ClusterJob) -> dict[str, Any]:
    """The cluster's own one is named anew with every attempt."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta(job, f"{job.name}-dashboard"),
        "spec": {
            "type": "ClusterIP",
            "selector": {LABEL: job.name, "ray.io/node-type": "head"},
            "ports": [{"name": "dashboard", "port": DASHBOARD, "targetPort": DASHBOARD, "protocol": "TCP"}],
        },
    }


def _autoscaling(job: ClusterJob) -> dict[str, Any]:
    """Only for a range: with a fixed number the operator itself replaces what is lost."""
    if not job.nodes.varies:
        return {}
    options = {"version": "v2", "upscalingMode": "Default", "idleTimeoutSeconds": _IDLE_S}
    return {"enableInTreeAutoscaling": True, "autoscalerOptions": options}


def _head(job: ClusterJob) -> dict[str, Any]:
    container = {
        "name": "ray-head",
        "image": job.image,
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in _PORTS.items()],
        "resources": {"limits": {"memory": _HEAD["memory"]}, "requests": dict(_HEAD)},
        "volumeMounts": mounts(job),
    }
    spec = {"containers": [container], "volumes": volumes(job)}
    return {"rayStartParams": {"num-cpus": "0"}, "template": {"metadata": pod_meta(job), "spec": spec}}


def _workers(job: ClusterJob) -> dict[str, Any]:
    container = {"name": "ray-worker", "image": job.image, "resources": resources(job), "volumeMounts": mounts(job)}
    spec = {**placement(job), "containers": [container], "volumes": volumes(job)}
    counts = {"replicas": job.nodes.least, "minReplicas": job.nodes.least, "maxReplicas": job.nodes.most}
    template = {"metadata": pod_meta(job), "spec": spec}
    return {"groupName": "workers", **counts, "rayStartParams": {}, "template": template}
