"""The custom resources that manifests contain, as far as their fields are used, by the definitions that their projects publish.

PyPI has no package with these schemas of present versions. Names, types and which fields are required were read from
keda.sh_scaledobjects.yaml (KEDA 2.20.2) and serving.kserve.io_inferenceservices.yaml (KServe 0.20), in config/crd of their
repositories. A field that is not listed here is an error. The parts that are Kubernetes' own are held to its schema by
`kubernetes_validate`.
"""

from __future__ import annotations

from typing import Any, Literal

import kubernetes_validate
from pydantic import BaseModel, ConfigDict, Field

KUBERNETES = "1.31"  # the oldest that docs/fleet.md names


class Strict(BaseModel):
    """No field that is not in the schema; numbers are numbers and texts are texts."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Policy(Strict):
    type: str
    value: int
    periodSeconds: int


class ScalingRules(Strict):
    stabilizationWindowSeconds: int | None = None
    selectPolicy: str | None = None
    policies: list[Policy] | None = None


class Behaviour(Strict):
    scaleUp: ScalingRules | None = None
    scaleDown: ScalingRules | None = None


# ---- KEDA ----


class AutoscalerConfig(Strict):
    behavior: Behaviour


class Advanced(Strict):
    horizontalPodAutoscalerConfig: AutoscalerConfig


class Fallback(Strict):
    failureThreshold: int = Field(ge=0)
    replicas: int = Field(ge=0)
    behavior: Literal["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower", "scalingModifiers"]


class ScaleTarget(Strict):
    name: str
    kind: str | None = None
    apiVersion: str | None = None


class Trigger(Strict):
    type: str
    name: str | None = None
    metricType: str | None = None
    metadata: dict[str, str]


class ScaledObjectSpec(Strict):
    scaleTargetRef: ScaleTarget
    minReplicaCount: int = Field(ge=0)
    maxReplicaCount: int = Field(ge=1)
    pollingInterval: int = Field(ge=1)
    fallback: Fallback
    advanced: Advanced
    triggers: list[Trigger]


class ScaledObject(Strict):
    apiVersion: Literal["keda.sh/v1alpha1"]
    kind: Literal["ScaledObject"]
    metadata: dict[str, Any]
    spec: ScaledObjectSpec


# ---- KServe ----


class ExternalMetric(Strict):
    backend: Literal["prometheus", "graphite"]
    serverAddress: str
    query: str


class MetricTarget(Strict):
    type: Literal["Utilization", "Value", "AverageValue"]
    value: str


class External(Strict):
    metric: ExternalMetric
    target: MetricTarget


class PredictorMetric(Strict):
    type: Literal["Resource", "External", "PodMetric"]
    external: External


class PredictorScaling(Strict):
    metrics: list[PredictorMetric]
    behavior: Behaviour


class Predictor(Strict):
    """The fields of KServe. All others of a predictor are those of a pod: see `valid`."""

    model_config = ConfigDict(extra="allow", strict=True)

    minReplicas: int
    maxReplicas: int
    labels: dict[str, str]
    annotations: dict[str, str]
    deploymentStrategy: dict[str, Any]
    autoScaling: PredictorScaling | None = None


class InferenceServiceSpec(Strict):
    predictor: Predictor


class InferenceService(Strict):
    apiVersion: Literal["serving.kserve.io/v1beta1"]
    kind: Literal["InferenceService"]
    metadata: dict[str, Any]
    spec: InferenceServiceSpec


def check_object(one: dict[str, Any]) -> None:
    """Raises if a schema does not take it, or if there is no schema."""
    if one["kind"] == "ScaledObject":
        ScaledObject.model_validate(one)
    elif one["kind"] == "InferenceService":
        predictor = InferenceService.model_validate(one).spec.predictor
        meta = {"name": "x", "labels": predictor.labels, "annotations": predictor.annotations}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": dict(predictor.model_extra or {})}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        strategy = {
            "selector": {},
            "strategy": predictor.deploymentStrategy,
            "template": {"metadata": meta, "spec": pod["spec"]},
        }
        named = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": one["metadata"], "spec": strategy}
        kubernetes_validate.validate(named, KUBERNETES, strict=True)
    else:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
