"""All objects of a service in one YAML file, with a report as a comment at the top."""

from __future__ import annotations

from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Node, TextLine
from flatout.base.units import show_bytes, show_count, show_seconds
from flatout.fleet.deployment import service_objects
from flatout.fleet.kserve import inference_service
from flatout.fleet.manifest import notes_table, worked_out, written
from flatout.fleet.scaling import LOOK_S, WINDOW_S
from flatout.fleet.scaling_simulation import Simulated
from flatout.fleet.service import KINDS, LEAVING_S, SEEN_S, Service


def objects_of_service(service: Service) -> list[dict[str, Any]]:
    return [inference_service(service)] if service.kind == "kserve" else service_objects(service)


def service_manifest(service: Service, report: Doc) -> str:
    return written(report, objects_of_service(service))


def service_report(service: Service, burst: float, tried: Simulated | None = None) -> Doc:
    """`tried`: what the rule would have done on recorded arrivals."""
    rule, replica, replicas = service.rule, service.replica, service.rule.replicas
    count = f"{replicas.least} to {replicas.most} replicas" if service.scales else f"{replicas.most} replicas"
    cores = f"{service.cpus} core{'' if service.cpus == '1' else 's'} each"
    rows = [
        _rate_row("held", "one replica holds", replica.held_per_s, f"with {service.goal}: {replica.held_why}"),
    ]
    if service.scales:
        grows = f"requests/s of a replica: the load may grow {burst:g} times until a new one answers"
        rows.append(_rate_row("per_replica", "scaled to", rule.per_replica, grows))
        again = "requests/s, if the load grows again as fast as in the last hour, up to the highest rate of that hour"
        rows.append(_rate_row("peak_per_replica", "or for a peak of", rule.peak_per_replica, again))
        waits = "mean time in the queue that adds replicas: half of what the goal leaves for waiting"
        rows.append(_row("queue_s", "or at a queue of", rule.queue_s, show_seconds(rule.queue_s), waits))
        most = replicas.most * rule.per_replica
        beyond = f"{replicas.most} replicas; more than that waits or is refused"
        rows.append(_rate_row("most", "up to", most, beyond))
    if tried is not None:
        would = (
            f"of {show_count(tried.requests)} recorded requests; {tried.replicas:.3g} replicas on average, {tried.most} at most"
        )
        rows.append(_row("missed", "would miss the goal", tried.missed_share, f"{tried.missed_share:.2%}", would))
    if replica.memory_bytes is not None:
        limit = f"the server's processes under load; {service.requested_memory} requested, {service.memory_limit} at most"
        rows.append(_row("memory", "memory", replica.memory_bytes, show_bytes(replica.memory_bytes), limit))
    if replica.start_s is not None:
        starts = f"here, with warm files; a pod that is not ready after {show_seconds(service.start_limit_s)} is started again"
        rows.append(_row("start", "starts in", replica.start_s, show_seconds(replica.start_s), starts))
    drains = f"{SEEN_S} s until proxies have heard, {service.drains_s} s to answer what was accepted, {LEAVING_S} s to exit"
    rows.append(_row("grace", "grace period", service.grace_s, show_seconds(service.grace_s), drains))
    heading = f"{service.name}: {_a(KINDS[service.kind])} of {count}, {cores}"
    nodes: list[Node] = [
        Fields({"name": service.name, "kind": KINDS[service.kind], "replicas": [replicas.least, replicas.most]}),
        TextLine(heading),
        TextLine(),
        worked_out(rows),
    ]
    return Doc([*nodes, *notes_table(_notes(service))])


def _rate_row(key: str, what: str, per_s: float, why: str) -> dict[str, Any]:
    return _row(key, what, per_s, f"{show_count(per_s)}/s", why)


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "AEIOU" else f"a {kind}"


def _row(key: str, what: str, value: float, shown: str, why: str) -> dict[str, Any]:
    return {"key": key, "what": what, "value": Cell(value, shown), "why": why}


def _notes(service: Service) -> list[str]:
    found = []
    if service.scales:
        late = WINDOW_S / 2 + LOOK_S + (service.replica.start_s or 0.0)
        where = "on a node that is free and has the image"
        found.append(f"a new replica answers about {show_seconds(late)} after the load has grown, {where}")
    if service.scales and service.kind == "deployment" and service.autoscaler == "hpa":
        found.append("the autoscaler's metrics come from prometheus-adapter, with the rules in docs/fleet.md")
    if service.devices:
        found.append("the rate is that of the device it was measured on; nodes with another kind hold another rate")
    else:
        found.append("the rate and the memory are those of the machine they were measured on; --measured FILE takes another's")
    if service.requested_memory is None:
        found.append("memory was not measured and has no request: --memory 2Gi sets one")
    if service.cloud is not None:
        found.append(f"{service.cloud.name}: {service.cloud.notice_why}")
        if service.drains_s < service.drain_s:
            found.append(
                f"a spot node leaves {service.drains_s} s for requests under way, not {show_seconds(service.drain_s)}: longer "
                "requests are lost with it"
            )
    if service.rule.replicas.least < 2:
        found.append("with one replica the service is away while its node is replaced; --replicas 2:10 keeps two")
    if service.token_secret is not None:
        found.append("Prometheus needs the token too: /metrics is not open")
    if ":" not in service.image.rpartition("/")[2]:
        found.append(f"the image {service.image} has no tag or digest: after a restart it may be a different one")
    return found
