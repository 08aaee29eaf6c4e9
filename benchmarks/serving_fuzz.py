"""10,000 broken requests to a server of tables, arrays, text and photos: 0 crashes, 0 errors of ours, 0 wrong answers."""

from __future__ import annotations

import gzip
import io
import json
import random
import socket
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from _served import Question, ServedModels, ServedProcess, is_right, made_models, quiet
from evidence import Bar, Report, options
from PIL import Image

_LIMIT_S = 20.0
_CLIENTS = 4
_VALID_AFTER = 5  # broken requests, one whose answer is checked
_METHODS = ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "post", "P\0ST", "", "SUBSCRIBE")
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**40,
    1.5,
    1e308,
    -1e-320,
    "",
    "x",
    "é\u0000",
    "x" * 70_000,
    [],
    {},
    [[]],
    [None],
    [[1], [2, 3]],
    {"a": 1},
    "NaN",
    "FP32",
    "INT64",
    "BYTES",
    "BOOL",
    "FP16",
    "2024-13-45",
    "1e5",
    [1] * 3000,
    [0.5] * 5,
)
_PARAMETERS = (
    "binary_data_size",
    "binary_data_output",
    "classification",
    "priority",
    "timeout",
    "shared_memory_region",
    "sequence_id",
)
_HEADERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Content-Type",
        ("", "text/csv", "text/plain", "image/jpeg", "image/svg+xml", "application/json; charset=utf-16", "\xff", "a" * 5000),
    ),
    ("Content-Encoding", ("gzip", "deflate", "br", "gzip, gzip", "identity", "zip")),
    ("Accept", ("text/csv", "image/*", "*/*;q=x", "", "a/b," * 900)),
    ("Accept-Encoding", ("gzip", "deflate", "gzip;q=0", "gzip;q=abc", "*")),
    (
        "Inference-Header-Content-Length",
        ("0", "-1", "1", "99999999999999999999", "abc", "", "1e3", "+5", " 7", "0x10", "\u0661"),
    ),
    ("x-flatout-deadline-ms", ("-5", "0", "nan", "inf", "1e999", "abc", "", "0.0001", "1e15")),
    ("x-flatout-priority", ("-1", "99999999999", "abc", "1.5", "nan", "")),
    ("Content-Length", ("-1", "0", "abc", "99999999999999999999999", "1, 2", "+5", "", "0x5")),
    ("Transfer-Encoding", ("chunked", "gzip, chunked", "identity", "chunked, chunked", "\x0bchunked", "xchunked")),
    ("Expect", ("100-continue", "200-ok", "")),
    ("Connection", ("close", "keep-alive, upgrade", "Upgrade", "")),
    ("Upgrade", ("websocket", "h2c", "TLS/1.0")),
    ("Host", ("", "a b", "[::1", "x" * 300)),
    ("Authorization", ("Bearer x", "Basic !!", "")),
    ("Range", ("bytes=0-1",)),
)
_PATHS = (
    "/",
    "//",
    "/predict",
    "/v2",
    "/v2/models",
    "/v2/models/table",
    "/v2/models/table/versions/1/infer",
    "/v2/models/none/infer",
    "/v2/models/table/versions/99/infer",
    "/models/%00/predict",
    "/models/../predict",
    "/models/ta%62le/predict",
    "/metrics?x=%zz",
    "/explain",
    "/live.json",
    "/openapi.json",
    "/v2/repository/index",
    "/v2/repository/models/none/load",
    "/%",
    "*",
    "http://[/x",
    "/v2/models/stats",
    "/v2/models/photos/config",
    "/" + "a/" * 3000,
    "/v2/models/" + "%41" * 2000 + "/infer",
    "",
    "\xff\xfe",
)


def _gzipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)  # the same bytes at any time


@cache
def zeros(pack: Callable[[bytes], bytes], size: int) -> bytes:
    """Very many of them in few bytes."""
    return pack(bytes(size))


