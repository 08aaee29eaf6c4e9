"""Clients for canary_live.py: requests at a fixed rate, answers counted by version, and labels that come back later."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

CONNECTIONS, LABELS = 48, 400


class Connection:
    """HTTP/1.1 with as little of it as is needed here."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, Mapping[bytes, bytes], bytes]:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(b"%b %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (
            method.encode(), path.encode(), len(body), body))  # fmt: skip
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        return int(first.split()[1]), headers, await self._reader.readexactly(int(headers[b"content-length"]))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class LabelledLoad:
    """`wrong`: the share of answers that labels say are wrong, by version. `lost`: requests without an answer. `seed`: of the
    rows that are asked; deployments with the same one would have the same luck."""

    def __init__(
        self, port: int, rows: list[bytes], classes: list[str], rate: float, wrong: Mapping[str, float], seed: int = 0
    ) -> None:
        self._port, self._rows, self._classes, self._rate, self._wrong = port, rows, classes, rate, wrong
        self._chance = random.Random(seed)
        self._labels: list[dict[str, str]] = []
        self.by_version: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.lost = 0
        self._over = False

    async def until_judged(self, longest_s: float) -> dict[str, Any]:
        """What GET /canary says at the verdict, or after that time. `needs` is what was stated before."""
        asking = Connection(self._port)
        needs: dict[str, Any] = {}
        until_s = time.monotonic() + longest_s
        clients = [asyncio.ensure_future(self._client(schedule)) for schedule in [self._schedule()] for _ in range(CONNECTIONS)]
        while True:
            await asyncio.sleep(0.2)
            canary: dict[str, Any] = json.loads((await asking.ask("GET", "/canary"))[2])
            needs = canary.get("needs") or needs
            if canary["status"] != "running" or time.monotonic() > until_s:
                break
        self._over = True
        await asyncio.gather(*clients)
        asking.close()
        return {**canary, "needs": needs}

    def _schedule(self) -> Iterator[float]:
        at_s = time.monotonic()
        while not self._over:
            at_s += self._chance.expovariate(self._rate)
            yield at_s

    async def _client(self, schedule: Iterator[float]) -> None:
        connection = Connection(self._port)
        for due_s in schedule:
            if (left_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(left_s)
            try:
                status, headers, body = await connection.ask("POST", "/predict", self._chance.choice(self._rows))
            except (OSError, asyncio.IncompleteReadError):
                self.lost += 1
                connection.close()
                continue
            version = headers.get(b"x-flatout-version", b"").decode()
            self.statuses[status] += 1
            self.by_version[version] += 1
            if status == 200 and self._wrong and b"x-flatout-id" in headers:
                await self._label(connection, headers[b"x-flatout-id"].decode(), version, json.loads(body)["class"])
        connection.close()

    async def _label(self, connection: Connection, name: str, version: str, answered: str) -> None:
        others = [one for one in self._classes if one != answered]
        is_wrong = self._chance.random() < self._wrong[version]
        self._labels.append({"id": name, "label": self._chance.choice(others) if is_wrong else answered})
        if len(self._labels) >= LABELS:
            some, self._labels = self._labels, []
            await connection.ask("POST", "/feedback", json.dumps(some).encode())
