"""The scaling rule as autoscalers take it: Kubernetes' own, and KEDA, which asks Prometheus by itself.

Both get three metrics and take the largest answer: requests per second, the peak that is expected from the last hour, and the
mean time in the queue.
"""

from __future__ import annotations

from typing import Any

from flatout.fleet import scaling
from flatout.fleet.service import Service
from flatout.fleet.serving_pods import service_meta

RATE_METRIC, QUEUE_METRIC = "flatout_requests_per_second", "flatout_queue_milliseconds"
PEAK_METRIC = "flatout_expected_peak_per_second"  # of the whole service: replicas that are new know of no earlier hour
_FAILED_LOOKS = 4  # until KEDA falls back, if Prometheus does not answer


def horizontal_pod_autoscaler(service: Service) -> dict[str, Any]:
    """The metrics of pods come from an adapter, such as prometheus-adapter; docs/fleet.md has its rules."""
    rule = service.rule
    metrics = [
        _pods_metric(RATE_METRIC, rule.per_replica),
        _pods_metric(QUEUE_METRIC, 1e3 * rule.queue_s),
        _service_metric(PEAK_METRIC, service.name, rule.peak_per_replica),
    ]
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": service_meta(service),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": service.name},
            "minReplicas": rule.replicas.least,
            "maxReplicas": rule.replicas.most,
            "metrics": metrics,
            "behavior": _behaviour(),
        },
    }


def scaled_object(service: Service) -> dict[str, Any]:
    rule = service.rule
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": service_meta(service),
        "spec": {
            "scaleTargetRef": {"name": service.name},
            "minReplicaCount": rule.replicas.least,
            "maxReplicaCount": rule.replicas.most,
            "pollingInterval": scaling.LOOK_S,
            "fallback": {
                "failureThreshold": _FAILED_LOOKS,
                "replicas": rule.replicas.least,
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behaviour()}},
            "triggers": [
                _trigger(service, "rate", "AverageValue", rate_query(service), rule.per_replica),
                _trigger(service, "queue", "Value", queue_query(service), 1e3 * rule.queue_s),
                _trigger(service, "peak", "AverageValue", peak_query(service), rule.peak_per_replica),
            ],
        },
    }


def rate_query(service: Service) -> str:
    """Requests per second of all replicas, those that were refused included, and where a growing load will be."""
    rate = f"sum(rate(flatout_requests_total{_of(service)}[{scaling.WINDOW_S}s]"
    return f"{rate})) + {scaling.TREND} * clamp_min({rate})) - {rate} offset {scaling.LOOK_S}s)), 0)"


def peak_query(service: Service) -> str:
    """As fast as the load has grown in the last hour, up to the highest of that hour."""
    rate = f"sum(rate(flatout_requests_total{_of(service)}[{scaling.WINDOW_S}s]"
    back = f"[{scaling.PEAK_S}s:{scaling.LOOK_S}s]"
    grown = f"{rate})) * max_over_time(({rate})) / {rate} offset {scaling.LEAD_S}s))){back})"
    highest = f"max_over_time({rate})){back})"
    return f"{grown} < {highest} or {highest}"


def queue_query(service: Service) -> str:
    """Mean milliseconds in the queue."""
    times, window = _of(service, 'part="queue"'), scaling.WINDOW_S
    total, count = (f"sum(rate(flatout_request_seconds_{what}{times}[{window}s]))" for what in ("sum", "count"))
    return f"1000 * {total} / {count}"


def replicas_query(service: Service) -> str:
    return f"count(nv_inference_pending_request_count{_of(service)})"


def number(value: float) -> str:
    """With three digits, as Kubernetes writes quantities."""
    return f"{float(f'{value:.3g}'):.10f}".rstrip("0").rstrip(".")


def _of(service: Service, *more: str) -> str:
    labels = [f'model="{service.name}"', *more]
    if service.namespace is not None:
        labels.append(f'namespace="{service.namespace}"')
    return "{" + ",".join(labels) + "}"


def _pods_metric(name: str, target: float) -> dict[str, Any]:
    milli = f"{max(1, round(1e3 * target))}m"
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": {"type": "AverageValue", "averageValue": milli}}}


def _service_metric(name: str, model: str, target: float) -> dict[str, Any]:
    milli = f"{max(1, round(1e3 * target))}m"
    metric = {"name": name, "selector": {"matchLabels": {"model": model}}}
    return {"type": "External", "external": {"metric": metric, "target": {"type": "AverageValue", "averageValue": milli}}}


def _trigger(service: Service, name: str, kind: str, query: str, threshold: float) -> dict[str, Any]:
    asked = {"serverAddress": service.prometheus, "query": query, "threshold": number(threshold)}
    return {"type": "prometheus", "name": name, "metricType": kind, "metadata": asked}


def _behaviour() -> dict[str, Any]:
    up, down = scaling.UP_PERIOD_S, scaling.DOWN_PERIOD_S
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "selectPolicy": "Max",
            "policies": [
                {"type": "Percent", "value": scaling.UP_SHARE, "periodSeconds": up},
                {"type": "Pods", "value": scaling.UP_PODS, "periodSeconds": up},
            ],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": scaling.DOWN_AFTER_S,
            "selectPolicy": "Max",
            "policies": [
                {"type": "Percent", "value": scaling.DOWN_SHARE, "periodSeconds": down},
                {"type": "Pods", "value": 1, "periodSeconds": down},
            ],
        },
    }
