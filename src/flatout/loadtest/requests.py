"""The requests to send: complete bytes, made once before the first is sent."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import UsageError

PREDICT = "/predict"
_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class LoadRequest:
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def wire(self, authority: str) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in self.all_headers(authority))]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body

    def all_headers(self, authority: str) -> list[tuple[str, str]]:
        own = [("Host", authority), ("User-Agent", "flatout-load"), ("Accept", "*/*")]
        if self.body or self.method != "GET":
            own.append(("Content-Length", str(len(self.body))))
        given = {name.lower() for name, _ in self.headers}
        return [*((name, value) for name, value in own if name.lower() not in given), *self.headers]


def of_row(text: str, path: str) -> list[LoadRequest]:
    try:
        json.loads(text)
    except ValueError as error:
        raise UsageError(f"--row: expected JSON such as '{{\"age\": 39}}', got {text!r}: {error}") from error
    return [_json_request(path, text.encode())]


def of_rows(file: Path, path: str) -> list[LoadRequest]:
    """A request for each row of a CSV file with a header, or for each line of a JSONL file."""
    if file.suffix.lower() not in (".csv", ".jsonl", ".ndjson"):
        raise UsageError(f"--rows: expected a file that ends with .csv or .jsonl, got {file}")
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            bodies = _csv_rows(lines) if file.suffix.lower() == ".csv" else _json_lines(lines, file)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"--rows: {file} can't be read: {error}") from error
    if not bodies:
        raise UsageError(f"--rows: {file} has no rows")
    return [_json_request(path, body) for body in bodies]


def of_body(file: Path, content_type: str | None, path: str) -> list[LoadRequest]:
    try:
        body = file.read_bytes()
    except OSError as error:
        raise UsageError(f"--body: {file} can't be read: {error.strerror}") from error
    if content_type is None:
        content_type = _TYPES.get(file.suffix.lower())
        if content_type is None:
            raise UsageError(f"--body: what is in {file.name}? Add its type, such as --type image/jpeg")
    return [LoadRequest("POST", path, (("Content-Type", content_type),), body)]


def of_path(path: str) -> list[LoadRequest]:
    return [LoadRequest("GET", path, ())]


def with_headers(requests: Sequence[LoadRequest], lines: Sequence[str]) -> list[LoadRequest]:
    """Each line is "Name: value"."""
    added = tuple(_header(line) for line in lines)
    names = {name.lower() for name, _ in added}
    return [
        LoadRequest(one.method, one.path, (*(h for h in one.headers if h[0].lower() not in names), *added), one.body)
        for one in requests
    ]


_TYPES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp",
          ".json": "application/json", ".csv": "text/csv", ".txt": "text/plain"}  # fmt: skip
_RESERVED = {"content-length", "transfer-encoding", "connection"}


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not name or not name.replace("-", "").replace("_", "").isalnum() or not line.isascii() or "\n" in line:
        raise UsageError(f"--header: expected 'Name: value', got {line!r}")
    if name.lower() in _RESERVED:
        raise UsageError(f"--header: {name} is set by the generator itself")
    return name, value


def _json_request(path: str, body: bytes) -> LoadRequest:
    return LoadRequest("POST", path, (("Content-Type", "application/json"),), body)


def _csv_rows(lines: Any) -> list[bytes]:
    return _kept(
        json.dumps({name: _value(text) for name, text in row.items() if name is not None}) for row in csv.DictReader(lines)
    )


def _json_lines(lines: Any, file: Path) -> list[bytes]:
    def checked() -> Any:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                json.loads(line)
            except ValueError as error:
                raise UsageError(f"--rows: line {number} of {file} is not JSON: {error}") from error
            yield line.strip()

    return _kept(checked())


def _kept(texts: Any) -> list[bytes]:
    """The first rows of a very large file are enough: they are sent again and again."""
    bodies: list[bytes] = []
    size = 0
    for text in texts:
        bodies.append(text.encode())
        size += len(bodies[-1])
        if size > _MOST_BYTES:
            break
    return bodies


def _value(text: str | None) -> Any:
    """Numbers as numbers, an empty cell as null."""
    if text is None or text == "":
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    if number != number or number in (float("inf"), float("-inf")):
        return None if number != number else text
    return int(text) if text.strip().lstrip("+-").isdigit() else number
