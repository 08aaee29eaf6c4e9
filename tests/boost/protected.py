"""A function called inside of a protection, in a process of its own."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

from flatout.boost.protection import protecting
from flatout.doctor.patches import Patches


def inside(kind: str, scratch: Path, call: Callable[[], None]) -> str:
    """What went wrong, or ""."""
    told = scratch.with_name(f"{scratch.name}-told")
    told.mkdir()
    child = os.fork()
    if not child:
        answer = ""
        try:
            protecting.enter(kind, scratch, [told], Patches())
            call()
        except BaseException:
            answer = traceback.format_exc()
        (told / "answer").write_text(answer)
        os._exit(0)
    os.waitpid(child, 0)
    return (told / "answer").read_text()


def is_possible(kind: str, folder: Path) -> bool:
    scratch = folder / f"possible-{kind}"
    return not inside(kind, scratch, lambda: None)
