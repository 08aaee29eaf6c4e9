"""A run on a Ray cluster. Ray Train places the workers and restarts them if one is lost; each trains as under torchrun.

Ray's own checkpoints are not used: the run folder is on storage that all nodes share, and restarted workers find the unfinished
run there, as the same command would.
"""

from __future__ import annotations

import logging
import re
import shutil
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError, MachineError, MissingExtra, Stopped, StoreError, TrainingError, UsageError
from flatout.base.events import Observer
from flatout.engine.signals import EXIT_CODES, watch_signals
from flatout.fleet.ray_worker import RayLink, Work, notice, train_in_worker

RESTARTS = 5
_LOOK_S = 0.25
_KNOCK_S = 10.0
_MOST_WORDS = 200
_GPU_BACKEND = "cpu:gloo,cuda:nccl"  # processes also exchange host tensors
_PORT_RETRIES = 2
_FOLDER = ".ray"  # Ray Train's files, in the folder of runs while one is active


@dataclass(frozen=True)
class WorkerCount:
    """`most` workers, or as few as `least` for a while if the cluster has no more."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> WorkerCount:
        match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
        if match is None:
            raise UsageError(f"--workers must be a number such as 8 or a range such as 2:8, got {text!r}")
        least, most = int(match[1]), int(match[2] or match[1])
        if least < 1:
            raise UsageError(f"--workers: training needs at least 1, got {text!r}")
        if least > most:
            raise UsageError(f"--workers must be LEAST:MOST, got {text!r}; did you mean {most}:{least}?")
        return cls(least, most)

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least} to {self.most}"


def is_job_url(address: str | None) -> bool:
    """Whether the address is a dashboard: then the run is submitted as a job, see `ray_submit`."""
    return address is not None and address.startswith(("http://", "https://"))


def launch(
    work: Work,
    workers: WorkerCount,
    runs: Path,
    *,
    address: str | None = None,
    gpus: bool | None = None,
    restarts: int = RESTARTS,
    observers: tuple[Observer, ...] = (),
) -> Path:
    """Run `work`, which must be picklable, on every worker and return the run's folder. Ctrl-C and SIGTERM save first.

    `address` is a cluster that this machine is a node of; None starts a local cluster for this run. `gpus`: one per worker;
    None: if the cluster has any.
    """

    def say(line: str) -> None:
        _show((notice(line),), observers)

    with connected(address, workers, say) as (ray, own):
        use_gpu = ray.cluster_resources().get("GPU", 0) > 0 if gpus is None else gpus
        check_room(ray, workers, use_gpu, own, say)
        line = _line(ray)  # the same for all starts: it knows whether the run has begun
        starts_left = _PORT_RETRIES
        while True:
            with _storage(runs) as place:
                fit = _beside(_trainer(work, workers, line, place, use_gpu, restarts).fit)
                stopped = _attend(ray, fit, line, observers, say)
                if stopped or not starts_left or not _lost_its_port(ray, fit, line):
                    return _outcome(ray, fit, line, restarts)
            starts_left -= 1
            say("another process took the port that Ray had chosen for the workers (EADDRINUSE): starting again")


# ---- before it starts ----


@contextmanager
def connected(address: str | None, workers: WorkerCount, say: Callable[[str], None]) -> Iterator[tuple[Any, bool]]:
    """Ray connected to the cluster, and whether we started that cluster. An existing connection is kept."""
    if address is not None and address.startswith("ray://"):
        raise UsageError(
            f"RAY_ADDRESS is {address}, a Ray Client address, which Ray Train does not support: on a node of the cluster set "
            "it to host:6379 or auto; elsewhere set it to http://host:8265 to submit the run as a job"
        )
    try:
        import ray
        import ray.train.torch
    except ImportError as error:
        raise MissingExtra("ray", "cluster", "--on ray") from error
    if ray.is_initialized():
        yield ray, False
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        say("RAY_ADDRESS is not set: starting a Ray cluster on this machine for this run")
        quiet |= {"address": "local", "num_cpus": max(_cores(), workers.most), "include_dashboard": False}
    else:
        quiet |= {"address": address}
    try:
        _knock(address)
        with _own_sigterm():
            ray.init(**quiet)
    except ray.exceptions.AuthenticationError as error:
        raise MachineError(
            f"the cluster at {address} requires a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=<file with the token>"
        ) from error
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise MachineError(
            f"no Ray cluster found at {address or 'this machine'}: {reason}. This machine must be one of its nodes; from "
            "elsewhere, set RAY_ADDRESS=http://host:8265 to submit the run as a job"
        ) from error
    try:
        yield ray, address is None
    finally:
        ray.shutdown()


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray sets a handler that ends the process with code 15, and leaves it there after its shutdown."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _knock(address: str | None) -> None:
    """Check the connection first: Ray itself would retry for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), _KNOCK_S).close()


def _cores() -> int:
    import psutil

    return psutil.cpu_count() or 1


@contextmanager
def _storage(runs: Path) -> Iterator[Path]:
    """A temporary folder next to the runs. Workers that can't see it do not share the storage."""
    place = runs.absolute() / _FOLDER / uuid.uuid4().hex[:12]
    try:
        place.mkdir(parents=True)
    except OSError as error:
        raise StoreError(f"can't create a run in {runs}: {error.strerror}; choose another folder with --runs") from error
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):
            place.parent.rmdir()


