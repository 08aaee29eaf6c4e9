"""What was found in a project's code is not looked for again while no file of code, no name of a file and no variable changed
that was asked for.

Only what lies in the project can count as unchanged: code that looks elsewhere, by links or in hidden folders, is read again.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from flatout.base.files import read_json, write_bytes
from flatout.pipelines.identity.hashing import digest_of, moment
from flatout.pipelines.identity.listing import ProjectFiles
from flatout.pipelines.identity.remembered import is_settled
from flatout.pipelines.identity.versions import search_path

_CODE = (".py", ".so", ".pyd")
# variables of a shell or a session, not of a program
OF_A_SESSION = re.compile(
    r"PWD|OLDPWD|SHLVL|_|TERM.*|COLUMNS|LINES|SSH_.*|DISPLAY|XDG_.*|TMUX.*|STY|WINDOWID|PS1|HOSTNAME|LS_COLORS"
)


FoundPart = tuple[str, str, str, str]  # of a CodePart


@dataclass(frozen=True)
class CodeFindings:
    """`read_files` and `variables` are looked at again each time."""

    parts: list[FoundPart]
    read_files: list[str]
    variables: list[str]
    fallbacks: list[str]
    libraries: list[str]


class AskedVariables(Mapping[str, str]):
    """An environment that notes which of its variables were asked for; None: all."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.asked: set[str] | None = set()

    def __getitem__(self, name: str) -> str:
        if self.asked is not None:
            self.asked.add(name)
        return self._environment[name]

    def __iter__(self) -> Iterator[str]:
        self.asked = None
        return iter(self._environment)

    def __len__(self) -> int:
        return len(self._environment)


def fingerprint(project: ProjectFiles) -> str | None:
    """Of all that decides what is found, without variables; None where that can't be told, or changed a moment ago."""
    now_ns = time.time_ns()
    names, root = project.names(), str(project.root).rstrip("/")
    if project.has_links or project.is_cut:
        return None
    code = []
    for name in names:
        if name.endswith(_CODE):
            try:
                at = moment(os.stat(f"{root}/{name}"))
            except OSError:
                return None
            if not is_settled(at, now_ns):
                return None
            code.append([name, *at])
    settings = [str(project.root), project.outputs, sys.version, _own_code(), search_path()]
    return digest_of([settings, sorted(names), sorted(code)])


def recall(folder: Path, root: Path, entry: str, wanted: str, environment: Mapping[str, str]) -> CodeFindings | None:
    try:
        written = read_json(_place(folder, root, entry))
        if written["fingerprint"] != wanted or time.time_ns() < written["clock_ns"]:
            return None
        if written["values"] != _values_of(written["asked"], environment):
            return None
        found = CodeFindings(**written["findings"])
        return CodeFindings([(one[0], one[1], one[2], one[3]) for one in found.parts], *list(asdict(found).values())[1:])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # it is looked for again


def keep(folder: Path, root: Path, entry: str, found: str, variables: AskedVariables, findings: CodeFindings) -> None:
    asked = None if variables.asked is None else sorted(variables.asked)
    content = {
        "fingerprint": found, "clock_ns": time.time_ns(), "asked": asked, "values": _values_of(asked, variables),
        "findings": asdict(findings),
    }  # fmt: skip
    place = _place(folder, root, entry)
    with suppress(OSError):  # a cache that can't be written costs time alone; inputs say so
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, json.dumps(content).encode())


def _values_of(asked: Sequence[str] | None, environment: Mapping[str, str]) -> str:
    """A digest: values may be secrets."""
    names = sorted(name for name in environment if not OF_A_SESSION.fullmatch(name)) if asked is None else asked
    return digest_of([[name, environment.get(name)] for name in names])


def _place(folder: Path, root: Path, entry: str) -> Path:
    return folder / "code" / f"{digest_of([str(root), entry])[:32]}.json"


def _own_code() -> list[tuple[str, int, int]]:
    """The code that looks: another version of it may find something else."""
    with os.scandir(Path(__file__).parent) as entries:
        own = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(".py")]
    return sorted((name, about.st_mtime_ns, about.st_size) for name, about in own)
