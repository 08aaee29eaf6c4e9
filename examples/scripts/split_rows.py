"""Rows of a CSV file for training and for the gate: each fifth one is kept from training.

python scripts/split_rows.py IN.csv[.gz] TRAIN.csv TEST.csv
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

EVERY = 5


def main(source: Path, train: Path, test: Path) -> None:
    opened = gzip.open if source.suffix == ".gz" else open
    with opened(source, "rt") as rows, train.open("w") as most, test.open("w") as few:
        header = next(rows)
        most.write(header)
        few.write(header)
        for number, row in enumerate(rows):
            (few if number % EVERY == 0 else most).write(row)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
