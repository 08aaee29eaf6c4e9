"""Edits of a project of 46 modules: none that changes what its program prints is missed, and few of the others rerun it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from _mutated_project import FILES
from _project_mutations import LATER, MUTATIONS, SEEN, Mutation
from evidence import Bar, Report, options

from flatout.pipelines.identity.changes import what_changed
from flatout.pipelines.identity.code import CodeIdentity, ProjectCode

LIMIT_S = 60
# of the first two, every second edit was looked at while the code that judges was worked on; the third were written afterwards
# and then looked at as well; the last were written when all was done
GROUPS = {
    "worked on": MUTATIONS[:SEEN:2],
    "other half": MUTATIONS[1:SEEN:2],
    "written later": MUTATIONS[SEEN:LATER],
    "written last": MUTATIONS[LATER:],
}


@dataclass(frozen=True)
class Outcome:
    """`is_stated`: each part that made it rerun is one of which a fallback says that it counts."""

    mutation: Mutation
    matters: bool
    reruns: bool
    is_stated: bool
    changes: tuple[str, ...]


def main() -> int:
    asked = options(__doc__, repeats=1).parse_args()
    mutations = MUTATIONS[::16] if asked.smoke else MUTATIONS[::4] if asked.quick else MUTATIONS
    with tempfile.TemporaryDirectory(prefix="flatout-mutations-") as folder:
        project = Path(folder) / "project"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOP_")}
        write(project, FILES)
        before = ProjectCode(project, environment).identity("main.py"), printed(project, environment)
        outcomes = [outcome(project, one, before, environment) for one in mutations]
    report = Report("pipeline_mutations", __doc__ or "", torch.device("cpu"))
    report.conditions = {"modules": sum(name.endswith(".py") for name in FILES), "edits": len(outcomes)}
    for group, of_group in GROUPS.items():
        _count(report, group, [one for one in outcomes if one.mutation in of_group])
    report.conditions["missed"] = [one.mutation.what for one in outcomes if one.matters and not one.reruns]
    report.conditions["needless"] = [
        {"edit": one.mutation.what, "stated": one.is_stated, "changes": one.changes}
        for one in outcomes
        if one.reruns and not one.matters
    ]
    for one in outcomes:
        if one.matters != one.reruns:
            kind = "MISSED" if one.matters else "needless, stated" if one.is_stated else "needless"
            print(f"{kind:17} {one.mutation.file}: {one.mutation.what}; {'; '.join(one.changes)}", file=sys.stderr)
    return report.finish(asked)


def _count(report: Report, group: str, found: list[Outcome]) -> None:
    harmless = [one for one in found if not one.matters]
    missed = sum(one.matters and not one.reruns for one in found)
    needless = [one for one in harmless if one.reruns]
    unstated = sum(not one.is_stated for one in needless)
    report.arm(f"{group}: edits that matter", "edits", [float(len(found) - len(harmless))])
    report.arm(f"{group}: edits that do not", "edits", [float(len(harmless))])
    report.arm(f"{group}: missed", "edits", [float(missed)])
    report.arm(f"{group}: needless, stated", "edits", [float(len(needless) - unstated)])
    report.arm(f"{group}: needless, not stated", "edits", [float(unstated)])
    share = 100 * unstated / max(1, len(harmless))
    report.bars.append(Bar(f"{group}: reruns missed", float(missed), 0, at_least=False))
    report.bars.append(Bar(f"{group}: needless reruns outside of stated fallbacks, %", share, 10, at_least=False))


def outcome(project: Path, mutation: Mutation, before: tuple[CodeIdentity, str], given: Mapping[str, str]) -> Outcome:
    environment = dict(given)
    write(project, FILES)
    if mutation.variable:
        environment[mutation.file] = mutation.new
    else:
        path = project / mutation.file
        text = path.read_text() if path.exists() else ""
        assert mutation.old in text, mutation.what
        path.write_text(text.replace(mutation.old, mutation.new, 1) if mutation.old else mutation.new)
    after = ProjectCode(project, environment).identity("main.py"), printed(project, environment)
    changes = what_changed(before[0], after[0])
    reruns = before[0].digest != after[0].digest
    return Outcome(mutation, before[1] != after[1], reruns, _is_stated(before[0], after[0]), changes)


def write(project: Path, files: Mapping[str, str]) -> None:
    """The project as it is without an edit: nothing else is left in its folder."""
    for path in sorted(project.rglob("*"), reverse=True):
        if path.is_file() and str(path.relative_to(project)) not in files:
            path.unlink()
    for name, text in files.items():
        path = project / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def printed(project: Path, environment: Mapping[str, str]) -> str:
    """What the program prints; of one that fails, how."""
    command = [sys.executable, "-B", "main.py"]
    done = subprocess.run(command, cwd=project, env=dict(environment), capture_output=True, text=True, timeout=LIMIT_S)
    return done.stdout if done.returncode == 0 else f"exit {done.returncode}"


def _is_stated(before: CodeIdentity, after: CodeIdentity) -> bool:
    """Whether all that differs is in a module or among files that a fallback names."""
    old, new = ({(part.name, part.digest) for part in one.parts} for one in (before, after))
    names = {name for name, _ in old ^ new}
    return all(any(_names(sentence, name) for sentence in before.fallbacks) for name in names)


def _names(sentence: str, part: str) -> bool:
    """`sentence` ends in what counts: "all of shop.activations counts", "shop.steps.rank: rank counts whoever takes it"."""
    module, count = part.removeprefix("file ").partition(":")[0], sentence.rpartition("; ")[2]
    if count.endswith(" counts whoever takes it"):
        one = count.removesuffix(" counts whoever takes it")
        return part == one or part.startswith(f"{one}.")
    for word in count.split():
        if (
            word == module
            or ("*" in word and Path(module).match(word))
            or (word.endswith(".*") and module.startswith(word[:-1]))
        ):
            return True
    return False


if __name__ == "__main__":
    raise SystemExit(main())
