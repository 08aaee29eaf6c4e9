"""One front: takes connections from the port that all fronts share, and answers them. The supervisor tells it what to serve.

To a front (`do`): models, attach, retire, open, status, reply, drain. From a front (`say`): ready, alive, retired, load,
unload, took, drained, event, failed.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import importlib
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flatout.base.errors import FlatoutError, UsageError
from flatout.base.latency_goal import LatencyGoal
from flatout.packaging.package import open_package
from flatout.serving.access_log import AccessLog
from flatout.serving.arena import Arena
from flatout.serving.asking import ServedModel
from flatout.serving.control import ControlLine, ControlMessage
from flatout.serving.counters import SharedCounters
from flatout.serving.drift.sampling import DriftSampling
from flatout.serving.encryption import secured
from flatout.serving.front.app import FrontApp
from flatout.serving.front.canary_pages import canary_posts
from flatout.serving.front.canary_split import SplitRule
from flatout.serving.front.hooks import RowHooks, RowsHook
from flatout.serving.front.limits import Limits
from flatout.serving.front.preparing import Preparer
from flatout.serving.front.repository import RepositoryEntry
from flatout.serving.lane import FrontLane
from flatout.serving.options import FrontOptions
from flatout.serving.pages import ServerPages
from flatout.serving.shared_watching import SharedWatching

if TYPE_CHECKING:
    from flatout.serving.front.grpc_port import GrpcPort
    from flatout.serving.sample_files import SampleFiles

_BEAT_S = 0.5
_LOOK_S = 0.02
_NEXT_TURN_S = 0.002
_HTTP_S = 50e-6  # of a core for one request beside the preparation of its row
_BYTE_S = 1.5e-9  # of a core for one byte of a body that is read, and copied to shared memory
_NO_MORE, _FULL_S = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM), 0.1  # then it tries again later
_OTHER_FILES = 256  # beside connections
_GATHERED_S = 0.1  # requests are counted this often


def be_front(slot: int, options: FrontOptions, control: int, listening: int, counters: int) -> int:
    """The whole process. Returns its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the supervisor decides when
    torch.set_num_threads(1)
    gc.freeze()  # modules stay: a look through all of torch's objects would keep requests waiting for a tenth of a second
    allow_connections(Limits(**options.limits).connections)
    line = ControlLine(socket.socket(fileno=control))
    try:
        import uvloop

        uvloop.run(Front(slot, options, line, socket.socket(fileno=listening), SharedCounters(counters)).live())
    except FlatoutError as error:
        with suppress(OSError):
            line.send({"say": "failed", "problem": str(error), "usage": isinstance(error, UsageError)})
        return error.exit_code
    except BrokenPipeError:
        return 0  # the supervisor is gone
    return 0


