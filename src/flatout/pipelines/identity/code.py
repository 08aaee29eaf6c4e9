"""The identity of the code behind an entry: everything of the project that it can reach and that can change what it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from flatout.pipelines.identity.hashing import digest_of, digests_of_files
from flatout.pipelines.identity.inputs import InputHashes
from flatout.pipelines.identity.listing import ParsedFiles, ProjectFiles
from flatout.pipelines.identity.recalled import AskedVariables, CodeFindings, fingerprint, keep, recall


@dataclass(frozen=True)
class CodePart:
    """A function, a class, a method, a statement, a file or an environment variable.

    `name` and `digest` say to people what changed. `own_name` and `own_digest` are those that count: in them something else
    stands for names that only one module knows.
    """

    name: str
    digest: str
    own_name: str = ""
    own_digest: str = ""


@dataclass(frozen=True)
class CodeIdentity:
    """`fallbacks`: where it can't be known what code reaches, so that more counts than is needed.

    `libraries`: what it imports from outside of the project. The digest has their names, `package_versions` their versions.
    """

    digest: str
    parts: tuple[CodePart, ...]
    fallbacks: tuple[str, ...]
    libraries: tuple[str, ...]


class ProjectCode:
    """The code of a project at one moment: its files are listed once, and each is parsed once.

    `environment`: what the code will find in it. `outputs`: files and folders that stages write, which never count as read.
    The code is only read: nothing of it is imported, and nothing runs.
    """

    def __init__(
        self, root: Path, environment: Mapping[str, str], outputs: Sequence[Path] = (), hashes: InputHashes | None = None
    ) -> None:
        self._project, self._environment, self._hashes = ProjectFiles(root, outputs), environment, hashes
        self._trees: ParsedFiles = {}

    def identity(self, entry: Path | str) -> CodeIdentity:
        """`entry`: a script's path or "module:function", below the root, in which it runs."""
        found = self._recalled(str(entry))
        if found is None:
            from flatout.pipelines.identity.findings import findings  # here: all that reads code takes a while to load

            variables = AskedVariables(self._environment)
            try:
                found, looks_elsewhere = findings(self._project, self._trees, entry, variables)
            except RecursionError:
                return self._whole()
            if self._hashes is not None and self._fingerprint is not None and not looks_elsewhere:
                keep(self._hashes.folder, self._project.root, str(entry), self._fingerprint, variables, found)
        parts = {*(CodePart(*one) for one in found.parts), *self._other_parts(found)}
        return _identity(parts, tuple(found.fallbacks), tuple(found.libraries))

    def _recalled(self, entry: str) -> CodeFindings | None:
        if self._hashes is None or self._fingerprint is None:
            return None
        return recall(self._hashes.folder, self._project.root, entry, self._fingerprint, self._environment)

    @cached_property
    def _fingerprint(self) -> str | None:
        return fingerprint(self._project)

    def _whole(self) -> CodeIdentity:
        """Of code that is nested too deeply to be followed."""
        parts = {CodePart(f"file {name}", self._file_digest(name)) for name in self._project.names()}
        return _identity(parts, ("some code is nested too deeply to be followed: all files of the project count",), ())

    def _file_digest(self, name: str) -> str:
        path = self._project.root / name
        return digests_of_files({"": str(path)})[""][1] if self._hashes is None else self._hashes.of(path).digest

    def _other_parts(self, found: CodeFindings) -> Iterator[CodePart]:
        for name in found.read_files:
            yield CodePart(f"file {name}", self._file_digest(name))
        for name in found.variables:
            yield CodePart(f"environment variable {name}", digest_of(self._environment.get(name)))
        for library in found.libraries:
            yield CodePart(f"library {library}", "")


def _identity(parts: set[CodePart], fallbacks: tuple[str, ...], libraries: tuple[str, ...]) -> CodeIdentity:
    ordered = tuple(sorted(parts, key=lambda part: (part.name, part.digest)))
    return CodeIdentity(
        digest_of(sorted([part.own_name or part.name, part.own_digest or part.digest] for part in parts)),
        ordered,
        fallbacks,
        libraries,
    )
