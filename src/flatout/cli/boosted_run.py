"""Runs the script with the chosen settings, in the process that boost starts for it.

python -m flatout.cli.boosted_run KEPT.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from flatout.cli.places import quiet_profiler


def main(kept: str) -> int:
    quiet_profiler()
    from flatout.boost.running import BoostedRun, run_with

    return run_with(BoostedRun.read(Path(kept)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
