"""The processes that boost starts: a look at a script, a trial of it, or the script with what was kept.

python -m flatout.cli.boosting look|try|run QUESTION.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from flatout.cli.places import quiet_profiler


def main(what: str, question: Path) -> int:
    quiet_profiler()
    from flatout.boost.looking import look
    from flatout.boost.running import Kept, run_with
    from flatout.boost.trial import Asked, attempt

    if what == "look":
        look(question)
    if what == "run":
        return run_with(Kept.read(question))
    attempt(Asked.from_dict(json.loads(question.read_text())))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
