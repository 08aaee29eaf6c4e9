"""`import flatout` with its verbs and data takes under 0.3 s beyond torch's own import; `flatout --help` imports no torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping

import torch
from evidence import Bar, Report, options, take_turns

TORCH = """
import time; began_s = time.perf_counter()
import torch
print(time.perf_counter() - began_s)
"""
BEYOND = """
import torch
import time; began_s = time.perf_counter()
import flatout as fo
fo.Recipe; fo.run; fo.data
print(time.perf_counter() - began_s)
"""
HELP = """
import contextlib, io, sys, time; began_s = time.perf_counter()
sys.argv = ["flatout", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
    from flatout.cli.main import main
    main()
assert "Usage" in shown.getvalue(), shown.getvalue()
print(time.perf_counter() - began_s if "torch" not in sys.modules else "torch was imported")
"""


def output_of(program: str, environment: Mapping[str, str]) -> str:
    """What a fresh interpreter prints."""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    if ended.returncode != 0:
        raise RuntimeError(f"the measured program failed: {ended.stderr.strip()}")
    return ended.stdout.strip()


def with_bytecode(folder: str) -> dict[str, str]:
    """An installed package is kept as bytecode, whatever this shell or checkout says about that."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": folder}


def measure(report: Report, repeats: int, within_s: float | None, environment: Mapping[str, str]) -> None:
    def seconds(program: str) -> Callable[[], float]:
        return lambda: float(output_of(program, environment))

    arms = {"import torch": seconds(TORCH), "import flatout, beyond torch": seconds(BEYOND)}
    help_is_light = output_of(HELP, environment) != "torch was imported"
    if help_is_light:
        arms["flatout --help (without Python's start)"] = seconds(HELP)
    take_turns(arms, 1)  # from here on everything is there as bytecode, and in the page cache
    for name, values in take_turns(arms, repeats, within_s).items():
        report.arm(name, "s", values)
    report.bar("import flatout beyond torch, s", "import flatout, beyond torch", 0.3, at_least=False)
    report.bars.append(Bar("times that flatout --help imports torch", 0.0 if help_is_light else 1.0, 0.0, at_least=False))


def main() -> int:
    asked = options(__doc__, repeats=11).parse_args()
    report = Report("import_time", str(__doc__), torch.device("cpu"))
    with tempfile.TemporaryDirectory() as bytecode:
        measure(report, 2 if asked.quick or asked.smoke else asked.repeats, asked.within, with_bytecode(bytecode))
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