class Front:
    def __init__(
        self, slot: int, options: FrontOptions, line: ControlLine, listening: socket.socket, counters: SharedCounters
    ) -> None:
        self._options, self._line, self._listening = options, line, listening
        self._counters = counters
        self._about = counters.about(slot)
        self._closing: set[str] = set()  # executors that are not asked any more
        self._replies: dict[int, Callable[[Mapping[str, Any]], None]] = {}
        self._asked = 0
        self._models: dict[str, dict[str, ServedModel]] = {}
        self._control: ServedModel | None = None  # of a canary
        self._messages: asyncio.Queue[ControlMessage] = asyncio.Queue()
        self._is_open = False
        self._pausing: asyncio.TimerHandle | None = None
        self._cpu_s, self._looked_s = 0.0, time.monotonic()
        self._over: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._encrypting = secured(options)
        self._log = AccessLog(options.access_log) if options.access_log else None
        self._watching = SharedWatching(counters, slot, self._log)
        self._hooks = RowHooks(imported(options.before), imported(options.after))

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop, self._over = loop, loop.create_future()
        self._lane = FrontLane(loop, Arena(self._options.arena_bytes))
        self._samples = sample_files(self._options, lambda line: loop.call_soon_threadsafe(self._tell, line))
        self._drift = DriftSampling() if self._options.watches_drift else None
        self._pages = ServerPages(self._counters, self._watching)
        self._app = FrontApp({}, self._lane, self._watching, self, Limits(**self._options.limits), self._options.token,
                             self._hooks, self._pages.routes(), self._samples, self._watching.arms,
                             canary_posts(self._ask_supervisor), self._drift)  # fmt: skip
        self._app.ready = False
        self._grpc = grpc_port(self._options, self._app)
        self._app.start(loop)
        loop.add_reader(self._line.fileno(), self._listen)
        obeying = asyncio.ensure_future(self._obey_all())
        beating = asyncio.ensure_future(self._beat())
        counting = asyncio.ensure_future(self._count())
        try:
            await self._over
        finally:
            obeying.cancel()
            beating.cancel()
            counting.cancel()
            await self._end_samples()
            self._watching.flush()

    # ---- what the supervisor says ----

    def _listen(self) -> None:
        messages = self._line.receive()
        for message in messages if messages is not None else ():
            self._messages.put_nowait(message)
        if messages is None and self._over is not None and not self._over.done():
            self._over.set_result(None)  # the supervisor is gone

    async def _obey_all(self) -> None:
        """In the order in which they came: what follows new models waits until they are read."""
        try:
            while True:
                await self._obey(await self._messages.get())
        except Exception as error:
            if self._over is not None and not self._over.done():
                self._over.set_exception(error)

    async def _obey(self, message: ControlMessage) -> None:
        content = message.content
        match content["do"]:
            case "models":
                await self._take_models(content["models"], content["canary"])
                self._say("took", change=content["change"])
            case "attach":
                (stream,) = message.descriptors
                self._lane.attach(content["executor"], socket.socket(fileno=stream), content["models"])
            case "retire":
                self._lane.retire(content["executor"])
                self._closing.add(content["executor"])
            case "open":
                self._open()
            case "status":
                self._pages.heard(content["status"])
            case "reply":
                self._replies.pop(content["ask"])(content)
            case "drain":
                self._keep(self._drain())

    async def _take_models(self, written: Sequence[Mapping[str, Any]], canary: Mapping[str, Any] | None) -> None:
        """Packages are read in a thread: requests are answered meanwhile."""
        known = {model.number: model for versions in self._models.values() for model in versions.values()}
        if self._control is not None:
            known[self._control.number] = self._control
        models: dict[str, dict[str, ServedModel]] = {}
        for one in [*([] if canary is None else [canary["model"]]), *written]:  # the stable version is the newest
            model = await self._known_or_read(known, one)
            models.setdefault(model.name, {})[model.version] = model
        control = None if canary is None else canary["control"]
        self._control = None if control is None else await self._known_or_read(known, control)
        self._models = models
        self._watching.places = {one["name"]: one["place"] for one in written}
        self._pages.models = {name: list(versions.values())[-1] for name, versions in models.items()}
        self._app.swap(models, None if canary is None else SplitRule.from_json(canary["rule"]), self._control)
        if not self._app.ready:
            slowest_s = max(map(row_seconds, self._pages.models.values()), default=0.0)
            self._say("ready", [self._lane.descriptor], row_s=_HTTP_S + slowest_s)
            self._app.ready = True

    async def _known_or_read(self, known: Mapping[int, ServedModel], written: Mapping[str, Any]) -> ServedModel:
        before = known.get(written["number"])
        return before if before is not None else await asyncio.to_thread(served, written)

    # ---- connections ----

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._about.take_connections(True)
            self._loop.add_reader(self._listening.fileno(), self._accept)
            if self._grpc is not None:
                self._grpc.open()
                self._keep(self._grpc.start())

    def _accept(self) -> None:
        """One connection, unless another front has fewer: a client's connections stay with the front that took them."""
        self._about.opened(self._app.connections)
        if self._app.connections > min(self._counters.connections(), default=0):
            self._pause(_NEXT_TURN_S)
            return
        self._take_connection()

    def _take_connection(self) -> bool:
        """False if there was none: another front was quicker, or the client is gone."""
        try:
            taken, _ = self._listening.accept()
        except OSError as error:
            if error.errno in _NO_MORE and self._is_open:
                self._pause(_FULL_S)
            return False
        taken.setblocking(False)
        self._keep(self._loop.connect_accepted_socket(self._app.protocol_factory, taken, ssl=self._encrypting))
        return True

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening.fileno())
        if self._pausing is not None:
            self._pausing.cancel()
        self._pausing = self._loop.call_later(seconds, self._again)

    def _again(self) -> None:
        self._pausing = None
        if self._is_open:
            self._take_connection()
            if self._pausing is None:
                self._loop.add_reader(self._listening.fileno(), self._accept)

    async def _drain(self) -> None:
        """What has come is answered. Clients that waited to be accepted are taken, and told that the connection ends."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._listening.fileno())
            while self._take_connection():
                pass
            self._about.take_connections(False)
        self._listening.close()
        self._app.draining = True
        if self._grpc is not None:
            self._keep(self._grpc.stop())
        await asyncio.sleep(_LOOK_S)  # what is on the way is read
        while self._app.in_flight or self._lane.outstanding or self._app.receiving:
            await asyncio.sleep(_LOOK_S)
        self._app.stop()
        await asyncio.sleep(_LOOK_S)  # answers leave
        self._watching.flush()
        await self._end_samples()
        self._say("drained")

    async def _end_samples(self) -> None:
        samples, self._samples = self._samples, None
        if samples is not None:
            await self._loop.run_in_executor(None, samples.close)
            self._about.sampled(samples.kept, samples.dropped)

    # ---- what it says ----

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            now_s, cpu_s = time.monotonic(), time.process_time()
            busy = (cpu_s - self._cpu_s) / max(1e-3, now_s - self._looked_s)
            self._cpu_s, self._looked_s = cpu_s, now_s
            self._about.say(self._app.in_flight, cpu_s)
            if self._samples is not None:
                self._about.sampled(self._samples.kept, self._samples.dropped)
            if self._is_open:
                self._about.opened(self._app.connections)
            self._say("alive", busy=busy)
            for counted in self._drift.counted() if self._drift is not None else ():
                self._say("rows", **counted)
            for name in [name for name in self._closing if self._lane.has_left(name)]:
                self._closing.discard(name)
                self._say("retired", executor=name)

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(_GATHERED_S)
            self._watching.flush()

    def _say(self, what: str, descriptors: Sequence[int] = (), **content: Any) -> None:
        self._line.send({"say": what, **content}, descriptors)
        if self._line.is_behind:
            self._loop.add_writer(self._line.fileno(), self._write)

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # the supervisor may be gone
            self._say("event", line=line)

    def _write(self) -> None:
        self._line.flush()
        if not self._line.is_behind:
            self._loop.remove_writer(self._line.fileno())

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a handshake that failed concerns its client alone

    # ---- the repository, for clients ----

    def index(self) -> list[RepositoryEntry]:
        return [RepositoryEntry(name, list(versions)[-1], "READY") for name, versions in self._models.items()]

    def load(self, name: str, done: Callable[[str | None], None]) -> None:
        self._ask_supervisor("load", lambda said: done(said["problem"]), name=name)

    def unload(self, name: str, done: Callable[[str | None], None]) -> None:
        self._ask_supervisor("unload", lambda said: done(said["problem"]), name=name)

    def _ask_supervisor(self, what: str, done: Callable[[Mapping[str, Any]], None], **content: Any) -> None:
        self._asked += 1
        self._replies[self._asked] = done
        self._say(what, ask=self._asked, **content)


def served(written: Mapping[str, Any]) -> ServedModel:
    goal_s = LatencyGoal.parse(written["goal"]).seconds if written["goal"] else 0.0
    package = open_package(Path(written["path"]))
    return ServedModel(written["name"], written["version"], written["number"], package, goal_s, written["takes_files"])


def allow_connections(count: int) -> None:
    """Many systems allow 1024 open files unless a process asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def row_seconds(model: ServedModel) -> float:
    """How long the preparation of one raw sample takes here; of a photo that the executor decodes, about, to bring it there."""
    samples = model.package.samples
    if model.takes_files and samples.photos:
        return len(samples.photos[0]) * _BYTE_S
    raw: Any = list(samples.photos[:1]) if samples.photos else first_row(samples.raw)
    if raw is None:
        return 0.0
    preparer, times = Preparer(model), []
    with suppress(FlatoutError):
        for _ in range(5):
            began_s = time.perf_counter()
            preparer.row(raw) if isinstance(raw, dict) else preparer.rows(raw)
            times.append(time.perf_counter() - began_s)
    return min(times, default=0.0)


