"""The folder and the process in which candidates are made. The process may crash or hang; the next question starts another."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from flatout.base.answering_child import FAILED, AnsweringChild, NoAnswer, by_command
from flatout.base.errors import Stopped
from flatout.packaging.package import Package
from flatout.shrinking.rows import RowSets
from flatout.shrinking.workshop.benches import bench_in
from flatout.shrinking.workshop.questions import ASKED, AnsweringBench

_START_S = 120.0


class Workshop:
    """`isolated`: in a process of its own. Otherwise questions are answered here, where a crash ends everything. `device`: of
    candidates that are programs; without one they are files of ONNX."""

    def __init__(
        self,
        package: Package,
        rows: RowSets,
        objective: str,
        *,
        isolated: bool = True,
        cache: Path | None = None,
        device: str = "",
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="flatout-shrink-")
        self.folder = Path(self._temporary.name)
        rows.write(self.folder)
        self._asked: dict[str, str | None] = {"package": str(package.path.resolve()), "objective": objective, "runtime": ""}
        self._asked["device"] = device
        self._asked["cache"] = None if cache is None else str(cache.resolve())
        self._write()
        self._child: AnsweringChild | None = None
        self._bench: AnsweringBench | None = None
        if isolated:
            threads = str(torch.get_num_threads())
            command = [sys.executable, "-m", "flatout.cli.shrink_worker", str(self.folder), threads]
            self._child = AnsweringChild(by_command(command), _START_S)

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer, or `NoAnswer`."""
        if self._child is not None:
            return self._child.ask(question, limit_s)
        if self._bench is None:
            self._bench = bench_in(self.folder)
        try:
            return self._bench.answer(question)
        except Stopped as stopped:  # a training ends by itself on Ctrl-C
            raise KeyboardInterrupt from stopped
        except Exception as error:
            raise NoAnswer(FAILED, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error

    def serve_with(self, runtime: str) -> None:
        """The runtime of the source, which a new process has to know too."""
        self._asked["runtime"] = runtime
        self._write()

    def _write(self) -> None:
        (self.folder / ASKED).write_text(json.dumps(self._asked))

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._child is not None:
            self._child.stop()
        self._temporary.cleanup()
