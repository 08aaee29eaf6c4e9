"""`serve`: packages answer at an address until a signal comes."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch

from flatout.base.errors import MachineError, MissingExtra, UsageError
from flatout.base.fork_server import ForkServer, ForkServerGone
from flatout.base.latency_goal import LatencyGoal
from flatout.base.listening import bound_socket
from flatout.base.passing import passing_folder
from flatout.packaging.package import open_package
from flatout.serving.canary.comparable import answer_kind, check_replaces
from flatout.serving.canary.options import CanaryOptions
from flatout.serving.canary.rollout import Rollout
from flatout.serving.counters import MOST_FRONTS, MOST_MODELS
from flatout.serving.encryption import secured
from flatout.serving.options import ServeOptions, WantedModel
from flatout.serving.places import devices_named
from flatout.serving.supervisor import STOP_SIGNALS, Supervisor

_LIBRARIES = ("uvloop", "httptools", "orjson")
_OFTEN_USED = ("onnx", "onnx.checker")
MOST_EXECUTORS = 64
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."


def serve(
    models: Sequence[WantedModel],
    options: ServeOptions,
    *,
    opened: Callable[[str], None] = lambda url: None,
    say: Callable[[str], None] = lambda line: None,
) -> int:
    """Returns the exit code. This process must not have used torch for anything: it is forked.

    `opened` gets the address when the server answers there.
    """
    check(models, options)
    _check_libraries()
    if options.grpc_port is not None:
        _check_grpc()
    for name in _OFTEN_USED:  # by executors: imported here once, one that is replaced is back sooner
        with suppress(ImportError):
            importlib.import_module(name)
    import flatout.serving.executor
    import flatout.serving.front_process

    with passing_folder("flatout-serve") as kept:
        template = ForkServer.forked_here(flatout.serving.front_process.process_work, ignores=STOP_SIGNALS)
        try:
            return asyncio.run(_run(models, options, template, kept, opened, say))
        except ForkServerGone as error:
            raise MachineError(f"the process that starts others {error}") from error
        finally:
            template.close()


async def _run(
    models: Sequence[WantedModel],
    options: ServeOptions,
    template: ForkServer,
    kept: Path,
    opened: Callable[[str], None],
    say: Callable[[str], None],
) -> int:
    with ExitStack() as stack:
        if options.grpc_port is not None:
            reserved = stack.enter_context(shared_port(options.host, options.grpc_port))
            options = replace(options, front=replace(options.front, grpc_address=shown_address(reserved.getsockname())))
        rollout = None if options.canary is None else rollout_of(models, options.canary, say)
        supervisor = Supervisor(models, options, template, kept, say, rollout)
        scheme = "http" if options.front.certificate is None else "https"
        url = f"{scheme}://{shown_address(supervisor.address)}"

        def answers() -> None:
            opened(url)
            if options.front.grpc_address is not None:
                say(f"gRPC at {options.front.grpc_address}")

        return await supervisor.run(answers)


def rollout_of(models: Sequence[WantedModel], canary: CanaryOptions, say: Callable[[str], None]) -> Rollout:
    """UsageError if the canary can't take the place of the model that it is for."""
    stable = next((open_package(one.path) for one in models if one.name == canary.model), None)
    if stable is None:
        raise UsageError(f"the canary is for the model {canary.model!r}; served are {', '.join(one.name for one in models)}")
    package = open_package(canary.path)
    check_replaces(stable, package, canary.model)
    return Rollout(canary, stable.folder.hash, package.folder.hash, answer_kind(stable), say)


def shared_port(host: str, port: int) -> socket.socket:
    """A socket that never listens: it keeps the port for the gRPC servers of the fronts, which share it."""
    with bound_socket(host, port) as alone:  # nobody else has it: they would get a share of the connections
        family, address = alone.family, alone.getsockname()
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(address)
    return made


def shown_address(address: tuple[Any, ...]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check(models: Sequence[WantedModel], options: ServeOptions) -> None:
    """UsageError or DamagedFile before any process is started."""
    if not models:
        raise UsageError("name at least one package or run to serve")
    names = [model.name for model in models]
    for name in names:
        if not name or set(name) - set(_NAME):
            raise UsageError(f"the name of a model has letters, digits, '-', '_' and '.' only, got {name!r}")
        if names.count(name) > 1:
            raise UsageError(f"two models have the name {name!r}: write NAME=PACKAGE for each")
    for goal in (options.goal, *(model.goal for model in models)):
        if goal is not None:
            LatencyGoal.parse(goal)
    for model in models:
        open_package(model.path)
    if options.workers is not None and not 1 <= options.workers <= MOST_FRONTS:
        raise UsageError(f"the number of processes for connections is 1 to {MOST_FRONTS}, got {options.workers}")
    if not 1 <= options.executors <= MOST_EXECUTORS:
        raise UsageError(f"the number of processes for models is 1 to {MOST_EXECUTORS}, got {options.executors}")
    if len(models) >= MOST_MODELS:
        raise UsageError(f"a server has at most {MOST_MODELS - 1} models, got {len(models)}")
    if options.canary is not None:
        rollout_of(models, options.canary, lambda line: None)
        _check_folder(options.canary.folder, "the state of a canary")
    if options.drift is not None:
        _check_folder(options.drift.folder, "the state of drift")
    _check_device(options.device)
    if options.photos_on not in ("auto", "host", "device"):
        raise UsageError(f"--photos-on is auto, host or device, got {options.photos_on!r}")
    if (options.front.certificate is None) != (options.front.key is None):
        raise UsageError("TLS needs both --tls-cert and --tls-key")
    secured(options.front)
    for hook in (options.front.before, options.front.after):
        _check_hook(hook)
    if not 0 <= options.front.sample_share <= 1:
        raise UsageError(f"the share of requests to keep is 0 to 1, got {options.front.sample_share}")
    if options.front.sample_share and options.front.sample_folder is not None:
        _check_folder(Path(options.front.sample_folder))


def _check_folder(folder: Path, of: str = "sampled requests") -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"the folder for {of}, {folder}, can't be written: {error.strerror}") from error


def _check_grpc() -> None:
    """Without importing it: this process is forked."""
    for name in ("grpc", "google.protobuf"):
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise MissingExtra(name, "grpc", "flatout serve --grpc-port")


def _check_device(named: str) -> None:
    kinds = set()
    for name in ["cpu"] if named == "auto" else devices_named(named):
        try:
            kinds.add(torch.device(name).type)
        except RuntimeError:
            kinds.add(name)
    if kinds not in ({"cpu"}, {"cuda"}):
        raise UsageError(f"the device is auto, cpu, cuda, cuda:1 or cuda:0,cuda:1, got {named!r}")


def _check_hook(name: str | None) -> None:
    """Only whether its module is there: the fronts import it."""
    if name is None:
        return
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise UsageError(f"a hook is written as module:function, got {name!r}")
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise UsageError(f"the hook {name} can't be imported: there is no module {module!r} here or among the packages")


def _check_libraries() -> None:
    if sys.platform != "linux":
        raise UsageError("flatout serve runs on Linux only")
    for name in _LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise MissingExtra(name, "serve", "flatout serve") from error
