"""Processes of other machines, or of other ranks of a launcher: the first rank drives the study, the others answer.

Each device of another rank has a connection of its own to the first. A rank that is gone takes no other with it.
"""

from __future__ import annotations

import hmac
import json
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from flatout.base.answering_child import GONE, NoAnswer
from flatout.base.errors import FlatoutError, MachineError, PeerLost, TrainingError
from flatout.base.messages import BadMessage, Messages
from flatout.tuning.crew.seats import CrewMember, CrewSeat, answer_in, asked_of
from flatout.world.joining import JOIN_TIMEOUT_S, ProcessPlace

_PATIENCE_S = 300.0  # beyond the limit of a question: for a process to start there, and for the network
_HELLO_S = 30.0
# a machine that lost its power is noticed after 45 s
_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 6, "TCP_USER_TIMEOUT": 45_000}


class Line:
    """Messages both ways over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._messages = Messages(connection.fileno())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, message: Mapping[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, limit_s: float | None = None) -> dict[str, Any]:
        return self._messages.receive(limit_s)

    def hang_up(self) -> None:
        """Both ends read that it is over."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Nobody reads from it any more."""
        self.hang_up()
        self._socket.close()


# ---- the rank that drives ----


class Far:
    """A member of the crew at the other end of a line."""

    def __init__(self, line: Line, name: str) -> None:
        self.line, self.name = line, name
        self._asked = 0

    def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
        self._asked += 1
        try:
            self.line.send({"number": self._asked, "question": question, "limit_s": limit_s})
            while (told := self.line.receive(None if limit_s is None else limit_s + _PATIENCE_S))["number"] != self._asked:
                pass  # to a question that was interrupted
        except (EOFError, OSError, BadMessage) as error:
            raise NoAnswer(GONE, f"{self.name} is gone: {error}") from None
        return answer_in(told, self.name)

    def stop(self) -> None:
        """End what it trains. The next question starts a new process there."""
        with suppress(OSError):
            self.line.send({"stop": True})


@contextmanager
def far_seats(place: ProcessPlace, store: Any, ended: Callable[[], str]) -> Iterator[list[CrewSeat]]:
    """The devices of all other ranks. `ended` gives the folder of the study that is told to them at the end."""
    token = secrets.token_hex(16)
    with _listening() as server:
        store.set("tune", json.dumps({"port": server.getsockname()[1], "token": token}))
        lines = _met(server, token, sum(int(store.get(f"tune/{rank}")) for rank in range(1, place.size)))
    members = [Far(line, name) for line, name in lines]
    told: dict[str, Any] = {"end": "", "code": 1, "why": "rank 0 has ended"}
    try:
        yield [CrewSeat(one.name, lambda one=one: one, is_here=False) for one in members]  # type: ignore[misc]
        told = {"end": ended(), "code": 0}
    except BaseException as error:
        code = error.exit_code if isinstance(error, FlatoutError) else 1
        told |= {"code": code, "why": str(error).partition("\n")[0]}
        raise
    finally:
        for member in members:
            with suppress(OSError):
                member.line.send(told)
            member.line.close()


def _listening() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _met(server: socket.socket, token: str, count: int) -> list[tuple[Line, str]]:
    """In the order of ranks and devices, whoever came first."""
    found: list[tuple[list[int], Line, str]] = []
    ends_s = time.monotonic() + JOIN_TIMEOUT_S
    while len(found) < count:
        server.settimeout(max(0.0, ends_s - time.monotonic()) or 1e-3)
        try:
            connection, _ = server.accept()
        except TimeoutError:
            raise MachineError(
                f"{len(found)} of {count} devices of other ranks connected to rank 0 within {JOIN_TIMEOUT_S:.0f} s: can their "
                "machines reach it at any port?"
            ) from None
        connection.settimeout(None)
        line = Line(connection)
        try:
            hello = line.receive(_HELLO_S)
        except (EOFError, OSError, BadMessage):
            hello = {}
        if hmac.compare_digest(str(hello.get("token", "")), token):
            found.append((hello["place"], line, hello["name"]))
        else:
            line.close()
    return [(line, name) for _, line, name in sorted(found, key=lambda one: one[0])]


# ---- the ranks that answer ----


def answer_rank_0(place: ProcessPlace, store: Any, seats: Sequence[CrewSeat]) -> str:
    """Until the study is finished. Returns its folder."""
    store.set(f"tune/{place.rank}", str(len(seats)))
    store.set_timeout(timedelta(seconds=JOIN_TIMEOUT_S))
    try:
        where = json.loads(store.get("tune"))
    except RuntimeError as error:  # rank 0 has ended before it asked anybody, and has said why
        raise PeerLost(f"rank 0 did not begin the study ({str(error).partition(chr(10))[0]}): its output says why") from error
    host = socket.gethostname()
    answering = []
    for number, seat in enumerate(seats):
        line = Line(socket.create_connection((place.address, where["port"]), JOIN_TIMEOUT_S))
        name = f"{seat.name} of rank {place.rank} on {host}"
        line.send({"token": where["token"], "place": [place.rank, number], "name": name})
        answering.append(_Answering(line, seat))
    with _ctrl_c_is_for_rank_0():
        try:
            for one in answering:
                one.start()
            for one in answering:
                one.join()
        finally:
            for one in answering:
                one.hang_up()
    told = answering[0].told
    if told is None:
        raise PeerLost("rank 0, which drives the study, is gone: the same command goes on with the study")
    if told["code"]:
        ended = TrainingError(f"rank 0 has ended the study: {told['why']}")
        ended.exit_code = told["code"]
        raise ended
    return str(told["end"])


class _Answering(threading.Thread):
    """Of one device. Questions are answered beside, so that they can be stopped."""

    def __init__(self, line: Line, seat: CrewSeat) -> None:
        super().__init__(name="flatout-answering", daemon=True)
        self.told: dict[str, Any] | None = None
        self._line, self._seat, self._member = line, seat, seat.make()

    def run(self) -> None:
        with suppress(EOFError, OSError, BadMessage):
            while True:
                told = self._line.receive()
                if "end" in told:
                    self.told = told
                    break
                if "stop" in told:
                    self._member.stop()
                    self._member = self._seat.make()
                else:
                    threading.Thread(target=self._answer, args=(self._member, told), daemon=True).start()
        self._member.stop()
        self._line.close()

    def hang_up(self) -> None:
        self._line.hang_up()
        self._member.stop()

    def _answer(self, member: CrewMember, asked: Mapping[str, Any]) -> None:
        said = {"number": asked["number"], **asked_of(member, asked["question"], asked["limit_s"])}
        with suppress(OSError):
            self._line.send(said)


@contextmanager
def _ctrl_c_is_for_rank_0() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
