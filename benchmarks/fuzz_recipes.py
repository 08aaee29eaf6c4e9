"""5,000 broken recipes: each is refused in words or understood; no traceback, none takes over 10 s or over 4 GB."""

from __future__ import annotations

import io
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import typer
from _broken_recipes import Case, Mutator, make_data

LIMIT_S, LIMIT_BYTES, LONGEST_MESSAGE = 10.0, 4 << 30, 20_000
_LONGEST_WAIT_S = 60.0
_FAILED = ("traceback", "long message", "hang", "crash")
_KINDS = ("understood", "refused", *_FAILED)


def cases(seed: int, count: int) -> list[Case]:
    """Each has a random state of its own, so that one of them can be made again alone."""
    return [Mutator(seed * 1_000_003 + number).case() for number in range(count)]


def answer(case: Case, folder: Path) -> dict[str, Any]:
    """What `flatout explain` does with it, in this process."""
    from flatout.cli import main

    if isinstance(main.app, typer.Typer):
        main.app = typer.main.get_command(main.app)  # type: ignore[assignment]  # which every call would make again
    recipe = folder / "recipe.yaml"
    recipe.write_bytes(case.content)
    sys.argv = ["flatout", "explain", str(recipe), *case.arguments]
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main._run()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException as error:
        where = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-6:]]
        return {"kind": "traceback", "why": f"{type(error).__name__}: {str(error)[:300]}", "where": where}
    said = err.getvalue()
    if "Traceback (most recent call last)" in said or code not in (0, 1, 2) or (code and not said.strip()):
        return {"kind": "traceback", "why": f"exit code {code}: {said[-500:]}", "where": []}
    if len(said) > LONGEST_MESSAGE:
        return {"kind": "long message", "why": f"{len(said)} characters: {said[:300]}", "where": []}
    return {"kind": "refused" if code else "understood", "why": said[:300], "where": []}


def serve() -> None:
    """A child: numbers of cases come in, one JSON line for each goes out."""
    seed, count, home = int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import flatout.runs.verbs  # noqa: F401

    os.chdir(home)
    made = cases(seed, count)
    warm = Case((home / "good.yaml").read_bytes())
    first = answer(warm, home)
    assert first["kind"] == "understood", first
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    held = pages * resource.getpagesize() + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (held, held))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        began_s = time.monotonic()
        found = answer(made[int(line)], home)
        print(json.dumps({**found, "number": int(line), "seconds": time.monotonic() - began_s}), file=answers, flush=True)


class Child:
    """Answers one case at a time; what it does not survive is the case's fault."""

    def __init__(self, seed: int, count: int, home: Path) -> None:
        command = [sys.executable, __file__, "--serve", str(seed), str(count), str(home)]
        environment = {**os.environ, "FLATOUT_CACHE": str(home / "cache"), "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        if self._line(300.0) != "ready\n":
            raise RuntimeError(f"a child did not start: {self.last_words()}")

    def ask(self, number: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        line, spent_s = None, self._spent_s()
        for _ in range(int(_LONGEST_WAIT_S)):
            line = self._line(1.0)
            if line is not None or self._spent_s() - spent_s > LIMIT_S:
                break
        if line is None:
            self.close()
            return {"kind": "hang", "why": f"no answer within {LIMIT_S:g} s", "where": [], "number": number, "seconds": LIMIT_S}
        if not line:
            return {"kind": "crash", "why": self.last_words(), "where": [], "number": number, "seconds": 0.0}
        found: dict[str, Any] = json.loads(line)
        return found

    def _spent_s(self) -> float:
        """By its own clock: on a busy machine a process may wait for its turn longer than the limit."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def last_words(self) -> str:
        self._process.kill()
        return f"exit code {self._process.wait()}: {self._process.communicate()[1][-800:]}"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self, within_s: float) -> str | None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], within_s)
        return self._process.stdout.readline() if ready else None


def fuzz(seed: int, count: int, home: Path, first: int = 0) -> list[dict[str, Any]]:
    make_data(home)
    (home / "good.yaml").write_text("data: digits\nmodel: mlp\nbatch: 8\nlr: 1e-3\nbudget: 1 epoch\nsettings: {device: cpu}\n")
    found: list[dict[str, Any]] = []
    child: Child | None = None
    for number in range(first, count):
        child = child or Child(seed, count, home)
        found.append(child.ask(number))
        if found[-1]["kind"] in ("hang", "crash"):
            child = None
        if (last := found[-1])["kind"] in _FAILED:
            print(f"{seed}/{number}: {last['kind']}: {last['why'][-300:]} {last['where']}", file=sys.stderr, flush=True)
    if child is not None:
        child.close()
    return found


def main() -> int:
    import torch
    from evidence import Bar, Report, options

    parser = options(__doc__, repeats=1)
    parser.add_argument("--count", type=int, default=5000, help="how many (default 5000)")
    parser.add_argument("--seed", type=int, default=0, help="of what is broken, and how")
    parser.add_argument("--only", type=int, help="the number of one of them: shown, with what it is answered")
    asked = parser.parse_args()
    count = 60 if asked.quick or asked.smoke else asked.count
    with tempfile.TemporaryDirectory() as folder:
        if asked.only is not None:
            case = cases(asked.seed, asked.only + 1)[-1]
            print(case.content.decode(errors="replace")[:3000], *(word[:300] for word in case.arguments), sep="\n")
            print(json.dumps(fuzz(asked.seed, asked.only + 1, Path(folder), asked.only), indent=1))
            return 0
        began_s = time.monotonic()
        found = fuzz(asked.seed, count, Path(folder))
    kinds = Counter(one["kind"] for one in found)
    report = Report("fuzz_recipes", str(__doc__), torch.device("cpu"))
    seconds, longest_s = round(time.monotonic() - began_s, 1), round(max(one["seconds"] for one in found), 2)
    report.conditions = {"seed": asked.seed, "cases": len(found), **{kind: kinds[kind] for kind in _KINDS}}
    report.conditions |= {"seconds": seconds, "longest_s": longest_s, "limit_s": LIMIT_S, "limit_bytes": LIMIT_BYTES}
    report.conditions |= {"failures": [one for one in found if one["kind"] in _FAILED]}
    report.bars = [
        Bar("recipes", len(found), count),
        Bar("tracebacks", kinds["traceback"] + kinds["crash"], 0, at_least=False),
        Bar(f"over {LIMIT_S:g} s", kinds["hang"], 0, at_least=False),
        Bar(f"messages over {LONGEST_MESSAGE:,} characters", kinds["long message"], 0, at_least=False),
    ]
    return report.finish(asked)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve()
    else:
        sys.exit(main())
