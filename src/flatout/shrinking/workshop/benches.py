"""Which bench answers, by what the workshop was asked."""

from __future__ import annotations

import json
from pathlib import Path

from flatout.shrinking.workshop.bench import CandidateBench
from flatout.shrinking.workshop.program_bench import ProgramBench
from flatout.shrinking.workshop.questions import ASKED, AnsweringBench


def bench_in(folder: Path) -> AnsweringBench:
    return ProgramBench(folder) if json.loads((folder / ASKED).read_text())["device"] else CandidateBench(folder)
