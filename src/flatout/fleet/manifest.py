"""All objects of a job in one YAML file, with a report as a comment at the top."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine, to_text
from flatout.base.units import show_seconds, show_share
from flatout.fleet import pods, rayjob, trainjob
from flatout.fleet.clusterjob import KINDS, ClusterJob


def objects(job: ClusterJob) -> list[dict[str, Any]]:
    """In the order in which they depend on each other."""
    first = [pods.config_map(job)] + ([] if job.storage is None else [pods.claim(job)])
    if job.kind == "trainjob":
        return [*first, trainjob.training_runtime(job), trainjob.train_job(job)]
    return [*first, rayjob.dashboard_service(job), rayjob.ray_job(job)]


def manifest(job: ClusterJob) -> str:
    """Text for `kubectl apply`; the same job always gives the same text."""
    return written(report(job), objects(job))


def written(report: Doc, objects: Sequence[dict[str, Any]]) -> str:
    """The objects in one file, the report as its first comment."""
    notes = "".join(f"# {line}".rstrip() + "\n" for line in to_text(report).splitlines())
    return notes + "".join("---\n" + _dumped(one) for one in objects)


def report(job: ClusterJob) -> Doc:
    lost = job.interruptions
    devices = "CPU processes" if job.resource is None else job.resource
    what = (
        f"{job.name}: a {KINDS[job.kind]} of {job.nodes} node{'s' if job.nodes.most > 1 else ''}, {job.devices} {devices} each"
    )
    rows = [_row("save", "a save takes", lost.save_s, lost.save_why)]
    node = "node" if lost.cloud is None else lost.cloud.words
    each = f"one {node} is lost every {show_seconds(lost.node_lost_every_s)}, with {lost.nodes} nodes"
    rows.append(_row("lost_every", "a stop every", lost.lost_every_s, each))
    if lost.interval_s is not None:
        why = "minimises saving plus lost work (Daly); the run adapts it to its measured saves"
        rows.append(_row("checkpoint_every", "a checkpoint every", lost.interval_s, why))
    rows.append(_row("grace", "grace period", float(lost.grace_s), _grace_why(job)))
    if lost.lost_share is not None:
        share = Cell(lost.lost_share, show_share(lost.lost_share))
        rows.append(
            {
                "key": "lost_share",
                "what": "time lost",
                "value": share,
                "why": "to saves and repeated work, without restart time",
            }
        )
    nodes: list[Node] = [
        Fields({"name": job.name, "kind": KINDS[job.kind], "nodes": [job.nodes.least, job.nodes.most], "workers": job.workers}),
        TextLine(what),
        TextLine(),
        worked_out(rows),
    ]
    return Doc([*nodes, *notes_table(_notes(job))])


def worked_out(rows: Sequence[dict[str, Any]]) -> Table:
    """Figures and where they come from. Rows have key, what, value and why."""
    columns = [
        TableColumn("key", "", shown=False),
        TableColumn("what", ""),
        TableColumn("value", "", right=True),
        TableColumn("why", ""),
    ]
    return Table("worked_out", columns, list(rows))


def notes_table(notes: Sequence[str]) -> list[Node]:
    if not notes:
        return []
    return [TextLine(), Table("notes", [TableColumn("note", "")], [{"note": f"note: {note}"} for note in notes])]


def _row(key: str, what: str, seconds: float | None, why: str) -> dict[str, Any]:
    return {"key": key, "what": what, "value": Cell(seconds, "?" if seconds is None else show_seconds(seconds)), "why": why}


def _grace_why(job: ClusterJob) -> str:
    lost = job.interruptions
    if lost.asked_grace_s is not None:
        return "as given"
    if lost.save_s is None:
        return "Kubernetes' default; set --save-time to compute it"
    return "a save in progress, the last save, and 15 s to exit"


def _notes(job: ClusterJob) -> list[str]:
    lost, found = job.interruptions, []
    if job.kind == "trainjob":
        found.append("JobSet, which a TrainJob uses, creates the headless Service through which its nodes find each other")
        found.append("a TrainJob has a fixed number of nodes and does not scale; --kind rayjob with a range has an autoscaler")
    else:
        found.append(f"the dashboard: kubectl port-forward service/{job.name}-dashboard {rayjob.DASHBOARD}")
        if job.nodes.varies:
            found.append(
                f"the run requests {job.workers} processes, for the largest number of nodes: the cluster grows up to it"
            )
        if lost.cloud is not None:
            found.append("Ray's workers do not save when their node is lost: work since the last checkpoint is lost")
    if lost.cloud is not None:
        found.append(f"{lost.cloud.name}: {lost.cloud.notice_why}")
    if not lost.save_fits:
        within = (
            "the grace period" if lost.cloud is None or lost.grace_s <= lost.cloud.notice_s else "the notice of a spot node"
        )
        found.append(f"a save does not fit into {within} of {show_seconds(lost.notice_s)}: each loss costs up to one interval")
    if ":" not in job.image.rpartition("/")[2]:
        found.append(f"the image {job.image} has no tag or digest: after a restart it may be a different one")
    return found


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text in block style, so that the recipe stays readable."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _dumped(one: dict[str, Any]) -> str:
    return yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
