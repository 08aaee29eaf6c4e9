"""Observes some steps of the script in a separate process with a scratch folder, to find remedies worth a trial."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from flatout.base.exits import last_line, printed_to
from flatout.base.keeper import end_with_parent
from flatout.base.tree import to_data
from flatout.boost.forks import Forks
from flatout.boost.patching import Edit
from flatout.boost.protection import protecting
from flatout.boost.remedies.all import REMEDIES
from flatout.boost.remedies.remedy import STEPS, Offer
from flatout.doctor.diagnosis import diagnose, doc
from flatout.doctor.patches import Patches
from flatout.doctor.script import Script, run_script
from flatout.doctor.watching import ScriptWatch
from flatout.machine.device import device_name

_LIMIT_S = 900.0
_STARTED = "started.txt"
_STARTS = {"subprocess.Popen": 1, "os.posix_spawn": 1, "os.exec": 1}  # which of the event's arguments is the command


@dataclass(frozen=True)
class ScriptLook:
    device: str
    machine: str
    offers: tuple[Offer, ...]
    computes_s: float | None  # how long the device computes per step
    diagnosis: Mapping[str, Any]


class NothingSeen(Exception):
    """The script ended without training, or after too few steps."""


def looked_at(forks: Forks, script: Script, cache: Path, folder: Path, protection: str) -> ScriptLook:
    question, answer = folder / "look.json", folder / "looked.json"
    (folder / "looking").mkdir()
    asked = {**asdict(script), "cache": str(cache), "scratch": str(folder / "looking"), "answer": str(answer)}
    asked["protection"] = protection
    question.write_text(json.dumps(asked))
    forks.run("look", question, folder / "look.txt", _LIMIT_S)
    protecting.remove(folder / "looking")
    if not answer.exists():
        if (elsewhere := folder / _STARTED).exists():
            raise NothingSeen(
                f"no training was seen, but the script started another Python program ({elsewhere.read_text()}): if that "
                "trains, let it start `-m flatout boost` with the script instead"
            )
        last = last_line(printed_to(folder / "look.txt"))
        raise NothingSeen("no training was seen: too few steps, or none" + (f" (its last line: {last})" if last else ""))
    told = json.loads(answer.read_text())
    offers = tuple(Offer(**{**one, "edits": tuple(map(_edit, one["edits"]))}) for one in told["offers"])
    return ScriptLook(told["device"], told["machine"], offers, told["computes_s"], told["diagnosis"])


def _edit(written: Mapping[str, Any]) -> Edit:
    arguments = tuple((name, value) for name, value in written["arguments"])
    return Edit(**{**written, "arguments": arguments, "not_around": tuple(written["not_around"])})


def _noting_programs(into: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """Training that the script starts in a program of its own can't be seen from here."""

    def heard(event: str, given: tuple[Any, ...]) -> None:
        if event not in _STARTS or os.getpid() != ours:
            return
        command = given[_STARTS[event]]
        words = [command] if isinstance(command, str | bytes | os.PathLike) else list(command)
        told = [os.fsdecode(word) for word in words]
        if any("python" in os.path.basename(word) for word in " ".join(told[:1]).split()):
            into.write_text(last_line(" ".join(told)))

    ours = os.getpid()
    return heard


def look(question: Path) -> None:
    """Does not return: ends the process."""
    asked = json.loads(question.read_text())
    patches = Patches()

    def done() -> None:
        watched.stop()
        patches.restore()
        found = watched.diagnosis
        if found is not None:
            device = found.case.seen.device
            steps = diagnose(found.case.of_steps())
            offers = tuple(
                offer for remedy in REMEDIES.values() for offer in remedy.offered(steps if remedy.measures == STEPS else found)
            )
            computes_s = found.case.compute_ms / 1e3 if found.case.on_device else None
            looked = ScriptLook(device, device_name(torch.device(device)), offers, computes_s, to_data(doc(found)))
            Path(asked["answer"]).write_text(json.dumps(asdict(looked)))
        os._exit(0)

    scratch, cache = Path(asked["scratch"]), Path(asked["cache"])
    protecting.enter(asked["protection"], scratch, [question.parent, cache], patches)
    end_with_parent()
    sys.addaudithook(_noting_programs(question.parent / _STARTED))
    watched = ScriptWatch(cache=cache, when_done=done, scratch=question.parent)
    watched.start()
    run_script(Script(asked["name"], tuple(asked["arguments"]), asked["as_module"]))
    done()
