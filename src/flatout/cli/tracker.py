"""The process of one tracker: follows the log of a run until the run says that it has ended.

python -m flatout.cli.tracker PIPE <TOLD.json
"""

from __future__ import annotations

import json
import os
import select
import sys
from contextlib import suppress
from pathlib import Path


def main(pipe: int) -> None:
    told = json.load(sys.stdin)
    sys.path[:] = told["path"]
    with suppress(OSError):
        os.nice(10)  # training comes first
    # mlflow's own patience is minutes, and this process tries again by itself
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("WANDB_SILENT", "true")

    from flatout.tracking.asked import Track
    from flatout.tracking.follow import follow
    from flatout.tracking.make import make

    track = Track(*told["track"])
    follow(make(track), track, Path(told["folder"]), lambda: bool(select.select([pipe], [], [], 0)[0]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
