"""The process in which a shrink makes and times candidates: answers questions until the pipe is closed.

python -m flatout.cli.shrink_worker FOLDER THREADS READ WRITE
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from flatout.base.answering_child import answer_questions
from flatout.shrinking.workshop.benches import bench_in


def main(folder: Path, threads: int, read_from: int, write_to: int) -> None:
    torch.set_num_threads(threads)
    answer_questions(bench_in(folder).answer, read_from, write_to)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
