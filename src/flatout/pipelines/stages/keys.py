"""The key of a stage: what its result depends on. Two makings with equal keys have equal results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.base.errors import DataError
from flatout.pipelines.identity.code import CodeIdentity, ProjectCode
from flatout.pipelines.identity.hashing import digest_of_bytes
from flatout.pipelines.identity.inputs import InputHashes
from flatout.pipelines.identity.versions import remembered_versions
from flatout.pipelines.stages.code_parts import code_as_json
from flatout.pipelines.stages.resolved import ResolvedPipeline, ResolvedStage, expanded
from flatout.pipelines.stages.this_machine import machine_name

_FORMAT = 1
_BEHIND_FLATOUT = ("flatout", "torch", "numpy", "onnxruntime")  # of the stages that are flatout's own commands


@dataclass(frozen=True)
class StageKey:
    """`parts` says later which of them changed. `size`: bytes of the inputs. `fallbacks`: where more counts than needed."""

    digest: str
    parts: Mapping[str, Any]
    size: float
    fallbacks: tuple[str, ...] = ()


@dataclass
class KeyMaker:
    """Code and files are looked at once, so one of these lives for one look at a pipeline. `environment`: of its commands."""

    pipeline: ResolvedPipeline
    hashes: InputHashes
    environment: Mapping[str, str]
    _project: ProjectCode | None = None
    _code: dict[Path, CodeIdentity] = field(default_factory=dict)
    _machine: str = ""
    _own: dict[str, str] = field(default_factory=dict)

    def key(self, stage: ResolvedStage, used: Mapping[str, str]) -> StageKey:
        """`used`: the content of each stage that this one uses, by the key of the file that names it."""
        inputs, size = self._inputs(stage)
        found = {self.pipeline.shown(path): self._code_of(path) for path in stage.code}
        libraries = {name for one in found.values() for name in one.libraries}
        parts: dict[str, Any] = {
            "asked": stage.asked.result_keys(),
            "recipe": None if stage.recipe_file is None else stage.recipe,
            "inputs": inputs,
            "uses": dict(used),
            "code": {name: code_as_json(one) for name, one in found.items()},
            "versions": self._versions(stage, sorted(libraries)),
            "environment": {name: self.environment.get(name) for name in stage.asked.environment},
            "machine": self._here() if stage.is_measured else None,
        }
        digests = {name: one.digest for name, one in found.items()}
        written = {"key": _FORMAT, "kind": stage.kind, **parts, "code": digests}
        text = json.dumps(written, sort_keys=True, default=str).encode()
        fallbacks = tuple(dict.fromkeys(note for one in found.values() for note in one.fallbacks))
        return StageKey(digest_of_bytes(text)[:32], parts, size, fallbacks)

    def input_bytes(self, stage: ResolvedStage) -> float:
        """DataError if one is missing."""
        return self._inputs(stage)[1]

    def _inputs(self, stage: ResolvedStage) -> tuple[dict[str, str], float]:
        found: dict[str, str] = {}
        size = 0.0
        for read in stage.reads:
            places = list(expanded(read))
            if not places:
                raise DataError(f"{self.pipeline.shown(read)} matches no file any more")
            for place in places:
                content = self.hashes.of(place)
                found[self.pipeline.shown(place)] = content.digest
                size += content.bytes
        return found, size

    def _code_of(self, path: Path) -> CodeIdentity:
        if path not in self._code:
            if self._project is None:
                outputs = [output for stage in self.pipeline.stages.values() for output in stage.outputs]
                written = [*outputs, self.pipeline.asked.folder]
                self._project = ProjectCode(self.pipeline.home, self.environment, written, self.hashes)
            self._code[path] = self._project.identity(path)
        return self._code[path]

    def list_again(self) -> None:
        """A command has ended: there may be other files now. What was found for a stage stays: it began with that."""
        self._project = None

    def _versions(self, stage: ResolvedStage, libraries: Sequence[str]) -> dict[str, str]:
        """Of what scripts import; of flatout's own commands a few packages, since this has to be quick."""
        found: dict[str, str] = {}
        if libraries:
            found |= remembered_versions(self.hashes.folder, libraries, lambda: _behind(libraries))
        if stage.kind not in ("run", "data", "deploy"):
            self._own = self._own or remembered_versions(self.hashes.folder, _BEHIND_FLATOUT, _own_versions)
            found |= self._own
        return found

    def _here(self) -> str:
        self._machine = self._machine or machine_name()
        return self._machine


def _behind(libraries: Sequence[str]) -> dict[str, str]:
    from flatout.pipelines.identity.packages import package_versions  # here: it takes a while to load

    return package_versions(libraries)


def _own_versions() -> dict[str, str]:
    from flatout.pipelines.identity.packages import installed_version

    return {name: installed_version(name) for name in _BEHIND_FLATOUT}
