"""Settings that all serving pods share: a Deployment's and an InferenceService's.

A pod is ready when its server says so, which is when every model has given the run's outputs there and all is warm. It leaves
in three steps: it is taken out of the Service and goes on answering for some seconds, since proxies hear of it late; then
comes SIGTERM, after which the server answers what it has accepted; then it exits.
"""

from __future__ import annotations

from typing import Any

from flatout.fleet.service import PORT, SEEN_S, Service

LABEL = "flatout-service"
_TOKEN = "/token"
USER = 10001  # as in the serving Dockerfile
_PROBE_S = 5


def service_meta(service: Service, name: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name or service.name}
    if service.namespace is not None:
        found["namespace"] = service.namespace
    return {**found, "labels": {LABEL: service.name}}


def scraped(service: Service) -> dict[str, str]:
    """Annotations by which Prometheus' usual configuration finds pods."""
    return {"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT), "prometheus.io/path": "/metrics"}


def serving_container(service: Service, name: str) -> dict[str, Any]:
    ready = {"httpGet": {"path": "/v2/health/ready", "port": "http"}, "periodSeconds": _PROBE_S, "timeoutSeconds": 2}
    live = {"httpGet": {"path": "/v2/health/live", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5}
    return {
        "name": name,
        "image": service.image,
        "command": ["flatout"],
        "args": _arguments(service),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "env": _environment(service),
        "resources": _resources(service),
        "startupProbe": {**ready, "failureThreshold": -(-service.start_limit_s // _PROBE_S)},
        "readinessProbe": {**ready, "failureThreshold": 2},
        "livenessProbe": {**live, "failureThreshold": 6},
        # proxies send connections until they have heard that the pod ends
        "lifecycle": {"preStop": {"sleep": {"seconds": SEEN_S}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": _mounts(service),
    }


def serving_pod(service: Service) -> dict[str, Any]:
    """Everything beside the container."""
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": service.grace_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "automountServiceAccountToken": False,
        "topologySpreadConstraints": [
            _spread(service, "topology.kubernetes.io/zone"),
            _spread(service, "kubernetes.io/hostname"),
        ],
        "volumes": _volumes(service),
    }
    tolerations = [] if service.cloud is None else service.cloud.tolerations()
    if service.resource is not None and service.devices:
        tolerations.append({"key": service.resource, "operator": "Exists", "effect": "NoSchedule"})
    labels = {**(service.cloud.node_labels if service.cloud else {}), **service.node_labels}
    if tolerations:
        pod["tolerations"] = tolerations
    if labels:
        pod["nodeSelector"] = labels
    return pod


def _arguments(service: Service) -> list[str]:
    words = ["serve", f"{service.name}={service.models}", "--host", "0.0.0.0", "--port", str(PORT), "--slo", str(service.goal)]
    words += ["--device", "cuda" if service.devices else "cpu", "--drain", f"{service.drains_s} s"]
    return words if service.token_secret is None else [*words, "--token-file", f"{_TOKEN}/token"]


def _environment(service: Service) -> list[dict[str, str]]:
    found = [{"name": "FLATOUT_CACHE", "value": "/tmp/flatout"}, {"name": "HOME", "value": "/tmp"}]
    if service.storage_uri is not None:
        found.append({"name": "STORAGE_URI", "value": service.storage_uri})
    return found


def _resources(service: Service) -> dict[str, Any]:
    """Cores are limited to what was measured: the server starts as many processes and threads as it may use cores."""
    requests, limits = {"cpu": service.cpus}, {"cpu": service.cpus}
    if service.requested_memory is not None and service.memory_limit is not None:
        requests["memory"], limits["memory"] = service.requested_memory, service.memory_limit
    if service.resource is not None and service.devices:
        requests[service.resource] = limits[service.resource] = str(service.devices)
    return {"requests": requests, "limits": limits}


def _spread(service: Service, over: str) -> dict[str, Any]:
    selector = {"matchLabels": {LABEL: service.name}}
    return {"maxSkew": 1, "topologyKey": over, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}


def _mounts(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"name": "scratch", "mountPath": "/tmp"}]
    if service.claim is not None:
        found.append({"name": "models", "mountPath": _root_of(service.models), "readOnly": True})
    if service.token_secret is not None:
        found.append({"name": "token", "mountPath": _TOKEN, "readOnly": True})
    return found


def _volumes(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"name": "scratch", "emptyDir": {}}]
    if service.claim is not None:
        found.append({"name": "models", "persistentVolumeClaim": {"claimName": service.claim, "readOnly": True}})
    if service.token_secret is not None:
        keys = [{"key": "token", "path": "token"}]
        found.append({"name": "token", "secret": {"secretName": service.token_secret, "items": keys, "defaultMode": 0o440}})
    return found


def _root_of(path: str) -> str:
    """The volume is mounted at the first folder of the path: /models/churn is `churn` on the volume at /models."""
    return "/" + path.strip("/").partition("/")[0]
