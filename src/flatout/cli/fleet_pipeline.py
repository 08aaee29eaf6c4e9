"""fleet manifest pipeline: a pipeline that a cluster runs on a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flatout.base.errors import UsageError
from flatout.cli.durations import seconds_of
from flatout.cli.fleet_files import node_labels_of, write_manifest
from flatout.cli.output import print_json


def pipeline(
    file: Annotated[Path, typer.Argument(help="The pipeline file.")],
    image: Annotated[str, typer.Option("--image", help="Container image with flatout and what the stages import.")] = "",
    claim: Annotated[str, typer.Option("--claim", help="Volume claim with the pipeline's folder. Results stay there.")] = "",
    path: Annotated[
        str | None,
        typer.Option("--path", help="Where the file is in the pod. Default: /work/ and its name.", show_default=False),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option("--every", help="Run every '6 h', '1 day'. Default: the file's shortest `when`.", show_default=False),
    ] = None,
    at: Annotated[str | None, typer.Option("--at", help="Run each day at 03:00.", show_default=False)] = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", help="A line of cron, such as '0 3 * * 1-5'.", show_default=False)
    ] = None,
    zone: Annotated[
        str | None, typer.Option("--time-zone", help="Of the schedule, such as Europe/Berlin.", show_default=False)
    ] = None,
    cpus: Annotated[str | None, typer.Option("--cpus", help="Cores that its stages need.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory that its stages need, such as 8Gi.")] = None,
    devices: Annotated[int, typer.Option("--devices", min=0, help="Devices that its stages need.")] = 0,
    resource: Annotated[str, typer.Option("--resource", help="Kubernetes resource of the devices.")] = "nvidia.com/gpu",
    retries: Annotated[int, typer.Option("--retries", help="How often a killed pod is started again; it goes on.")] = 3,
    node_labels: Annotated[
        list[str] | None, typer.Option("--node-label", help="key=value that a machine must have. May be repeated.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the CronJob. Default: the name of the file.")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", help="Namespace. Default: kubectl's current one.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write. Default: print it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a CronJob that runs a pipeline on a schedule. Its folder is on a volume, so only what changed runs.

    Example: flatout fleet manifest pipeline pipeline.yaml --image registry.example/train:1 --claim churn --at 03:00
    """
    from flatout.base.tree import to_data, to_text
    from flatout.fleet.kubernetes_names import suggested_name
    from flatout.fleet.pipeline_job import PipelineJob, pipeline_manifest, pipeline_objects, pipeline_report
    from flatout.pipelines.asked.reading import read_pipeline

    asked = read_pipeline(file)
    times, why = _times({"--every": every, "--at": at, "--schedule": schedule}, [one.when for one in asked.stages.values()])
    job = PipelineJob(
        name=suggested_name(file.resolve().stem) if name is None else name,
        image=image,
        file=f"/work/{file.name}" if path is None else path,
        claim=claim,
        schedule=times,
        schedule_why=why,
        zone=zone,
        cpus=cpus,
        memory=memory,
        devices=devices,
        resource=resource,
        retries=retries,
        namespace=namespace,
        node_labels=dict(node_labels_of(node_labels)),
    )
    report = pipeline_report(job)
    if out is not None:
        write_manifest(out, pipeline_manifest(job))
    if as_json:
        print_json({**to_data(report), "objects": pipeline_objects(job)})
    elif out is None:
        print(pipeline_manifest(job), end="")
    else:
        print(f"{to_text(report)}\n\nkubectl apply -f {out}")


def _times(given: dict[str, str | None], whens: list[str | None]) -> tuple[str, str]:
    """The line of cron, and why it is this one."""
    from flatout.fleet.pipeline_job import schedule_at, schedule_every
    from flatout.pipelines.asked.options import DAY_S, parse_when

    chosen = {option: text for option, text in given.items() if text is not None}
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)}: each says when it runs, give one of them")
    for option, text in chosen.items():
        if option == "--schedule":
            return " ".join(text.split()), "as given"
        if option == "--every":
            return schedule_every(seconds_of(option, text)), f"as given: every {text}"
        try:
            minute = parse_when(f"at {text}").at_minute
        except ValueError:
            raise UsageError(f"--at: expected a time of day such as 03:00, got {text!r}") from None
        assert minute is not None
        return schedule_at(minute), f"as given: each day at {text}"
    asked = [parse_when(one) for one in whens if one is not None]
    found = [one for one in asked if one.drift is None]
    if asked and not found:
        raise UsageError(
            "how often it looks: the `when` of the file's stages waits for drift, whose file has to be on the volume too; "
            "give --every '1 h', --at 03:00 or --schedule '0 3 * * *'"
        )
    if not found:
        raise UsageError(
            "when it runs: no stage of the file has `when`; give --every '6 h', --at 03:00 or --schedule '0 3 * * *'"
        )
    shortest = min(found, key=lambda one: DAY_S if one.every_s is None else one.every_s)
    if shortest.at_minute is not None:
        return schedule_at(shortest.at_minute), "the file: a stage's `when`"
    assert shortest.every_s is not None
    return schedule_every(shortest.every_s), "the file: the shortest `when` of its stages"
