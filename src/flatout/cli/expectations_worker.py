"""The process in which a table is compared with what a pipeline expects of it.

python -m flatout.cli.expectations_worker SPEC.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from flatout.base.errors import FlatoutError
from flatout.base.files import read_json, write_json
from flatout.pipelines.expectations.judging import judge


def main(path: Path) -> None:
    spec = read_json(path)
    try:
        write_json(Path(spec["out"]), judge(spec, Path()))
    except FlatoutError as error:
        print(f"flatout: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
