"""A pipeline as a CronJob: the same command on a schedule, in a folder on a volume, where only what changed runs again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from flatout.base.errors import UsageError
from flatout.base.tree import Cell, Doc, Fields, Node, TextLine
from flatout.fleet.kubernetes_names import (
    cores_problems,
    image_problems,
    label_problems,
    name_problems,
    object_name_problems,
    resource_problems,
    size_problems,
)
from flatout.fleet.manifest import notes_table, worked_out, written
from flatout.fleet.serving_pods import USER

LABEL = "flatout-pipeline"
_ENDED_BY_ITSELF = (1, 2, 3)  # a stage or gate that failed, a mistake in the file, no verdict: the same again next time
_GRACE_S = 120  # a training saves at SIGTERM
_FIELD = r"(\*|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/[0-9]+)?(,(\*|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/[0-9]+)?)*"
_SCHEDULE = re.compile(rf"{_FIELD}( {_FIELD}){{4}}|@(hourly|daily|weekly|monthly|yearly|annually|midnight)")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
_WHOLE = {_MINUTE_S: "* * * * *", _HOUR_S: "0 * * * *", _DAY_S: "0 0 * * *", 7 * _DAY_S: "0 0 * * 0"}


@dataclass(frozen=True)
class PipelineJob:
    """`file` lies on the volume `claim`, which is mounted at the first folder of its path."""

    name: str
    image: str
    file: str
    claim: str
    schedule: str
    schedule_why: str
    zone: str | None = None
    cpus: str | None = None
    memory: str | None = None
    devices: int = 0
    resource: str = "nvidia.com/gpu"
    retries: int = 3
    namespace: str | None = None
    node_labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if problems := _problems(self):
            raise UsageError("\n".join(problems))

    @property
    def volume(self) -> str:
        return "/" + self.file.strip("/").partition("/")[0]


def schedule_every(seconds: float) -> str:
    """The lines of cron have no intervals: only what divides an hour or a day evenly is one."""
    for whole_s, line in _WHOLE.items():
        if seconds == whole_s:
            return line
    for unit_s, most, form in ((_MINUTE_S, 60, "*/{} * * * *"), (_HOUR_S, 24, "0 */{} * * *")):
        count = seconds / unit_s
        if count == int(count) and 1 < count < most and most % count == 0:
            return form.format(int(count))
    raise UsageError(
        f"a CronJob runs at times that divide an hour, a day or a week evenly (10 min, 6 h, 1 day, 7 days), got {seconds:g} s: "
        "choose one of them, or a line of cron with --schedule '0 3 * * 1-5'"
    )


def schedule_at(minute_of_day: int) -> str:
    return f"{minute_of_day % 60} {minute_of_day // 60} * * *"


def pipeline_objects(job: PipelineJob) -> list[dict[str, Any]]:
    return [_cron_job(job)]


def pipeline_manifest(job: PipelineJob) -> str:
    return written(pipeline_report(job), pipeline_objects(job))


def pipeline_report(job: PipelineJob) -> Doc:
    rows = [
        _row("schedule", "runs at", job.schedule, job.schedule_why),
        _row("zone", "in the time zone", job.zone or "of the cluster", "of these times"),
        _row(
            "folder",
            "in the folder",
            str(PurePosixPath(job.file).parent),
            f"of the volume claim {job.claim}, which keeps results",
        ),
        _row("retries", "tried again", f"{job.retries} times", "if its pod was killed; not if a stage or a gate failed"),
    ]
    nodes: list[Node] = [
        Fields({"name": job.name, "kind": "CronJob", "schedule": job.schedule}),
        TextLine(f"{job.name}: a CronJob that runs flatout pipeline {job.file}"),
        TextLine(),
        worked_out(rows),
    ]
    notes = ["a call that begins while another one works is skipped; with nothing changed a call takes a second"]
    if job.cpus is None or job.memory is None:
        notes.append("--cpus and --memory are what its stages need; without them the pod has no request and may be ended first")
    if ":" not in job.image.rpartition("/")[2]:
        notes.append(f"the image {job.image} has no tag or digest: a later call may have another flatout, and run stages again")
    return Doc([*nodes, *notes_table(notes)])


def _cron_job(job: PipelineJob) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": job.name, "labels": {LABEL: job.name}}
    if job.namespace is not None:
        meta["namespace"] = job.namespace
    times: dict[str, Any] = {"schedule": job.schedule}
    if job.zone is not None:
        times["timeZone"] = job.zone
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": meta,
        "spec": {
            **times,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 600,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 5,
            "jobTemplate": {
                "spec": {
                    "backoffLimit": job.retries,
                    "podFailurePolicy": {"rules": _rules()},
                    "template": {"metadata": {"labels": {LABEL: job.name}}, "spec": _pod(job)},
                }
            },
        },
    }


def _rules() -> list[dict[str, Any]]:
    """A killed pod goes on where it was; what failed by itself would fail again."""
    codes = {"containerName": "pipeline", "operator": "In", "values": list(_ENDED_BY_ITSELF)}
    lost = [{"type": "DisruptionTarget", "status": "True"}]
    return [{"action": "FailJob", "onExitCodes": codes}, {"action": "Ignore", "onPodConditions": lost}]


def _pod(job: PipelineJob) -> dict[str, Any]:
    amounts = {name: amount for name, amount in (("cpu", job.cpus), ("memory", job.memory)) if amount is not None}
    resources: dict[str, Any] = {"requests": amounts} if amounts else {}
    tolerations = []
    if job.devices:
        resources["limits"] = {job.resource: str(job.devices)}
        resources["requests"] = {**amounts, job.resource: str(job.devices)}
        tolerations.append({"key": job.resource, "operator": "Exists", "effect": "NoSchedule"})
    container = {
        "name": "pipeline",
        "image": job.image,
        "workingDir": str(PurePosixPath(job.file).parent),
        "command": ["flatout"],
        "args": ["pipeline", job.file],
        "env": [{"name": "FLATOUT_CACHE", "value": f"{job.volume}/.flatout"}, {"name": "HOME", "value": "/tmp"}],
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "work", "mountPath": job.volume}, {"name": "scratch", "mountPath": "/tmp"}],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "work", "persistentVolumeClaim": {"claimName": job.claim}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }  # fmt: skip
    if tolerations:
        pod["tolerations"] = tolerations
    return {**pod, "nodeSelector": dict(job.node_labels)} if job.node_labels else pod


def _row(key: str, what: str, value: str, why: str) -> dict[str, Any]:
    return {"key": key, "what": what, "value": Cell(value, value), "why": why}


def _problems(job: PipelineJob) -> list[str]:
    found = [*name_problems(job.name, job.namespace), *image_problems(job.image)]
    if not job.claim:
        found.append("--claim is missing: the volume claim that has the pipeline's folder, where results stay between calls")
    found += object_name_problems("--claim", job.claim or None)
    path = PurePosixPath(job.file)
    if not path.is_absolute() or len(path.parts) < 3 or ".." in path.parts:
        found.append(f"--path is where the file is in the pod, such as /work/pipeline.yaml, got {job.file!r}")
    if not _SCHEDULE.fullmatch(job.schedule):
        found.append(f"--schedule: expected a line of cron such as '0 3 * * 1-5', got {job.schedule!r}")
    if job.zone is not None and not _ZONE.fullmatch(job.zone):
        found.append(f"--time-zone: expected a name such as Europe/Berlin, got {job.zone!r}")
    if job.retries < 0:
        found.append(f"--retries: expected 0 or more, got {job.retries}")
    for key, value in job.node_labels.items():
        found += label_problems(key, value)
    found += resource_problems(job.resource) if job.devices else []
    return [*found, *cores_problems(job.cpus), *size_problems("--memory", job.memory)]
