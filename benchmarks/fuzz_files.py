"""2,000 damaged files of every format that is read: each gives rows or an error in words, with no traceback, crash or hang."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CHILD = "--child"
LIMIT_S = 10.0
LIMIT_BYTES = 4 << 30
_NET_BYTES = 12 << 30  # of addresses, so that a fault does not take the machine with it


def main() -> int:
    if sys.argv[1:] == [_CHILD]:
        return serve()
    asked = _options().parse_args()
    began_s = time.monotonic()
    outcomes = list(run(asked.seed, asked.cases, asked.only))
    counts = Counter(outcome["ended"] for outcome in outcomes)
    faults = [outcome for outcome in outcomes if outcome["ended"] not in ("rows", "error")]
    for fault in faults:
        print(
            f"{fault['ended']}: {fault['format']}, case {fault['case']} of seed {asked.seed}: {fault['words']}", file=sys.stderr
        )
    if asked.plain:
        print(json.dumps({"cases": len(outcomes), **counts, "seconds": round(time.monotonic() - began_s, 1)}))
        return 1 if faults else 0
    import torch
    from evidence import Bar, Report

    report = Report("fuzz_files", str(__doc__), torch.device("cpu"))
    names = dict.fromkeys(outcome["format"] for outcome in outcomes)
    by_format = {name: Counter(one["ended"] for one in outcomes if one["format"] == name) for name in names}
    report.conditions = {
        "seed": asked.seed,
        "cases": len(outcomes),
        "formats": {name: dict(found) for name, found in by_format.items()},
        "limit_s": LIMIT_S,
        "limit_bytes": LIMIT_BYTES,
        "faults": faults,
    }
    report.arm("a file, until its rows or its error", "s", [outcome["seconds"] for outcome in outcomes])
    report.arm("most memory of a process", "GB", [max(outcome["peak_bytes"] for outcome in outcomes) / 1e9])
    for what in ("traceback", "crash", "hang", "over 4 GB"):
        report.bars.append(Bar(f"files that ended in: {what}", counts[what], 0, at_least=False))
    report.bars.append(Bar("different formats", len(by_format), 25))
    return report.finish(asked)


def _options() -> argparse.ArgumentParser:
    if "--plain" in sys.argv:  # the tests: what it takes to import torch is most of what this process does
        parser = argparse.ArgumentParser(description=__doc__)
    else:
        from evidence import options

        parser = options(__doc__, repeats=1)
    parser.add_argument("--seed", type=int, default=0, help="another one, other mutations (default 0)")
    parser.add_argument("--cases", type=int, default=2000, help="how many files (default 2000)")
    parser.add_argument("--only", help="the formats whose names begin so")
    parser.add_argument("--plain", action="store_true", help="print counts as JSON and write no report")
    return parser


def run(seed: int, count: int, only: str | None) -> Iterator[dict[str, Any]]:
    """Case after case in one process; one that crashes, hangs or grows takes its process with it, and the next gets another."""
    first = _Child()
    names = [name for name in first.names if only is None or name.startswith(only)]
    child: _Child | None = first
    for number in range(count):
        child = child or _Child()
        name = names[number % len(names)]
        outcome = child.ask((number, name, seed))
        yield {"case": number, "format": name, **outcome}
        if outcome["ended"] in ("crash", "hang", "over 4 GB"):
            child.end()
            child = None
    if child is not None:
        child.end()


class _Child:
    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="flatout-fuzz-")
        self._words = open(Path(self._folder) / "stderr", "w+b")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, __file__, _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env={**os.environ, "TMPDIR": self._folder, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        ready = self._read(120.0)  # everything is imported
        if ready is None:
            raise RuntimeError(f"the process that reads files did not start: {self._last_words()}")
        self.names: list[str] = ready["formats"]

    def ask(self, case: tuple[int, str, int]) -> dict[str, Any]:
        assert self._process.stdin is not None
        began_s = time.monotonic()
        self._process.stdin.write((json.dumps(case) + "\n").encode())
        self._process.stdin.flush()
        answer = self._read(LIMIT_S)
        seconds = time.monotonic() - began_s
        if answer is None:
            ended = "hang" if self._process.poll() is None else "crash"
            words = f"no answer within {LIMIT_S:g} s" if ended == "hang" else self._last_words()
            return {"ended": ended, "words": words, "seconds": seconds, "peak_bytes": 0}
        if answer["peak_bytes"] > LIMIT_BYTES and answer["ended"] in ("rows", "error"):
            answer |= {"ended": "over 4 GB", "words": f"{answer['peak_bytes'] / 1e9:.1f} GB; {answer['words']}"}
        return {**answer, "seconds": seconds}

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._words.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self, limit_s: float) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], limit_s)
        line = self._process.stdout.readline() if ready else b""
        found: dict[str, Any] | None = json.loads(line) if line else None
        if found is None and ready:
            self._process.wait(10)
        return found

    def _last_words(self) -> str:
        self._words.seek(0)
        said = self._words.read().decode(errors="replace").strip()[-600:]
        return f"ended with {self._process.returncode}: {said}"


def serve() -> int:
    """Answers one case a line, until nobody asks."""
    from _readable import formats

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    warnings.simplefilter("ignore")
    known = formats()
    resource.setrlimit(resource.RLIMIT_AS, (_NET_BYTES, _NET_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    everything = [known[name].content for name in known]
    answers.write(json.dumps({"formats": list(known)}) + "\n")
    answers.flush()
    for line in sys.stdin:
        number, name, seed = json.loads(line)
        ended, words = _one(known[name], random.Random(f"{seed} {name} {number}"), everything)
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        answers.write(json.dumps({"ended": ended, "words": words, "peak_bytes": peak_bytes}) + "\n")
        answers.flush()
    return 0


def _one(kind: Any, rng: random.Random, everything: list[bytes]) -> tuple[str, str]:
    from _mutations import mutated
    from _readable import draft

    from flatout.base.errors import FlatoutError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / kind.name
        path.write_bytes(_content(kind, rng, everything, mutated))
        ended = "rows", ""
        for action in ([lambda: draft(path, "label" if "label" in kind.name else None)] if kind.drafted else []) + [
            lambda: kind.read(path)
        ]:
            try:
                action()
            except FlatoutError as error:
                ended = "error", str(error)
            except BaseException:  # a panic of Rust is no Exception
                return "traceback", traceback.format_exc()[-1500:]
        return ended


def _content(kind: Any, rng: random.Random, everything: list[bytes], mutated: Any) -> bytes:
    others = [rng.choice(everything)]
    if kind.pack is None:
        return bytes(mutated(kind.content, rng, others))
    if rng.random() < 0.5:
        return bytes(kind.pack(mutated(kind.content, rng, others)))
    return bytes(mutated(kind.pack(kind.content), rng, others))


if __name__ == "__main__":
    sys.exit(main())