class Mutant:
    """One request, broken in one to three places. The same number and seed give the same bytes."""

    def __init__(self, models: ServedModels, seed: int, number: int) -> None:
        self._dice = dice = random.Random(f"{seed}/{number}")
        self._models = models
        question = dice.choice(models.questions)
        self.method, self.path, self.body = "POST", question.path, question.body
        self.headers = [("Host", "a"), *question.headers.items()]
        self.version, self.chunked = "HTTP/1.1", False
        self.length: int | None = None
        self.raw: Callable[[bytes], bytes] = lambda sent: sent
        ways = [
            self._values,
            self._values,
            self._bytes_of_body,
            self._header,
            self._header,
            self._path,
            self._method,
            self._chunks,
            self._lengths,
            self._compressed,
            self._photo,
            self._photo,
            self._other_model,
            self._whole,
            self._table_text,
            self._nested,
        ]
        chosen = dice.choices(ways, k=dice.choice((1, 1, 1, 2, 3)))
        self.done = [way.__name__.strip("_") for way in chosen]
        for way in chosen:
            way()

    def sent(self) -> bytes:
        body = self._chunked_body() if self.chunked else self.body
        names = {name.lower() for name, _ in self.headers}
        if not self.chunked and "content-length" not in names and "transfer-encoding" not in names:
            self.headers.append(("Content-Length", str(len(body) if self.length is None else self.length)))
        head = f"{self.method} {self.path} {self.version}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        return self.raw(head.encode("utf-8", "surrogateescape") + b"\r\n" + body)

    # ---- ways to break it ----

    def _document(self) -> Any:
        length = next((value for name, value in self.headers if name == "Inference-Header-Content-Length"), None)
        try:
            size = len(self.body) if length is None else int(length)
            return json.loads(self.body[:size]), self.body[size:]
        except (ValueError, RecursionError):
            return None, b""

    def _values(self) -> None:
        """Anything inside the JSON becomes something else."""
        document, rest = self._document()
        if not isinstance(document, dict | list):
            self._bytes_of_body()
            return
        for _ in range(self._dice.choice((1, 1, 2, 4))):
            self._change(document)
        self._write(document, rest)

    def _write(self, document: Any, rest: bytes) -> None:
        text = json.dumps(document)
        if self._dice.random() < 0.1:
            text = text.replace("1", self._dice.choice(("NaN", "Infinity", "1e999", "-0", "01", "\\ud800", "1.")), 1)
        head = text.encode()
        for place, (name, _) in enumerate(self.headers):
            if name == "Inference-Header-Content-Length":
                self.headers[place] = (name, str(len(head) + self._dice.choice((0, 0, 0, 0, 1, -1))))
        self.body = head + rest

    def _change(self, document: Any) -> None:
        dice, place = self._dice, document
        while True:
            keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                return
            key = dice.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and dice.random() < 0.75:
                place = place[key]
                continue
            break
        match dice.randrange(6):
            case 0:
                del place[key]
            case 1 if isinstance(place, list):
                place.extend(deepcopy([place[key]] * dice.choice((1, 2, 100))))
            case 1 | 2 if isinstance(place, dict):
                place[dice.choice(("", "x", "name", "parameters", "é", "id", *_PARAMETERS))] = deepcopy(dice.choice(_VALUES))
            case 3 if isinstance(place, dict) and "shape" in place:
                place["shape"] = dice.choice(
                    ([], [0], [-1], [2**40, 2**40], [1, 1, 1], [1.5], ["1"], "1", [2], [None], [0, 5], [5, 0])
                )
            case 4 if isinstance(place, dict):
                place["parameters"] = {dice.choice(_PARAMETERS): deepcopy(dice.choice(_VALUES))}
            case _:
                place[key] = deepcopy(dice.choice(_VALUES))

    def _nested(self) -> None:
        depth = self._dice.choice((50, 500, 5000, 200_000))
        opened, closed = self._dice.choice((("[", "]"), ('{"x":', "}")))
        self.body = (opened * depth + ("1" if opened != "[" else "") + closed * self._dice.choice((depth, 0))).encode()

    def _bytes_of_body(self) -> None:
        dice, found = self._dice, bytearray(self.body)
        for _ in range(dice.choice((1, 1, 3, 30))):
            place = dice.randrange(len(found) + 1)
            match dice.randrange(5):
                case 0:
                    found[place : place + 1] = dice.randbytes(1)
                case 1:
                    del found[place : place + dice.randrange(1, 40)]
                case 2:
                    found[place:place] = dice.randbytes(dice.randrange(1, 40))
                case 3:
                    found[place:place] = found[max(0, place - 200) : place]
                case _:
                    del found[place:]
        self.body = bytes(found)

    def _whole(self) -> None:
        """The request line and headers too."""
        dice, mutate = self._dice, self._bytes_of_body

        def broken(sent: bytes) -> bytes:
            kept, self.body = self.body, sent[: dice.choice((200, 400, len(sent)))]
            rest = sent[len(self.body) :]
            mutate()
            made, self.body = self.body + rest, kept
            return made

        self.raw = broken

    def _header(self) -> None:
        name, values = self._dice.choice(_HEADERS)
        value = self._dice.choice(values)
        if self._dice.random() < 0.7:
            self.headers = [one for one in self.headers if one[0].lower() != name.lower()]
        self.headers.append((name, value))
        if self._dice.random() < 0.05:
            self.headers += [(f"x-{place}", "y" * 30) for place in range(self._dice.choice((50, 1000)))]

    def _path(self) -> None:
        self.path = self._dice.choice(
            (*_PATHS, self.path + "/", self.path + "?" + "a" * 3000, self.path + "#x", self.path.upper())
        )

    def _method(self) -> None:
        self.method = self._dice.choice(_METHODS)
        self.version = self._dice.choice(("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "ICY"))

    def _other_model(self) -> None:
        other = self._dice.choice(self._models.questions)
        self.path = other.path

    def _chunks(self) -> None:
        self.chunked = True
        self.headers.append(("Transfer-Encoding", "chunked"))

    def _chunked_body(self) -> bytes:
        dice, left, made = self._dice, self.body, b""
        while left:
            size = dice.choice((1, 7, 100, 4000))
            piece, left = left[:size], left[size:]
            written = b"%x" % len(piece)
            if dice.random() < 0.02:
                written = dice.choice(
                    (b"-1", b"ffffffffffffffffff", b"zz", b"", b"0", b"%x" % (len(piece) + 1), b"5;" + b"e" * 3000)
                )
            made += written + dice.choice((b"", b"", b"", b";a=b")) + b"\r\n" + piece + b"\r\n"
            if len(made) > 400_000:
                break
        return made + dice.choice(
            (b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nx: y\r\n\r\n", b"", b"0\r\n", b"0\r\nContent-Length: 5\r\n\r\n")
        )

    def _lengths(self) -> None:
        self.length = max(0, len(self.body) + self._dice.choice((-1, 1, -5, 100, 10**6, 10**12)))

    def _compressed(self) -> None:
        dice = self._dice
        pack = dice.choice((_gzipped, zlib.compress))
        packed = pack(self.body) if dice.random() < 0.7 else zeros(pack, 300 << 20 >> dice.choice((0, 4, 8)))
        match dice.randrange(4):
            case 0:
                packed = packed[: len(packed) // 2]
            case 1:
                packed += b"more"
            case 2:
                packed = packed[:20] + dice.randbytes(20) + packed[40:]
            case _:
                pass
        self.body = packed
        self.headers.append(("Content-Encoding", dice.choice(("gzip", "deflate"))))

    def _table_text(self) -> None:
        dice = self._dice
        self.path = dice.choice(("/models/table/predict", "/models/arrays/predict", "/models/text/predict"))
        self.headers = [("Host", "a"), ("Content-Type", dice.choice(("text/csv", "text/plain")))]
        self.body = dice.choice(
            (
                b"",
                b"\n",
                b"age",
                b"age,job,code\n",
                b"age,job,code\n1,2\n",
                b'age,job,code\n1,"x\n',
                b"age,age,code\n1,2,3\n",
                b"age,job,code\n" + b"1,cook,2\n" * 5000,
                b"\xef\xbb\xbfage,job,code\n1,a,1\n",
                b"age;job;code\n1;a;1\n",
                b"age,job,code\n1,a,1,5,6\n",
                b"age,job,code\n" + b"9" * 5000 + b",a,1\n",
                b"age,job,code\r1,a,1\r",
                b"\0" * 50,
                "äöü".encode("utf-16"),
                b"\xff\xfe\xfd",
                b"to be",
                b"t" * 100_000,
            )
        )

    def _photo(self) -> None:
        dice = self._dice
        self.path = "/models/photos/predict"
        kind = dice.choice(("jpeg", "png", "webp", "gif", "bmp", "octet-stream"))
        self.headers = [("Host", "a"), ("Content-Type", f"image/{kind}")]
        self.body = dice.choice((self._bomb, self._wide, self._other_photo, self._cut, self._noisy))()

    def _bomb(self) -> bytes:
        """Few bytes that claim, or are, very many pixels."""
        dice = self._dice
        width, high = dice.choice(
            ((50_000, 50_000), (2**31 - 1, 2**31 - 1), (30_000, 30_000), (0, 0), (1, 2**31 - 1), (9000, 9000))
        )
        header = struct.pack(">IIBBBBB", width, high, dice.choice((1, 8, 16)), dice.choice((0, 2, 3, 6)), 0, 0, 0)
        data = zeros(zlib.compress, dice.choice((10, 1 << 20, 90 << 20)))

        def chunk(name: bytes, content: bytes) -> bytes:
            return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")

    def _wide(self) -> bytes:
        made, size = io.BytesIO(), self._dice.choice(((1, 1), (1, 3000), (5000, 1), (2, 2)))
        Image.new(self._dice.choice(("RGB", "L")), size).save(made, self._dice.choice(("PNG", "JPEG", "WEBP")))
        return made.getvalue()

    def _other_photo(self) -> bytes:
        made = io.BytesIO()
        kind, mode = self._dice.choice(
            (
                ("GIF", "P"),
                ("BMP", "RGB"),
                ("TIFF", "CMYK"),
                ("PNG", "I;16"),
                ("PNG", "LA"),
                ("PNG", "1"),
                ("JPEG", "CMYK"),
                ("WEBP", "RGBA"),
                ("PNG", "RGBA"),
                ("PPM", "RGB"),
            )
        )
        Image.new(mode, (20, 30)).save(made, kind)
        return made.getvalue()

    def _cut(self) -> bytes:
        photo = self._dice.choice(self._models.photos)
        return photo[: self._dice.randrange(len(photo))]

    def _noisy(self) -> bytes:
        photo = bytearray(self._dice.choice(self._models.photos))
        for _ in range(self._dice.choice((1, 5, 50))):
            photo[self._dice.randrange(len(photo))] = self._dice.randrange(256)
        return bytes(photo)


class Verdicts:
    """What came of all requests. `problems` are bytes of requests that the server must not answer as it did."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.problems: list[str] = []
        self.wrong: list[str] = []
        self.right = 0
        self.lock = threading.Lock()

    def note(self, status: str) -> None:
        with self.lock:
            self.statuses[status] += 1


def exchanged(port: int, sent: bytes) -> tuple[bytes, bool]:
    """All that came back, and whether the connection ended in time. A reset ends it too: the server may refuse to read."""
    came = b""
    with socket.create_connection(("127.0.0.1", port), _LIMIT_S) as wire:
        try:
            wire.sendall(sent)
            wire.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        try:
            while piece := wire.recv(1 << 16):
                came += piece
        except TimeoutError:
            return came, False
        except OSError:
            pass
    return came, True


def judge(verdicts: Verdicts, number: int, mutant: Mutant, port: int) -> None:
    sent = mutant.sent()
    came, ended = exchanged(port, sent)
    status = came[9:12].decode("latin-1") if came.startswith(b"HTTP/1.") else "closed" if not came else "no HTTP"
    verdicts.note(status)
    fault = None
    if not ended:
        fault = "neither answered nor closed in time"
    elif status == "no HTTP":
        fault = "an answer that is no HTTP"
    elif status.startswith("5") and status not in ("501", "503"):
        fault = f"status {status}"
    elif status.startswith("4") and mutant.method != "HEAD" and b'{"error":"' not in came:
        fault = f"status {status} without a reason"
    if fault:
        with verdicts.lock:
            verdicts.problems.append(f"{number} {'+'.join(mutant.done)}: {fault}; {came[-300:]!r}")


def ask_right(verdicts: Verdicts, question: Question, port: int) -> None:
    head = f"POST {question.path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(question.body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in question.headers.items()) + "\r\n"
    came, _ = exchanged(port, head.encode() + question.body)
    answer, _, body = came.partition(b"\r\n\r\n")
    version = answer.lower().partition(b"x-flatout-version: ")[2].partition(b"\r\n")[0].decode()
    status = int(answer[9:12]) if answer else 0
    with verdicts.lock:
        if status and is_right(question, status, version, body):
            verdicts.right += 1
        else:
            verdicts.wrong.append(f"{question.model} {question.kind}: {came[-300:]!r}")


def attack(server: ServedProcess, models: ServedModels, seed: int, numbers: Sequence[int]) -> Verdicts:
    verdicts, todo = Verdicts(), iter(numbers)
    choosing = threading.Lock()

    def client(place: int) -> None:
        dice = random.Random(place)
        while True:
            with choosing:
                number = next(todo, None)
            if number is None:
                return
            judge(verdicts, number, Mutant(models, seed, number), server.port)
            if number % _VALID_AFTER == 0:
                ask_right(verdicts, dice.choice(models.questions), server.port)
            if number % 1000 == 0:
                print(f"{number} requests: {dict(verdicts.statuses)}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(_CLIENTS) as clients:
        for one in [clients.submit(client, place) for place in range(_CLIENTS)]:
            one.result()  # a client that failed fails the benchmark: its requests were not sent
    return verdicts


def main() -> int:
    parser = options(__doc__, 1)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one request: shows it and its answer")
    asked = parser.parse_args()
    quiet()
    count = 200 if asked.quick or asked.smoke else asked.requests
    with tempfile.TemporaryDirectory(prefix="flatout-fuzz-") as place:
        folder = Path(place)
        models = made_models(folder)
        server = ServedProcess(folder, models.packages, "--workers", "2")
        try:
            if asked.only is not None:
                mutant = Mutant(models, asked.seed, asked.only)
                print(mutant.done, mutant.sent()[:3000], *exchanged(server.port, mutant.sent()), sep="\n")
                return 0
            before, began_s = server.roles(), time.monotonic()
            verdicts = attack(server, models, asked.seed, range(1, count + 1))
            took_s, after = time.monotonic() - began_s, server.roles()
            ended = len(before.keys() - after.keys()) + (not server.is_running())
        finally:
            code = server.stop()
        tracebacks = server.said().count("Traceback (most recent call last)")
        if tracebacks:
            print(server.said()[-6000:], file=sys.stderr)
    for line in [*verdicts.problems[:20], *verdicts.wrong[:20]]:
        print(line[:1000], file=sys.stderr)
    report = Report(
        "serving_fuzz",
        __doc__ or "",
        torch.device("cpu"),
        {"requests": count, "seed": asked.seed, "statuses": dict(verdicts.statuses), "exit_code": code},
    )
    judged = verdicts.statuses.total()
    report.arm("broken requests", "requests/s", [judged / took_s])
    report.bars.append(Bar("broken requests that were sent and judged", judged, count))
    report.bars.append(
        Bar("valid requests that were sent and judged", verdicts.right + len(verdicts.wrong), count // _VALID_AFTER)
    )
    report.arm("answers checked", "answers", [verdicts.right + len(verdicts.wrong)])
    report.bars.append(Bar("processes that ended", ended, 0, at_least=False))
    report.bars.append(Bar("tracebacks", tracebacks, 0, at_least=False))
    report.bars.append(Bar("errors of the server, no answers", len(verdicts.problems), 0, at_least=False))
    report.bars.append(Bar("wrong answers to valid requests", len(verdicts.wrong), 0, at_least=False))
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
