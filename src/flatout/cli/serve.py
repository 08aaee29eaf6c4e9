"""serve: packages and runs over the network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flatout.base.errors import UsageError
from flatout.cli.packages import package_folder
from flatout.cli.places import cache_folder

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
    sys.path.insert(0, "")  # hooks may be in this folder
    sys.exit(serve_packages(wanted, options, opened=lambda url: _opened(url, [one.name for one in wanted]), say=_say))


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
