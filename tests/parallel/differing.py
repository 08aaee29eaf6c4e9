"""Processes that were not started alike."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import flatout as fo
from flatout.base.errors import DataError, FlatoutError

rank = int(os.environ["RANK"])
runs, *planted = (json.loads(one) for one in sys.argv[1:])


def model() -> torch.nn.Module:
    if planted and rank == 2:
        raise DataError("there is no data here")
    return torch.nn.Linear(8, 3)


try:
    data = fo.data.arrays(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3)
    lr = 0.25 if rank == 1 and not planted else 0.5
    fo.run(
        fo.Recipe(data=data, model=model, batch=4, lr=lr, budget="2 steps"),
        runs=Path(runs),
        cache=Path(os.environ["PROBED"]),
        planning="off",
    )
except FlatoutError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
