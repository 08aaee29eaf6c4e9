"""Settings that all training pods share, whichever job starts them."""

from __future__ import annotations

from typing import Any

from flatout.fleet.clusterjob import ClusterJob

RECIPE_FOLDER, RUNS_FOLDER, DATA_FOLDER = "/recipe", "/runs", "/data"
LABEL = "flatout-job"
_LOST_AFTER_S = 30  # Kubernetes waits 5 min for a silent node by default, while all other nodes stand still


def meta(job: ClusterJob, name: str, **more: Any) -> dict[str, Any]:
    """Metadata of an object, with one label by which all objects of a job are found and deleted."""
    found: dict[str, Any] = {"name": name}
    if job.namespace is not None:
        found["namespace"] = job.namespace
    return {**found, "labels": {LABEL: job.name}, **more}


def queue_labels(job: ClusterJob) -> dict[str, str]:
    return {LABEL: job.name} | ({} if job.queue is None else {"kueue.x-k8s.io/queue-name": job.queue})


def pod_meta(job: ClusterJob) -> dict[str, Any]:
    """Keeps a node autoscaler from evicting the run. A cloud that reclaims a spot node does not ask."""
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    return {"labels": {LABEL: job.name}, "annotations": annotations}


def run_command(job: ClusterJob, *more: str) -> list[str]:
    return ["flatout", "run", f"{RECIPE_FOLDER}/{job.recipe_name}", *job.arguments, "--runs", RUNS_FOLDER, *pinned(job), *more]


def pinned(job: ClusterJob) -> list[str]:
    """Settings from which the run computes how often to save. Explicit --set arguments come first."""
    lost = job.interruptions
    settings = {"failure_every": f"{round(lost.lost_every_s)} s", "grace": f"{round(lost.notice_s)} s"}
    given = {argument.partition("=")[0] for argument in job.arguments}
    return [word for name, value in settings.items() if name not in given for word in ("--set", f"{name}={value}")]


def resources(job: ClusterJob) -> dict[str, Any]:
    """Devices are limits, as Kubernetes requires. For cores and memory only a minimum is requested; the rest may be used."""
    if job.resource is None:
        return {"requests": {"cpu": job.cores, "memory": job.host_memory}}
    devices = {job.resource: str(job.devices)}
    return {"limits": devices, "requests": {"cpu": job.cores, "memory": job.host_memory, **devices}}


def volumes(job: ClusterJob) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "recipe", "configMap": {"name": f"{job.name}-recipe"}},
        {"name": "runs", "persistentVolumeClaim": {"claimName": job.claim}},
    ]
    if job.data_claim is not None:
        found.append({"name": "data", "persistentVolumeClaim": {"claimName": job.data_claim, "readOnly": True}})
    return found


def mounts(job: ClusterJob) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "recipe", "mountPath": RECIPE_FOLDER, "readOnly": True},
        {"name": "runs", "mountPath": RUNS_FOLDER},
    ]
    if job.data_claim is not None:
        found.append({"name": "data", "mountPath": DATA_FOLDER, "readOnly": True})
    return found


def placement(job: ClusterJob) -> dict[str, Any]:
    """On which nodes a training pod may run, how long to wait for it, and how soon a silent node is given up."""
    cloud = job.interruptions.cloud
    tolerations: list[dict[str, Any]] = [] if cloud is None else cloud.tolerations()
    if job.resource is not None:
        tolerations.append({"key": job.resource, "operator": "Exists", "effect": "NoSchedule"})
    for state in ("not-ready", "unreachable"):
        lost = {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute"}
        tolerations.append({**lost, "tolerationSeconds": _LOST_AFTER_S})
    labels = {**(cloud.node_labels if cloud else {}), **job.node_labels}
    found: dict[str, Any] = {"terminationGracePeriodSeconds": job.interruptions.grace_s, "tolerations": tolerations}
    return {**found, "nodeSelector": labels} if labels else found


def config_map(job: ClusterJob) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(job, f"{job.name}-recipe"), "data": dict(job.files)}


def claim(job: ClusterJob) -> dict[str, Any]:
    """A single node can use a volume exclusively; several nodes write to the same folder."""
    alone = job.kind == "trainjob" and job.nodes.most == 1
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce" if alone else "ReadWriteMany"],
        "resources": {"requests": {"storage": job.storage}},
    }
    if job.storage_class is not None:
        spec["storageClassName"] = job.storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta(job, job.claim), "spec": spec}