def first_row(raw: Any) -> Any:
    if isinstance(raw, Mapping):
        return {name: column[0] for name, column in raw.items()}
    return None


def sample_files(options: FrontOptions, say: Callable[[str], Any]) -> SampleFiles | None:
    if not options.sample_share or options.sample_folder is None:
        return None
    from flatout.serving.sample_files import SampleFiles  # pyarrow takes time and memory

    return SampleFiles(Path(options.sample_folder), options.sample_share, say)


def grpc_port(options: FrontOptions, app: FrontApp) -> GrpcPort | None:
    if options.grpc_address is None:
        return None
    from flatout.serving.front.grpc_port import GrpcPort  # an extra, and not to be imported before this process was forked

    tls = (options.certificate, options.key) if options.certificate is not None and options.key is not None else None
    return GrpcPort(app.site, options.grpc_address, Limits(**options.limits), tls)


def imported(name: str | None) -> RowsHook | None:
    """A hook as `module:function`."""
    if name is None:
        return None
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UsageError(f"a hook is written as module:function, got {name!r}")
    try:
        found = vars(importlib.import_module(module)).get(attribute)
    except Exception as error:
        raise UsageError(f"the hook {name} can't be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise UsageError(f"{module} has no function {attribute!r}")
    made: RowsHook = found
    return made


def process_work(asked: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """What a process does that the supervisor starts: it is a front or an executor."""
    if asked["kind"] == "front":
        control, listening, counters = descriptors
        return be_front(asked["slot"], FrontOptions.from_json(asked["options"]), control, listening, counters)
    from flatout.serving.executor import execute

    (control,) = descriptors
    execute(control)
    return 0
