"""The processes that boost starts: one that others are forked off, for a look at a script and for trials of it; and the script
with what was kept.

python -m flatout.cli.boosting serve READ WRITE
python -m flatout.cli.boosting run KEPT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from flatout.cli.places import quiet_profiler


def main(what: str, *given: str) -> int:
    quiet_profiler()
    if what == "run":
        from flatout.boost.running import Kept, run_with

        return run_with(Kept.read(Path(given[0])))
    import torch._dynamo  # noqa: F401  the optimizers ask for it, and it takes as long as torch itself

    import flatout.boost.looking
    import flatout.boost.trial  # noqa: F401
    from flatout.boost.forks import serve

    serve(int(given[0]), int(given[1]), _do)
    return 0


def _do(what: str, question: Path) -> int:
    from flatout.boost.looking import look
    from flatout.boost.trial import Asked, attempt

    if what == "look":
        look(question)
    attempt(Asked.from_dict(json.loads(question.read_text())))
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
