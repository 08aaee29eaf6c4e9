"""A service as an InferenceService of KServe, in its Standard mode (no Knative), which KEDA scales."""

from __future__ import annotations

from typing import Any

from flatout.fleet import scaling
from flatout.fleet.autoscalers import number, peak_query, queue_query, rate_query, replicas_query
from flatout.fleet.service import Service
from flatout.fleet.serving_pods import LABEL, scraped, service_meta, serving_container, serving_pod

_CONTAINER = "kserve-container"  # the name by which KServe knows the one that answers


def inference_service(service: Service) -> dict[str, Any]:
    meta = service_meta(service)
    meta["annotations"] = {
        "serving.kserve.io/deploymentMode": "Standard",
        "serving.kserve.io/autoscalerClass": "keda" if service.scales else "none",
    }
    predictor: dict[str, Any] = {
        "minReplicas": service.rule.replicas.least,
        "maxReplicas": service.rule.replicas.most,
        "labels": {LABEL: service.name},
        "annotations": scraped(service),
        "deploymentStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    }
    if service.scales:
        # KServe has KEDA divide every metric by the number of replicas, so the queue's is multiplied by it first
        queue = f"({queue_query(service)}) * {replicas_query(service)}"
        metrics = [
            _external(service, rate_query(service), service.rule.per_replica),
            _external(service, queue, 1e3 * service.rule.queue_s),
            _external(service, peak_query(service), service.rule.peak_per_replica),
        ]
        behaviour = {
            "scaleUp": {"stabilizationWindowSeconds": 0},
            "scaleDown": {"stabilizationWindowSeconds": scaling.DOWN_AFTER_S},
        }
        predictor["autoScaling"] = {"metrics": metrics, "behavior": behaviour}
    predictor |= {**serving_pod(service), "containers": [serving_container(service, _CONTAINER)]}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": meta,
        "spec": {"predictor": predictor},
    }


def _external(service: Service, query: str, target: float) -> dict[str, Any]:
    metric = {"backend": "prometheus", "serverAddress": service.prometheus, "query": query}
    return {"type": "External", "external": {"metric": metric, "target": {"type": "Value", "value": number(target)}}}
