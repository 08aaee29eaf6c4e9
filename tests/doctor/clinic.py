"""Scripts under the doctor, each in a process that is forked off one which has imported torch already."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_LIMIT_S = 120
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")  # see KeepMemory below, where torch has another allocator


def examined(path: Path, steps: int = 30) -> dict[str, Any]:
    """What `flatout doctor --json` says of it; one core, as the suite runs on two."""
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        process = multiprocessing.get_context("forkserver").Process(target=_examine, args=(str(path), steps, str(answer)))
        process.start()
        process.join(_LIMIT_S)
        if process.is_alive():
            process.kill()
            raise AssertionError(f"{path.name} did not end")
        assert answer.exists(), f"{path.name}: the process ended with {process.exitcode}"
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


def _examine(path: str, steps: int, answer: str) -> None:
    import torch

    from flatout.boost.hooks import Hooks
    from flatout.boost.remedies.keep_memory import KeepMemory
    from flatout.doctor.script import Script, run_script
    from flatout.doctor.watching import ScriptWatch

    torch.set_num_threads(1)
    if not Path(path).stem.startswith("allocator_thrash"):
        KeepMemory().apply("on", Hooks())  # else most of what is called healthy had this one on a CPU
    multiprocessing.set_start_method("fork", force=True)  # as for a script that was started by hand
    os.chdir(Path(path).parent)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    watch = ScriptWatch(steps)
    watch.start()
    ending = run_script(Script(Path(path).name))
    watch.stop()
    Path(answer).write_text(json.dumps({"exit": ending.exit_code, "text": str(watch), **watch.to_dict()}))


if __name__ == "__main__":
    multiprocessing.get_context("forkserver").set_forkserver_preload(["flatout.doctor.watching", "torch._dynamo"])
    for name in sys.argv[1:]:
        found = examined(Path(name))
        ids = [(one["id"], round(one["share"], 3)) for one in found.get("findings", [])]
        wanted = Path(name).stem
        ok = (ids and wanted.startswith(ids[0][0])) if "sick" in str(Path(name).resolve()) else all(s < 0.05 for _, s in ids)
        rest = next((round(r["share"], 3) for r in found.get("ledger", []) if r["row"] == "unattributed"), None)
        print(
            "ok " if ok else "BAD", wanted, ids[:4], "step", round(found.get("step_ms", 0), 2), "unattributed", rest, flush=True
        )
        if not ok:
            print(found["text"], flush=True)
