"""A service as a Deployment, with a Service, an autoscaler, and a limit on how many replicas may be taken away at once."""

from __future__ import annotations

from typing import Any

from flatout.fleet.autoscalers import horizontal_pod_autoscaler, scaled_object
from flatout.fleet.service import Service
from flatout.fleet.serving_pods import LABEL, scraped, service_meta, serving_container, serving_pod

_READY_FOR_S = 5  # before the next replica of the old version is taken


def service_objects(service: Service) -> list[dict[str, Any]]:
    found = [_deployment(service), _service(service)]
    if service.rule.replicas.most > 1:
        found.append(_disruption_budget(service))
    if service.scales:
        found.append(scaled_object(service) if service.autoscaler == "keda" else horizontal_pod_autoscaler(service))
    return found


def _deployment(service: Service) -> dict[str, Any]:
    spec: dict[str, Any] = (
        {} if service.scales else {"replicas": service.rule.replicas.most}
    )  # an autoscaler's is not overwritten
    template = {
        "metadata": {"labels": {LABEL: service.name}, "annotations": scraped(service)},
        "spec": {**serving_pod(service), "containers": [serving_container(service, "serve")]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": service_meta(service),
        "spec": {
            **spec,
            "selector": {"matchLabels": {LABEL: service.name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "minReadySeconds": _READY_FOR_S,
            "progressDeadlineSeconds": 2 * service.start_limit_s + 600,  # a node and the image may have to come first
            "template": template,
        },
    }


def _service(service: Service) -> dict[str, Any]:
    port = {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": service_meta(service),
        "spec": {"type": "ClusterIP", "selector": {LABEL: service.name}, "ports": [port]},
    }


def _disruption_budget(service: Service) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": service_meta(service),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {LABEL: service.name}}},
    }
