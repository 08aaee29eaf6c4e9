"""fleet manifest serve: a package as a service in a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.base.errors import MachineError, UsageError
from flatout.cli.durations import seconds_of
from flatout.cli.fleet_files import node_labels_of, write_manifest
from flatout.cli.output import print_json
from flatout.cli.packages import PackagePath
from flatout.cli.places import cache_folder

if TYPE_CHECKING:
    from flatout.base.latency_goal import LatencyGoal
    from flatout.fleet.replica import Replica
    from flatout.fleet.scaling_simulation import Simulated
    from flatout.fleet.service import Service

_USUAL_START_S, _SCHEDULED_S = 30.0, 5.0


def serve(
    package: PackagePath,
    image: Annotated[str, typer.Option("--image", help="Container image with flatout, and the package unless --claim.")] = "",
    slo: Annotated[str, typer.Option("--slo", help="Latency goal of the service.")] = "p99 50 ms",
    replicas: Annotated[str, typer.Option("--replicas", help="LEAST:MOST, or a number without an autoscaler.")] = "2:10",
    kind: Annotated[str, typer.Option("--kind", help="deployment, or kserve (an InferenceService).")] = "deployment",
    autoscaler: Annotated[str, typer.Option("--autoscaler", help="hpa (Kubernetes' own), keda or none.")] = "hpa",
    prometheus: Annotated[
        str | None, typer.Option("--prometheus", help="Address of Prometheus, which KEDA asks.", show_default=False)
    ] = None,
    burst: Annotated[
        float, typer.Option("--burst", help="The load may grow this many times until a new replica answers.")
    ] = 1.5,
    measured: Annotated[
        Path | None,
        typer.Option("--measured", help="JSON of flatout load --find. Default: measure here.", show_default=False),
    ] = None,
    arrivals: Annotated[
        Path | None,
        typer.Option("--arrivals", help="Recorded times of requests: try the scaling rule on them.", show_default=False),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option("--cpus", min=1, help="Cores of a replica. Default: those of this machine.")
    ] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory of a replica. Default: measured here.")] = None,
    devices: Annotated[int, typer.Option("--devices", min=0, help="Devices of a replica; 0 serves on cores.")] = 0,
    resource: Annotated[str, typer.Option("--resource", help="Kubernetes resource of the devices.")] = "nvidia.com/gpu",
    drain: Annotated[str, typer.Option("--drain", help="Time for requests under way when a pod ends.")] = "30 s",
    path: Annotated[str, typer.Option("--path", help="Where the package is in the pod.")] = "/package",
    claim: Annotated[
        str | None, typer.Option("--claim", help="Volume claim with the package, mounted at the first folder of --path.")
    ] = None,
    storage_uri: Annotated[
        str | None, typer.Option("--storage-uri", help="Where KServe gets the package: s3://..., pvc://...")
    ] = None,
    token_secret: Annotated[
        str | None, typer.Option("--token-secret", help="Secret whose key `token` clients must send.")
    ] = None,
    spot: Annotated[str | None, typer.Option("--spot", help="Serve on spot machines of gke, eks or aks.")] = None,
    node_labels: Annotated[
        list[str] | None, typer.Option("--node-label", help="key=value that a machine must have. May be repeated.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the service and model. Default: the package's folder.")
    ] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", help="Namespace. Default: kubectl's current one.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write. Default: print it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a Deployment, a Service and an autoscaler for a package, or a KServe InferenceService.

    Example: flatout fleet manifest serve package/ --image registry.example/churn:1 --slo 'p99 50 ms'
    """
    from flatout.base.latency_goal import LatencyGoal
    from flatout.base.tree import to_data, to_text
    from flatout.fleet.kubernetes_names import suggested_name
    from flatout.fleet.scaling import ReplicaRange, ScalingRule
    from flatout.fleet.scaling_simulation import arrivals_of
    from flatout.fleet.service import Service
    from flatout.fleet.service_manifest import objects_of_service, service_manifest, service_report
    from flatout.fleet.spot import pick_cloud
    from flatout.machine.host import usable_cores
    from flatout.packaging.package import open_package

    opened = open_package(package)
    goal, wanted = LatencyGoal.parse(slo), ReplicaRange.parse(replicas)
    if not 1 <= burst <= 100:
        raise UsageError(f"--burst: the load grows 1 to 100 times, got {burst:g}")
    if devices and measured is None:
        raise UsageError(
            "--devices: what a replica with devices holds is measured where it will run: "
            f"flatout load URL --find --slo {str(goal)!r} --json > load.json, then --measured load.json"
        )
    cores = cpus or usable_cores()
    cloud = None if spot is None else pick_cloud(spot)
    labels, drain_s = dict(node_labels_of(node_labels)), seconds_of("--drain", drain)

    def described(replica: Replica, batch_s: float | None) -> Service:
        return Service(
            kind=kind,
            name=suggested_name(package.resolve().name) if name is None else name,
            image=image,
            models="/mnt/models" if storage_uri is not None else path,
            goal=goal,
            replica=replica,
            rule=ScalingRule.of(replica.held_per_s, goal.seconds, batch_s, wanted, burst),
            autoscaler=autoscaler,
            prometheus=prometheus,
            cpus=str(cores),
            memory=memory,
            resource=resource if devices else None,
            devices=devices,
            drain_s=drain_s,
            cloud=cloud,
            claim=claim,
            storage_uri=storage_uri,
            namespace=namespace,
            token_secret=token_secret,
            node_labels=labels,
        )

    recorded = None if arrivals is None else arrivals_of(arrivals)
    described(_unmeasured(), None)  # all mistakes are said before a minute is spent on measuring
    batch_s = None if devices else _batch_seconds(opened.path, goal)
    service = described(_replica(package, goal, cores, measured, memory, bool(devices)), batch_s)
    tried = None if recorded is None else _tried(service, recorded, goal.seconds - (batch_s or goal.seconds / 2))
    report = service_report(service, burst, tried)
    if out is not None:
        write_manifest(out, service_manifest(service, report))
    if as_json:
        print_json({**to_data(report), "objects": objects_of_service(service)})
    elif out is None:
        print(service_manifest(service, report), end="")
    else:
        print(f"{to_text(report)}\n\nkubectl apply -f {out}")