def check_room(ray: Any, workers: WorkerCount, use_gpu: bool, own: bool, say: Callable[[str], None]) -> int:
    """How many workers the cluster has room for now."""
    kind = "GPU" if use_gpu else "CPU"
    there = int(ray.cluster_resources().get(kind, 0))
    say(f"{workers} workers, one {kind} each; the cluster has {there} on {len(ray.nodes())} nodes")
    if there >= workers.least:
        return there
    needed = f"{workers.least} workers need one {kind} each, the cluster has {there}"
    if own:
        raise UsageError(f"{needed}: use --workers {max(1, there)}, or --set device=cpu")
    say(f"{needed}: waiting for more")
    return there


def _line(ray: Any) -> Any:
    """Placed on this node, so that it lives as long as the launcher."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(RayLink).remote()


def _trainer(work: Work, workers: WorkerCount, line: Any, place: Path, use_gpu: bool, restarts: int) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    many: Any = workers.most if workers.least == workers.most else (workers.least, workers.most)
    return TorchTrainer(
        train_in_worker,
        train_loop_config={"work": work, "line": line, "place": str(place)},
        torch_config=TorchConfig(backend=_GPU_BACKEND if use_gpu else "gloo"),
        scaling_config=ScalingConfig(num_workers=many, use_gpu=use_gpu),
        run_config=RunConfig(
            name=place.name,
            storage_path=str(place.parent),
            failure_config=FailureConfig(max_failures=restarts),
            callbacks=[_listener(line)],
        ),
    )


def _listener(line: Any) -> Any:
    """Runs in Ray Train's controller: reports which workers failed, and ends runs that a restart would not fix."""
    import ray
    from ray.train import UserCallback

    class Listener(UserCallback):  # type: ignore[misc]
        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
            if ray.get(line.ended.remote()) is not None:
                raise RuntimeError("a restart would not help")
            line.say.remote(f"{_troubles(worker_exceptions)}; all workers restart from the last checkpoint")

    return Listener()


def _troubles(errors: Mapping[int, Exception]) -> str:
    """Lost workers first: the errors of the others are consequences."""
    from ray.exceptions import RayError

    lost = [str(rank) for rank, error in sorted(errors.items()) if isinstance(error, RayError)]
    if lost:
        return f"worker{'' if len(lost) == 1 else 's'} {', '.join(lost)} lost (its process or node is gone)"
    rank, error = min(errors.items())
    return f"worker {rank}: {str(error).strip().splitlines()[-1][:_MOST_WORDS]}"


# ---- while it runs ----


def _beside(call: Callable[[], Any]) -> Future[Any]:
    """In a daemon thread; this thread handles signals and output."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="flatout-ray", daemon=True).start()
    return future


def _attend(ray: Any, fit: Future[Any], line: Any, observers: tuple[Observer, ...], say: Callable[[str], None]) -> bool:
    """Show events until the run is over, and pass on requests to stop. Returns whether there was one."""
    placed = asked = False
    with watch_signals() as stop:
        over = threading.Event()
        fit.add_done_callback(lambda _: over.set())
        last = False
        while not last:
            last = over.wait(_LOOK_S)
            news = ray.get(line.news.remote())
            placed = placed or any(event["kind"] == "placed" for event in news)
            _show(news, observers)
            if stop and not asked and not last:
                name = str(stop.signal_name)
                if not placed:
                    raise Stopped(name, EXIT_CODES[name], f"{name}: no worker had started")
                ray.get(line.stop.remote(name))
                say("asking the workers to save and stop; press Ctrl-C again to leave at once with the last checkpoint")
                asked = True
        return bool(stop)


def _show(events: Any, observers: tuple[Observer, ...]) -> None:
    for event in events:
        for observer in observers:
            observer(event)


def _lost_its_port(ray: Any, fit: Future[Any], line: Any) -> bool:
    """Ray Train chooses a free port for the process group and opens it later; another process can take it in between.

    Errors of workers are excluded: the port of such an error is the script's, and Ray Train has restarted the workers.
    """
    from ray.train import WorkerGroupError

    error = fit.exception()
    if error is None or isinstance(error, WorkerGroupError):
        return False
    told = str(error).lower()
    return ("eaddrinuse" in told or "address already in use" in told) and ray.get(line.ended.remote()) is None


def _outcome(ray: Any, fit: Future[Any], line: Any, restarts: int) -> Path:
    from ray.exceptions import RayError
    from ray.train import TrainingFailedError

    try:
        answer = fit.result().return_value
    except RayError as error:
        raise MachineError(f"Ray could not run it: {error}") from error
    except TrainingFailedError as failed:
        if (end := ray.get(line.ended.remote())) is not None:
            raise _error(end["words"], end["code"]) from None
        raise TrainingError(
            f"failed again after {restarts} restarts: {_last_words(failed)}\n"
            "Run the same command to resume from the last checkpoint"
        ) from failed
    if (stopped := answer.get("stopped")) is not None:
        raise Stopped(stopped["signal"], stopped["code"], stopped["words"])
    return Path(answer["folder"])


def _last_words(failed: Any) -> str:
    from ray.train import WorkerGroupError

    if not isinstance(failed, WorkerGroupError):
        return str(failed)
    return "\n".join(f"worker {rank}: {error}" for rank, error in sorted(failed.worker_failures.items()))


def _error(words: str, code: int) -> FlatoutError:
    error = TrainingError(words)
    error.exit_code = code
    return error
