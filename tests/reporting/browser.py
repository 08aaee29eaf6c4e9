"""A real browser without a driver: Chromium's own protocol over a pipe."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from base64 import b64decode
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_PATIENCE_S = 60.0


def _pipe() -> tuple[int, int]:
    """With high numbers: the browser's own ends become 3 and 4."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends)
    for end in ends:
        os.close(end)
    return read, write


class Browser:
    """`complaints`: errors and warnings of the console, and exceptions of scripts."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        self.complaints: list[str] = []
        self._numbers, self._buffer, self._answers = itertools.count(1), b"", dict[int, Any]()
        to_it, self._write = _pipe()
        self._read, from_it = _pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                   f"--user-data-dir={profile}", "--window-size=1280,1000"]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_it} 4>&{from_it}', "chromium", CHROMIUM, *options, "about:blank"],
            pass_fds=(to_it, from_it), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_it)
        os.close(from_it)
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self._ask(f"{domain}.enable")

    def open(self, url: str, *, dark: bool = False) -> None:
        self._ask(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        )
        self._ask("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def as_printed(self) -> None:
        self._ask("Emulation.setEmulatedMedia", media="print")

    def value(self, script: str) -> Any:
        found = self._ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Until it is true; returns its value."""
        ends_s = time.monotonic() + _PATIENCE_S
        while not (found := self.value(script)):
            assert time.monotonic() < ends_s, f"never true in the browser: {script}; {self.complaints}"
            time.sleep(0.1)
        return found

    def picture(self, path: Path) -> None:
        """Of the whole page."""
        found = self._ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(b64decode(found["data"]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    _session = ""

    def _ask(self, method: str, **given: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": given}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while number not in self._answers:
            self._hear()
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _hear(self) -> None:
        ready, _, _ = select.select([self._read], [], [], _PATIENCE_S)
        assert ready, "the browser does not answer"
        self._buffer += os.read(self._read, 1 << 20)
        *messages, self._buffer = self._buffer.split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            elif message["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(message["params"]["exceptionDetails"]))
            elif message["method"] == "Runtime.consoleAPICalled" and message["params"]["type"] in (
                "error",
                "warning",
                "assert",
            ):
                self.complaints.append(str(message["params"]["args"]))
            elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] in ("error", "warning"):
                self.complaints.append(str(message["params"]["entry"]["text"]))
