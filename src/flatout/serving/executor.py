"""The process that runs a device's batches: requests of all fronts in, batches through the device, answers out.

One thread and one loop. `execute(descriptor)` is the whole process: `descriptor` is its end of the control line (see
`control`), and the process ends when the other end is closed.
"""

from __future__ import annotations

import gc
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import torch

from flatout.base.errors import FlatoutError
from flatout.serving.asking import Reason, Status
from flatout.serving.batching import BatchedModel, Batcher, ReadyBatch, TurnedAway, Waiting
from flatout.serving.control import ControlLine, ControlMessage
from flatout.serving.costs import CostCurve
from flatout.serving.devices import Flight, ServingDevice, serving_device
from flatout.serving.gathering import AttachedArena, scatter
from flatout.serving.loading import LoadedModel, ModelOrder, load_model
from flatout.serving.wire import ANSWER, QUESTION, DescriptorLine

_BEAT_S = 0.5
_SPARE_S = 0.0001  # added to the time that gathering a batch takes: so long before the device is free, the next is gathered
_SPIN_S = 0.00005  # between two looks at batches on a device
_REASONS = tuple(reason.name.lower() for reason in Reason)
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "failed to allocate memory", "bad_alloc", "bad allocation")


def execute(descriptor: int) -> None:
    """The supervisor decides when an executor ends: signals to the whole group do not end it, or nothing could be drained."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    control = ControlLine(socket.socket(fileno=descriptor))
    try:
        Executor(control).run()
    except (BrokenPipeError, ConnectionResetError):  # the supervisor is gone
        pass
    except Exception as error:
        why = str(error) if isinstance(error, FlatoutError) else f"{type(error).__name__}: {error}".partition("\n")[0]
        with suppress(OSError):
            control.send({"say": "failed", "problem": why})
        if not isinstance(error, FlatoutError):
            raise
        sys.exit(error.exit_code)


@dataclass
class ModelTally:
    """Of one model since the start."""

    requests: int = 0
    rows: int = 0
    batches: int = 0
    refused: int = 0
    failed: int = 0
    late: int = 0
    queue_s: float = 0.0
    copy_s: float = 0.0
    compute_s: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)
    batch_rows: dict[int, int] = field(default_factory=dict)


class AttachedFront:
    def __init__(self, name: str, arena: AttachedArena, line: DescriptorLine) -> None:
        self.name, self.arena, self.line = name, arena, line
        self.answers: list[bytes] = []
        self.is_gone = False
        self.is_watched = False  # for room to write


class Executor:
    def __init__(self, control: ControlLine) -> None:
        self._control = control
        self._epoll = select.epoll()
        self._epoll.register(control.fileno(), select.EPOLLIN)
        self._fronts: dict[int, AttachedFront] = {}  # by descriptor
        self._models: dict[int, LoadedModel] = {}
        self._tallies: dict[int, ModelTally] = {}
        self._batcher = Batcher([])
        self._device: ServingDevice | None = None
        self._flights: list[Flight] = []
        self._free_s = 0.0  # when the device will have finished what was launched
        self._gather_s = 0.0  # of a batch, about
        self._stops = self._drains = False
        self._beat_s = inf
        self._began_s = time.monotonic()

    def run(self) -> None:
        wait_s = _BEAT_S
        while not self._stops:
            heard = self._poll(wait_s)
            self._land()
            until_s = self._launch_next() if self._device is not None else inf
            self._send_answers()
            now_s = time.monotonic()
            if now_s >= self._beat_s:
                self._beat_s = now_s + _BEAT_S
                self._say("alive", at_s=now_s)
            if self._drains and not heard and not self._flights and not self._batcher.rows and not self._is_behind():
                self._drains = False
                self._say("drained")
            wait_s = self._wait_s(until_s, now_s)

    def _wait_s(self, until_s: float, now_s: float) -> float:
        if self._flights:
            return min(_SPIN_S, max(0.0, until_s - now_s))
        if self._drains:
            return 0.0
        return min(_BEAT_S, max(0.0, until_s - now_s))

    # ---- what comes in ----

    def _poll(self, wait_s: float) -> bool:
        """Whether a front was heard."""
        if 0 < wait_s < 0.002:  # epoll itself counts in milliseconds
            select.select([self._epoll], [], [], wait_s)
            wait_s = 0
        heard = False
        for descriptor, events in self._epoll.poll(wait_s):
            front = self._fronts.get(descriptor)
            if front is None:
                if descriptor == self._control.fileno():
                    self._listen(events)
                continue
            if events & select.EPOLLOUT:
                self._write(front)
            if events & ~select.EPOLLOUT:
                heard = True
                self._read(front)
        return heard

    def _read(self, front: AttachedFront) -> None:
        questions = front.line.read()
        if questions is None:
            self._detach(front)
            return
        models = self._models
        requests = []
        for number, offset, deadline_s, arrival_s, rows, model, priority, power, count, a, b, c, d in QUESTION.iter_unpack(
            questions
        ):
            sizes = (a, b, c, d)[:count] if count else ()
            request = Waiting(number, model, rows, arrival_s, deadline_s, priority, sizes, front, offset, power)
            if model in models and rows:
                requests.append(request)
            elif model in models:
                front.answers.append(ANSWER.pack(number, int(Status.ANSWERED), 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0))
            else:
                self._answer_failure(request, f"the executor has no model number {model}")
        for refusal in self._batcher.arrive(requests, time.monotonic(), self._free_s):
            self._refuse(refusal)

    def _listen(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._control.flush()
            if not self._control.is_behind:
                self._epoll.modify(self._control.fileno(), select.EPOLLIN)
        messages = self._control.receive()
        if messages is None:
            self._stops = True
            return
        for message in messages:
            self._obey(message)

    def _obey(self, message: ControlMessage) -> None:
        content = message.content
        match content["do"]:
            case "load":
                self._load(content)
            case "attach":
                arena, stream = message.descriptors
                self._attach(content["front"], arena, stream)
            case "detach":
                for front in [one for one in self._fronts.values() if one.name == content["front"]]:
                    self._detach(front)
            case "statistics":
                self._say("statistics", **self._statistics())
            case "drain":
                self._drains = True
            case "stop":
                self._stops = True
            case other:
                self._say("event", line=f"unknown control message {other!r}")

    def _load(self, content: Mapping[str, Any]) -> None:
        device = torch.device(content["device"])
        if device.type == "cuda":
            torch.cuda.set_device(device)  # graphs are captured on the current device
        if content.get("threads"):
            torch.set_num_threads(content["threads"])
        cache = None if content.get("cache") is None else Path(content["cache"])
        for written in content["models"]:
            order = ModelOrder.from_json(written)
            model = load_model(
                order,
                device,
                cache,
                compilers=content.get("compilers", False),
                photos_on=content.get("photos_on", "host"),
                say=lambda line: self._say("loading", line=line),
            )
            self._models[order.number] = model
            self._tallies[order.number] = ModelTally()
            self._batcher.models[order.number] = BatchedModel(order.number, order.name, CostCurve(model.points), order.goal)
        self._device = self._device or serving_device(device)
        gc.collect()
        gc.freeze()  # models stay: the collector need not look through them
        self._beat_s = 0.0
        self._say("ready", models=[model.to_json() for model in self._models.values()])

    def _attach(self, name: str, arena: int, stream: int) -> None:
        line = DescriptorLine(socket.socket(fileno=stream), QUESTION)
        self._fronts[line.fileno()] = AttachedFront(name, AttachedArena(arena), line)
        self._epoll.register(line.fileno(), select.EPOLLIN)

    def _detach(self, front: AttachedFront) -> None:
        front.is_gone = True
        self._batcher.forget(front)
        self._epoll.unregister(front.line.fileno())
        del self._fronts[front.line.fileno()]
        front.line.close()
        front.arena.close()

    # ---- batches ----

    def _launch_next(self) -> float:
        """Launches what is to be launched now. Returns until when nothing needs to be decided."""
        assert self._device is not None
        while True:
            if not self._batcher.rows:
                return inf
            now_s = time.monotonic()
            if len(self._flights) >= self._device.most_flights:
                return inf
            decision = self._batcher.next(now_s, self._free_s - self._gather_s - _SPARE_S)
            for refusal in decision.refused:
                self._refuse(refusal)
            if decision.batch is None:
                return decision.until_s
            self._launch(decision.batch, now_s)
            if self._device.most_flights == 1:
                return 0.0 if self._batcher.rows else inf  # others may have come meanwhile

    def _launch(self, batch: ReadyBatch, now_s: float) -> None:
        assert self._device is not None
        try:
            flight = self._device.launch(self._models[batch.model.number], batch)
        except Exception as error:
            self._failed(batch, error)
            return
        if self._device.most_flights == 1:
            self._finish(flight)
        else:
            self._gather_s += 0.1 * (flight.copy_s - self._gather_s)
            self._free_s = max(now_s, self._free_s) + batch.model.curve.seconds(batch.rows)
            self._flights.append(flight)

    def _land(self) -> None:
        """Flights that are done; they end in the order in which they began."""
        while self._flights and self._flights[0].is_done():
            self._finish(self._flights.pop(0))
            now_s = time.monotonic()
            left_s = (one.batch.model.curve.seconds(one.batch.rows) for one in self._flights)
            self._free_s = now_s + sum(left_s) if self._flights else 0.0

    def _finish(self, flight: Flight) -> None:
        flight.finish()
        batch = flight.batch
        out_s = time.monotonic()
        try:
            scatter(flight.places, flight.outputs)
        except Exception as error:
            self._failed(batch, error)
            return
        now_s = time.monotonic()
        copy_s = flight.copy_s + now_s - out_s
        # rows of the next batch are copied while a device computes; the CPU does one after the other
        overlaps = self._device is not None and self._device.most_flights > 1
        batch.model.took(batch.rows, max(copy_s, flight.compute_s) if overlaps else copy_s + flight.compute_s)
        tally = self._tallies[batch.model.number]
        tally.batches += 1
        tally.rows += batch.rows
        tally.copy_s += copy_s
        tally.compute_s += flight.compute_s
        reason = int(batch.reason)
        tally.reasons[_REASONS[reason]] = tally.reasons.get(_REASONS[reason], 0) + 1
        tally.batch_rows[batch.rows] = tally.batch_rows.get(batch.rows, 0) + 1
        pack, rows, compute_s, began_s = ANSWER.pack, batch.rows, flight.compute_s, flight.began_s
        waited_s = 0.0
        late = 0
        for request in batch.requests:
            if request.left != request.rows or request.rows > rows:  # it has more rows than a batch
                request.left -= min(rows, request.rows)
                self._count_piece(request, batch, flight, copy_s)
                continue
            request.left = 0
            queue_s = began_s - request.arrival_s
            waited_s += queue_s
            if now_s > request.deadline_s:
                late += 1
            request.front.answers.append(pack(request.id, 0, reason, 0, rows, queue_s, copy_s, compute_s, 0.0, 0))
        tally.late += late
        tally.queue_s += waited_s
        tally.requests += len(batch.requests)

    def _count_piece(self, request: Waiting, batch: ReadyBatch, flight: Flight, copy_s: float) -> None:
        """Of a request larger than a batch: its times are sums, and it is answered after the last piece."""
        queue_s, copied_s, computed_s = request.timing or (flight.began_s - request.arrival_s, 0.0, 0.0)
        request.timing = queue_s, copied_s, computed_s = queue_s, copied_s + copy_s, computed_s + flight.compute_s
        tally = self._tallies[request.model]
        if request.left:
            tally.requests -= 1  # it is counted once
            return
        tally.queue_s += queue_s
        tally.late += time.monotonic() > request.deadline_s
        request.front.answers.append(
            ANSWER.pack(request.id, 0, int(batch.reason), 0, batch.rows, queue_s, copied_s, computed_s, 0.0, 0)
        )

    def _failed(self, batch: ReadyBatch, error: Exception) -> None:
        """Out of memory: smaller batches from now on. Any other error: each request alone, so that one can't fail others."""
        if isinstance(error, torch.AcceleratorError):  # the device is of no use to this process any more
            raise error
        if batch.rows > 1 and _is_out_of_memory(error):
            most = 1 << ((batch.rows - 1).bit_length() - 1)
            batch.model.curve.limit(most)
            batch.model.revise()
            self._batcher.put_back(batch)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            rows = f"{most} row{'s' if most > 1 else ''}"
            self._say(
                "event", line=f"{batch.model.name}: out of memory with {batch.rows} rows; batches have at most {rows} now"
            )
        elif len(batch.requests) > 1:
            for request in batch.requests:
                request.alone = True
            self._batcher.put_back(batch)
        else:
            request = batch.requests[0]
            if request.left > 0:
                request.left = -request.rows * 2  # pieces that are still under way do not answer it
                self._batcher.remove(request)
                self._answer_failure(request, f"{type(error).__name__}: {error}".partition("\n")[0])

    # ---- what goes out ----

    def _refuse(self, refusal: TurnedAway) -> None:
        request = refusal.request
        self._tallies[request.model].refused += 1
        queue_s = time.monotonic() - request.arrival_s
        request.front.answers.append(
            ANSWER.pack(request.id, int(Status.LATE), int(Reason.NONE), 0, 0, queue_s, 0.0, 0.0, refusal.retry_after_s, 0)
        )

    def _answer_failure(self, request: Waiting, problem: str) -> None:
        if request.model in self._tallies:
            self._tallies[request.model].failed += 1
        text = 0 if request.front.is_gone else request.front.arena.write_text(request, problem)
        request.front.answers.append(ANSWER.pack(request.id, int(Status.FAILED), 0, 0, 0, 0.0, 0.0, 0.0, 0.0, text))

    def _send_answers(self) -> None:
        for front in list(self._fronts.values()):
            if front.answers:
                answers = b"".join(front.answers)
                front.answers.clear()
                self._write(front, answers)

    def _write(self, front: AttachedFront, answers: bytes = b"") -> None:
        try:
            front.line.write(answers)
        except OSError:
            self._detach(front)
            return
        if front.line.is_behind != front.is_watched:
            front.is_watched = front.line.is_behind
            self._epoll.modify(front.line.fileno(), select.EPOLLIN | (select.EPOLLOUT if front.is_watched else 0))

    def _is_behind(self) -> bool:
        return any(front.line.is_behind or front.answers for front in self._fronts.values())

    def _say(self, what: str, **content: Any) -> None:
        try:
            self._control.send({"say": what, **content})
        except OSError:
            self._stops = True  # the supervisor has ended
            return
        if self._control.is_behind:
            self._epoll.modify(self._control.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _statistics(self) -> dict[str, Any]:
        now_s = time.monotonic()
        models = []
        for number, tally in self._tallies.items():
            model = self._batcher.models[number]
            models.append(
                {
                    "number": number,
                    "name": model.name,
                    **vars(tally),
                    "waiting_rows": model.rows,
                    "arrivals_per_s": model.arrivals.per_s(now_s),
                    "useful_rows": model.useful_rows,
                    "largest": model.curve.largest,
                    "curve": model.curve.points(),
                }
            )
        return {"models": models, "cpu_s": time.process_time(), "up_s": now_s - self._began_s, "fronts": len(self._fronts)}


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return any(words in text for words in _OUT_OF_MEMORY)
