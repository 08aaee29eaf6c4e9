"""serve: packages and runs over the network."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.base.errors import UsageError
from flatout.cli.packages import package_folder
from flatout.cli.places import cache_folder

if TYPE_CHECKING:
    from flatout.serving.canary.limits import CanaryLimits
    from flatout.serving.canary.options import CanaryOptions
    from flatout.serving.options import ServeOptions, WantedModel

Models = Annotated[
    list[str],
    typer.Argument(
        help="Packages or runs: a folder, a run's name, or `last`. NAME=... gives it a name in URLs.",
        show_default=False,
        metavar="[NAME=]PACKAGE...",
    ),
]


def serve(
    models: Models,
    host: Annotated[str, typer.Option("--host", help="The address; 0.0.0.0 is reached from other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    grpc_port: Annotated[
        int | None, typer.Option("--grpc-port", min=0, max=65535, help="Also answer gRPC at this port.", show_default=False)
    ] = None,
    slo: Annotated[
        str | None, typer.Option("--slo", help="Latency goal, such as 'p99 50 ms'; batches are formed to meet it.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="cpu, cuda (all GPUs), cuda:1 or cuda:0,cuda:1; auto: all GPUs, or the CPU.")
    ] = "auto",
    workers: Annotated[
        str, typer.Option("--workers", help="Processes for connections; auto measures how many are needed.")
    ] = "auto",
    executors: Annotated[int, typer.Option("--executors", min=1, help="Processes for the models of each device.")] = 1,
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile", help="Also try runtimes that compile: slow at the first start. Default: on a GPU."
        ),
    ] = None,
    photos_on: Annotated[
        str,
        typer.Option("--photos-on", help="Where photos are decoded: host (CPU), device, or auto: a GPU if answers agree."),
    ] = "auto",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="Clients must send the token in this file.", show_default=False)
    ] = None,
    certificate: Annotated[Path | None, typer.Option("--tls-cert", help="PEM file.", show_default=False)] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", help="PEM file.", show_default=False)] = None,
    before: Annotated[
        str | None, typer.Option("--before", help="module:function on raw rows before the model.", show_default=False)
    ] = None,
    after: Annotated[str | None, typer.Option("--after", help="module:function on the answers.", show_default=False)] = None,
    access_log: Annotated[
        str | None, typer.Option("--access-log", help="File for a line of JSON a request; - is stderr.", show_default=False)
    ] = None,
    sample: Annotated[float, typer.Option("--sample", help="Share of requests to keep as Parquet, 0 to 1.")] = 0.0,
    sample_to: Annotated[Path, typer.Option("--sample-to", help="The folder for them.")] = Path("served-samples"),
    canary: Annotated[
        str | None,
        typer.Option("--canary", help="A package that gets a share of the requests, and is judged.", show_default=False),
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option(
            "--shadow", help="A package that gets copies of requests; its answers are compared only.", show_default=False
        ),
    ] = None,
    share: Annotated[str, typer.Option("--share", help="Of the canary: its stages, until it gets all.")] = "1%,5%,25%",
    canary_key: Annotated[
        str | None,
        typer.Option(
            "--canary-key",
            help="header:NAME or column:NAME: who has the same value stays with one version.",
            show_default=False,
        ),
    ] = None,
    no_control: Annotated[
        bool,
        typer.Option("--no-control", help="Compare times with all requests, without a process that has the canary's load."),
    ] = False,
    keep_old: Annotated[str, typer.Option("--keep-old", help="How long the old version stays warm.")] = "10 min",
    needs_labels: Annotated[
        bool, typer.Option("--needs-labels", help="Promote only if POST /feedback shows that answers are as often right.")
    ] = False,
    latency_slack: Annotated[
        str, typer.Option("--latency-slack", help="A canary may be slower by so much, whatever the factor.")
    ] = "1 ms",
    drift: Annotated[
        str | None,
        typer.Option("--drift", help="Compare rows with the training data after each period, as '24 h'.", show_default=False),
    ] = None,
    drift_allowed: Annotated[float, typer.Option("--drift-allowed", help="How far a share of rows may move.")] = 0.1,
    state: Annotated[
        Path, typer.Option("--state", help="The folder for the state of canary and drift, and for receipts.")
    ] = Path("served-state"),
    max_body: Annotated[str, typer.Option("--max-body", help="Largest body of a request.")] = "64 MiB",
    connections: Annotated[int, typer.Option("--max-connections", min=1, help="For each process.")] = 4096,
    drain: Annotated[str, typer.Option("--drain", help="Time for requests under way after SIGTERM.")] = "30 s",
    explain: Annotated[bool, typer.Option("--explain", help="Print every 10 s where the time of requests goes.")] = False,
    runs: Annotated[Path, typer.Option("--runs", help="The folder with all runs.")] = Path("runs"),
) -> None:
    """Serve models over HTTP: /predict for people, the Open Inference Protocol for programs, a page to try them on.

    Example: flatout serve package/ --slo 'p99 50 ms'
    """
    from flatout.base.units import parse_bytes, parse_seconds
    from flatout.serving.options import FrontOptions, ServeOptions, WantedModel
    from flatout.serving.places import devices_named
    from flatout.serving.serve import serve as serve_packages

    wanted = []
    for name, given in map(_named, models):
        usual, package = package_folder(given, runs, _say)
        wanted.append(WantedModel(usual if name is None else name, package))
    front = FrontOptions(
        token=read_token(token_file),
        certificate=None if certificate is None else str(certificate.resolve()),
        key=None if key is None else str(key.resolve()),
        before=before,
        after=after,
        access_log=access_log,
        sample_share=sample,
        sample_folder=str(sample_to.resolve()) if sample else None,
        limits={"body_bytes": parse_bytes(max_body), "connections": connections},
    )
    if workers != "auto" and not workers.isdigit():
        raise UsageError(f"--workers is a whole number or auto, got {workers!r}")
    options = ServeOptions(
        host=host,
        port=port,
        grpc_port=grpc_port,
        goal=slo,
        device=device,
        workers=None if workers == "auto" else int(workers),
        executors=executors,
        compilers=compiled if compiled is not None else devices_named(device) != ("cpu",),
        photos_on=photos_on,
        drain_s=parse_seconds(drain),
        cache=cache_folder(),
        front=front,
        explains=explain,
    )
    options = _with_drift(options, drift, drift_allowed, state)
    limits = _canary_limits(share, needs_labels, latency_slack)
    judged = _canary(wanted, canary, shadow, limits, canary_key, keep_old, state, runs)
    options = replace(options, canary=None if judged is None else replace(judged, control=not no_control))
    sys.path.insert(0, "")  # hooks may be in this folder
    sys.exit(serve_packages(wanted, options, opened=lambda url: _opened(url, [one.name for one in wanted]), say=_say))


def _with_drift(options: ServeOptions, period: str | None, allowed: float, state: Path) -> ServeOptions:
    from flatout.base.units import parse_seconds
    from flatout.serving.drift.watch import DriftOptions

    if period is None:
        return options
    if not 0 < allowed < 1:
        raise UsageError(f"--drift-allowed is between 0 and 1, got {allowed}")
    drift = DriftOptions(parse_seconds(period), state.resolve(), allowed)
    return replace(options, drift=drift, front=replace(options.front, watches_drift=True))


def _canary_limits(share: str, needs_labels: bool, latency_slack: str) -> CanaryLimits:
    from flatout.cli.durations import seconds_of
    from flatout.serving.canary.limits import CanaryLimits, parse_shares

    slack_s = seconds_of("--latency-slack", latency_slack)
    return CanaryLimits(stages=parse_shares(share), latency_slack_s=slack_s, needs_labels=needs_labels)


def _canary(
    wanted: list[WantedModel],
    canary: str | None,
    shadow: str | None,
    limits: CanaryLimits,
    key: str | None,
    keep_old: str,
    state: Path,
    runs: Path,
) -> CanaryOptions | None:
    from flatout.base.units import parse_seconds
    from flatout.serving.canary.options import CanaryOptions

    if canary is not None and shadow is not None:
        raise UsageError("a server has a canary or a shadow, not both")
    given = canary if canary is not None else shadow
    if given is None:
        return None
    name, package = _named(given)
    if name is None and len(wanted) > 1:
        raise UsageError(f"several models are served: write {'--canary' if canary else '--shadow'} NAME=PACKAGE")
    if key is not None and (key.partition(":")[0] not in ("header", "column") or not key.partition(":")[2]):
        raise UsageError(f"--canary-key is header:NAME or column:NAME, got {key!r}")
    _, folder = package_folder(package, runs, _say)
    model = name if name is not None else wanted[0].name
    return CanaryOptions(model, folder, state.resolve(), canary is None, key, parse_seconds(keep_old), limits)


def _opened(url: str, names: list[str]) -> None:
    print(f"serving {', '.join(names)} at {url}", flush=True)
    print(f"  try it: {url}/ in a browser, or curl {url}/predict; stop: Ctrl-C", flush=True)


def _named(given: str) -> tuple[str | None, str]:
    """NAME=PACKAGE, or a package without a name."""
    name, equals, package = given.partition("=")
    return (name, package) if equals and "/" not in name else (None, given)  # a folder's name may have the sign too


def read_token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        token = file.read_text().strip()
    except OSError as error:
        raise UsageError(f"the token file {file} can't be read: {error.strerror}") from error
    if not token or not token.isascii() or any(letter.isspace() for letter in token):
        raise UsageError(f"the token in {file} must be one word of ASCII characters")
    return token


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
