"""fleet manifest train and fleet node: write cluster jobs, and the command that their machines run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flatout.base.errors import UsageError
from flatout.cli import fleet_choose, fleet_pipeline, fleet_serve
from flatout.cli.durations import seconds_if
from flatout.cli.fleet_files import node_labels_of, write_manifest
from flatout.cli.output import print_json
from flatout.cli.places import cache_folder
from flatout.cli.slips import RecipeCommand
from flatout.cli.training import Json, Offs, Overrides, RecipePath, Sets

app = typer.Typer(
    help="Train and serve on other machines: write what a cluster needs, choose the machine.\n\n"
    "Example: flatout fleet manifest train mine.yaml --image registry.example/train:1 --nodes 2",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class _TrainsUnlessNamed(TyperGroup):
    """`manifest mine.yaml` is `manifest train mine.yaml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["train", *args]
        return super().parse_args(ctx, args)


manifests = typer.Typer(
    cls=_TrainsUnlessNamed,
    help="Write Kubernetes objects for a training, a service or a pipeline.\n\n"
    "Example: flatout fleet manifest serve package/ --image registry.example/churn:1 --slo 'p99 50 ms'",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(manifests, name="manifest")
manifests.command("serve")(fleet_serve.serve)
manifests.command("pipeline")(fleet_pipeline.pipeline)
app.command("choose", cls=RecipeCommand)(fleet_choose.choose)


@manifests.command("train")
def train(
    recipe: RecipePath,
    overrides: Overrides = None,
    image: Annotated[str, typer.Option("--image", help="Container image of the pods, with flatout installed.")] = "",
    kind: Annotated[str, typer.Option("--kind", help="trainjob (Kubeflow Trainer) or rayjob (KubeRay).")] = "trainjob",
    name: Annotated[str | None, typer.Option("--name", help="Name of the job. Default: the recipe's name.")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", help="Namespace. Default: kubectl's current one.")] = None,
    nodes: Annotated[str, typer.Option("--nodes", help="Machines: 4, or 2:8 for a rayjob that grows and shrinks.")] = "1",
    devices: Annotated[int, typer.Option("--devices", help="Devices per machine, with one process each.")] = 1,
    resource: Annotated[
        str, typer.Option("--resource", help="Kubernetes resource of the devices, such as amd.com/gpu; none: CPU only.")
    ] = "nvidia.com/gpu",
    cpus: Annotated[str | None, typer.Option("--cpus", help="Minimum number of free cores per machine.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Minimum free memory per machine, such as 64Gi.")] = None,
    node_labels: Annotated[
        list[str] | None, typer.Option("--node-label", help="key=value that a machine must have. May be repeated.")
    ] = None,
    runs_claim: Annotated[str | None, typer.Option("--runs-claim", help="Existing volume claim for the runs.")] = None,
    storage: Annotated[
        str | None, typer.Option("--storage", help="Request a new volume claim of this size for the runs, such as 100Gi.")
    ] = None,
    storage_class: Annotated[str | None, typer.Option("--storage-class", help="Storage class of the new claim.")] = None,
    data_claim: Annotated[str | None, typer.Option("--data-claim", help="Volume claim to mount at /data.")] = None,
    along: Annotated[
        list[Path] | None, typer.Option("--with", help="Another file that the recipe needs. May be repeated.")
    ] = None,
    spot: Annotated[str | None, typer.Option("--spot", help="Train on spot machines of gke, eks or aks.")] = None,
    lost_every: Annotated[
        str | None, typer.Option("--lost-every", help="Average time until one machine is lost. Default for spot: 24 h.")
    ] = None,
    save_time: Annotated[
        str | None,
        typer.Option("--save-time", help="How long a save takes, such as '20 s'. Default: predicted."),
    ] = None,
    grace: Annotated[
        str | None, typer.Option("--grace", help="Time from SIGTERM to SIGKILL, such as '2 min'. Default: from --save-time.")
    ] = None,
    restarts: Annotated[int, typer.Option("--restarts", help="Restarts after failures; lost machines do not count.")] = 5,
    queue: Annotated[str | None, typer.Option("--queue", help="Kueue queue that admits the job.")] = None,
    sets: Sets = None,
    offs: Offs = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write. Default: print it.")] = None,
    as_json: Json = False,
) -> None:
    """Write a Kubernetes job for a recipe. It is a TrainJob or a RayJob, with everything it needs.

    Example: flatout fleet manifest train mine.yaml --image registry.example/train:1 --nodes 2
    """
    from flatout.base.tree import to_data, to_text
    from flatout.fleet import interruptions as lost
    from flatout.fleet import manifest as writing
    from flatout.fleet.clusterjob import ClusterJob, Nodes
    from flatout.fleet.kubernetes_names import suggested_name
    from flatout.fleet.packing import pack, predicted_save
    from flatout.fleet.saving import SaveTime
    from flatout.fleet.spot import pick_cloud

    cloud = None if spot is None else pick_cloud(spot)
    machines = Nodes.parse(nodes)
    files = pack(recipe, overrides or (), along or ())
    given = seconds_if("--save-time", save_time)
    save = predicted_save(recipe, overrides or (), cache_folder()) if given is None else SaveTime(given, "as given")
    if cloud is not None and save.seconds is None:
        raise UsageError(
            f"--spot: how often to save depends on how long a save takes, which is {save.why}: give --save-time '20 s'"
        )
    usual = lost.NODE_LOST_EVERY_S if cloud is None else lost.SPOT_NODE_LOST_EVERY_S
    job = ClusterJob(
        kind=kind,
        name=suggested_name(recipe.stem) if name is None else name,
        image=image,
        files=files,
        interruptions=lost.Interruptions(
            save_s=save.seconds,
            save_why=save.why,
            node_lost_every_s=seconds_if("--lost-every", lost_every) or usual,
            nodes=machines.most,
            cloud=cloud,
            asked_grace_s=seconds_if("--grace", grace),
        ),
        nodes=machines,
        devices=devices,
        resource=None if resource == "none" else resource,
        cpus=cpus,
        memory=memory,
        runs_claim=runs_claim,
        storage=storage,
        storage_class=storage_class,
        data_claim=data_claim,
        namespace=namespace,
        queue=queue,
        node_labels=dict(node_labels_of(node_labels)),
        arguments=(*(overrides or ()), *_repeated("--set", sets), *_repeated("--off", offs)),
        restarts=restarts,
    )
    report = writing.report(job)
    if out is not None:
        write_manifest(out, writing.manifest(job))
    if as_json:
        print_json({**to_data(report), "objects": writing.objects(job)})
    elif out is None:
        print(writing.manifest(job), end="")
    else:
        print(f"{to_text(report)}\n\nkubectl apply -f {out}")


_AS_IT_IS = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


@app.command("node", context_settings=_AS_IT_IS)
def node(
    arguments: Annotated[list[str], typer.Argument(help="As for torchrun: -m flatout run recipe.yaml", show_default=False)],
) -> None:
    """Run torchrun on a machine of a TrainJob. Exits with 143 if the run was stopped and has saved.

    Example: flatout fleet node --nnodes 2 --nproc-per-node 8 -m flatout run mine.yaml
    """
    from flatout.fleet.node import launch

    raise typer.Exit(launch(arguments))


def _repeated(flag: str, values: list[str] | None) -> list[str]:
    return [word for value in values or [] for word in (flag, value)]