def _tried(service: Service, recorded: list[float], waits_s: float) -> Simulated:
    """The rule on recorded arrivals. Nodes that have to come first, and images, take longer than the start here."""
    from flatout.fleet.scaling_simulation import ReplicaModel, by_rule, simulate

    start_s = (service.replica.start_s or _USUAL_START_S) + _SCHEDULED_S
    model = ReplicaModel(service.replica.held_per_s, waits_s, start_s)
    return simulate(recorded, by_rule(service.rule), service.rule.replicas, model)


def _unmeasured() -> Replica:
    from flatout.fleet.replica import Replica

    return Replica(1.0, "")


def _batch_seconds(package: Path, goal: LatencyGoal) -> float:
    """Of the batch with which the package's measured curve here answers most rows a second and half of the goal is left."""
    import torch

    from flatout.packaging.package import open_package
    from flatout.packaging.runtimes.choice import fastest

    measured = open_package(package).measured(torch.device("cpu"), cache_folder(), say=_say)
    points = fastest(measured, 1).curve
    in_time = [point for point in points if point.median_s <= goal.seconds / 2]
    if not in_time:
        raise MachineError(
            f"one row takes {1e3 * points[0].median_s:.3g} ms here, so a request has no time to wait within {goal}: "
            "allow more time, or make the model smaller (flatout shrink)"
        )
    return max(in_time, key=lambda point: point.batch / point.median_s).median_s


def _replica(
    package: Path, goal: LatencyGoal, cores: int, measured: Path | None, memory: str | None, on_devices: bool
) -> Replica:
    from flatout.fleet.replica import measure_replica, replica_from

    held = None if measured is None else replica_from(measured, goal)
    if held is not None and (memory is not None or on_devices):
        return held  # nothing is left to measure
    return measure_replica(package, goal, cores, _say, held=held)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
