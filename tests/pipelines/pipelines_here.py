"""Pipelines of small scripts in a temporary folder, run in this process: only their commands are processes of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from flatout.pipelines.stages.dry import Would, dry_run
from flatout.pipelines.stages.outcomes import PipelineOutcome
from flatout.pipelines.stages.verb import open_pipeline, run_pipeline

COPY = """
import sys
source, target = sys.argv[1:]
FACTOR = 2
open(target, "w").write(open(source).read() * FACTOR)
"""


class Here:
    """A folder with a pipeline file. `said`: all lines of progress."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache
        self.said: list[str] = []

    @property
    def file(self) -> Path:
        return self.folder / "pipeline.yaml"

    def write(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def stages(self, **stages: Any) -> Here:
        self.file.write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
        return self

    def run(self, *names: str, fresh: Sequence[str] = (), accept: Sequence[str] = ()) -> PipelineOutcome:
        self.said.clear()
        pipeline = open_pipeline(self.file, names)
        return run_pipeline(
            pipeline, cache=self.cache, environment=os.environ, fresh=fresh, accept=accept, say=self.said.append
        )

    def would(self) -> dict[str, Would]:
        return {one.stage.name: one for one in dry_run(open_pipeline(self.file), cache=self.cache, environment=os.environ)}

    def did(self, *names: str, fresh: Sequence[str] = (), accept: Sequence[str] = ()) -> dict[str, str]:
        """What became of each stage."""
        return {name: one.status for name, one in self.run(*names, fresh=fresh, accept=accept).stages.items()}

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def notes(self) -> str:
        return "\n".join(self.said)


def script(command: str, *outputs: str, **more: Any) -> dict[str, Any]:
    return {"run": command, "outputs": list(outputs), **more}
