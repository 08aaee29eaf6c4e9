"""The objects of a job as one YAML file, with what was worked out for it above them."""

from __future__ import annotations

from typing import Any

import yaml

from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine, to_text
from flatout.base.units import show_seconds, show_share
from flatout.fleet import pods, rayjob, trainjob
from flatout.fleet.clusterjob import KINDS, ClusterJob


def objects(job: ClusterJob) -> list[dict[str, Any]]:
    """In the order in which they need each other."""
    first = [pods.config_map(job)] + ([] if job.storage is None else [pods.claim(job)])
    if job.kind == "trainjob":
        return [*first, trainjob.training_runtime(job), trainjob.train_job(job)]
    return [*first, rayjob.dashboard_service(job), rayjob.ray_job(job)]


def manifest(job: ClusterJob) -> str:
    """For `kubectl apply`; the same job gives the same text."""
    notes = "".join(f"# {line}".rstrip() + "\n" for line in to_text(report(job)).splitlines())
    return notes + "".join("---\n" + _dumped(one) for one in objects(job))


def report(job: ClusterJob) -> Doc:
    lost = job.interruptions
    devices = "processes on its cores" if job.resource is None else job.resource
    what = (
        f"{job.name}: a {KINDS[job.kind]} of {job.nodes} node{'s' if job.nodes.most > 1 else ''}, {job.devices} {devices} each"
    )
    rows = [_row("save", "a save takes", lost.save_s, lost.save_why)]
    node = "node" if lost.cloud is None else lost.cloud.words
    each = f"a {node} is lost once in {show_seconds(lost.node_lost_every_s)}, and there are {lost.nodes}"
    rows.append(_row("lost_every", "a stop every", lost.lost_every_s, each))
    if lost.interval_s is not None:
        why = "least into saves and lost work together (Daly); the run takes its own measured saves for it"
        rows.append(_row("checkpoint_every", "a checkpoint every", lost.interval_s, why))
    rows.append(_row("grace", "grace period", float(lost.grace_s), _grace_why(job)))
    if lost.lost_share is not None:
        share = Cell(lost.lost_share, show_share(lost.lost_share))
        rows.append(
            {
                "key": "lost_share",
                "what": "share lost",
                "value": share,
                "why": "to saves and work done twice, starting again not counted",
            }
        )
    nodes: list[Node] = [
        Fields({"name": job.name, "kind": KINDS[job.kind], "nodes": [job.nodes.least, job.nodes.most], "workers": job.workers}),
        TextLine(what),
        TextLine(),
        Table(
            "worked_out",
            [
                TableColumn("key", "", shown=False),
                TableColumn("what", ""),
                TableColumn("value", "", right=True),
                TableColumn("why", ""),
            ],
            rows,
        ),
    ]
    if notes := _notes(job):
        nodes += [TextLine(), Table("notes", [TableColumn("note", "")], [{"note": f"note: {note}"} for note in notes])]
    return Doc(nodes)


def _row(key: str, what: str, seconds: float | None, why: str) -> dict[str, Any]:
    return {"key": key, "what": what, "value": Cell(seconds, "?" if seconds is None else show_seconds(seconds)), "why": why}


def _grace_why(job: ClusterJob) -> str:
    lost = job.interruptions
    if lost.asked_grace_s is not None:
        return "as given"
    if lost.save_s is None:
        return "what Kubernetes gives; --save-time says what is needed"
    return "a save under way, the last one, and 15 s to leave"


def _notes(job: ClusterJob) -> list[str]:
    lost, found = job.interruptions, []
    if job.kind == "trainjob":
        found.append("JobSet, on which a TrainJob stands, makes the headless Service by which its nodes find each other")
        found.append(
            "a TrainJob has a fixed number of nodes, so nothing scales it; --kind rayjob with a range has an autoscaler"
        )
    else:
        found.append(f"the dashboard: kubectl port-forward service/{job.name}-dashboard {rayjob.DASHBOARD}")
        if job.nodes.varies:
            found.append(
                f"the run asks for {job.workers} processes, as many as the most nodes hold: the cluster grows up to them"
            )
        if lost.cloud is not None:
            found.append(
                "Ray's workers do not save when their node goes: what is lost then is what came since the last checkpoint"
            )
    if lost.cloud is not None:
        found.append(f"{lost.cloud.name}: {lost.cloud.notice_why}")
    if not lost.save_fits:
        within = (
            "the grace period" if lost.cloud is None or lost.grace_s <= lost.cloud.notice_s else "the notice of a spot node"
        )
        found.append(
            f"a save does not fit into {within} of {show_seconds(lost.notice_s)}: up to one interval is lost each time"
        )
    if ":" not in job.image.rpartition("/")[2]:
        found.append(f"the image {job.image} has no tag and no digest: after a restart it may be another one")
    return found


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as such: a person can read the recipe in it."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _dumped(one: dict[str, Any]) -> str:
    return yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
