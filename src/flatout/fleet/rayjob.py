"""A KubeRay RayJob with its own cluster, and a Service with a fixed name.

The head coordinates the cluster and does not train. It never runs on a spot node, because losing it would lose everything.
Workers come and go; Ray Train places the processes and restarts them from the last checkpoint.
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
_IDLE_S = 300  # an idle worker between two attempts is not released at once


def ray_job(job: ClusterJob) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "RayJob",
        "metadata": meta(job, job.name, labels=queue_labels(job)),
        "spec": {
            "entrypoint": shlex.join(run_command(job, "--on", "ray", "--workers", str(job.workers))),
            "submissionMode": "K8sJobMode",
            "backoffLimit": job.restarts,  # each attempt has a new cluster; the same command resumes
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "rayClusterSpec": {**_autoscaling(job), "headGroupSpec": _head(job), "workerGroupSpecs": [_workers(job)]},
        },
    }


def dashboard_service(job: ClusterJob) -> dict[str, Any]:
    """KubeRay renames the cluster's own service with every attempt."""
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
    """Only for a range: with a fixed number the operator replaces lost workers."""
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
