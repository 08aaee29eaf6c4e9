"""Finds the best protection on this machine and enters it, so that trials change no file of the user's.

overlay   the kernel shows the trial a copy-on-write view of the file system
landlock  the kernel refuses writes outside the scratch folder; Python's writes are redirected to it
audit     without the kernel: only Python's own writes are redirected or blocked; needs --unprotected
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._inductor.runtime.cache_dir_utils import cache_dir

from flatout.base.errors import MachineError
from flatout.boost.protection import auditing, landlock, overlay
from flatout.boost.protection.moving import copy_where_rename_fails
from flatout.boost.protection.redirect import Redirect, temporary_files_in
from flatout.boost.protection.system import write_past_python
from flatout.doctor.patches import Patches

OVERLAY, LANDLOCK, AUDIT = "overlay", "landlock", "audit"
BY_KERNEL = (OVERLAY, LANDLOCK)
_SAID = {
    OVERLAY: "trials can't change your files: they write to a temporary overlay file system (mount namespace)",
    LANDLOCK: "trials can't change your files: the kernel (Landlock) refuses writes outside a scratch folder. Python's "
    "writes are redirected to it; a subprocess or C library that writes elsewhere gets 'permission denied'",
    AUDIT: "--unprotected: Python's writes are redirected to a scratch folder and subprocesses are refused. "
    "C libraries still write to your real files during trials",
}


@dataclass(frozen=True)
class Protection:
    kind: str
    refused: tuple[str, ...] = ()  # better protections, and why this machine does not allow them

    @property
    def sentence(self) -> str:
        return _SAID[self.kind] + (f" (not available here: {'; '.join(self.refused)})" if self.refused else "")


def choose(can_enter: Any, unprotected: bool) -> Protection:
    """`can_enter(kind)` tries it in a separate process and returns why it failed, or ""."""
    refused: list[str] = []
    for kind in BY_KERNEL:
        if not (why := can_enter(kind)):
            return Protection(kind, tuple(refused))
        refused.append(f"{kind}: {why}")
    if not unprotected:
        raise MachineError(
            f"this machine can't keep trials from changing your files: {'; '.join(refused)}. "
            "A C library in your script could overwrite real files during trials. "
            "Run flatout where user namespaces or Landlock are allowed, or on a copy of your folder with --unprotected"
        )
    return Protection(AUDIT, tuple(refused))


def enter(kind: str, scratch: Path, open_to: Iterable[Path], patches: Patches) -> None:
    """For the rest of this process. `patches` can undo only the changes to Python's calls."""
    places = [scratch, *open_to, *_shared_on_purpose()]
    temporary = scratch / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    if kind == OVERLAY:
        overlay.enter(scratch, places)
        copy_where_rename_fails(patches)
    else:
        files = scratch / "files"
        files.mkdir()
        if kind == LANDLOCK:
            landlock.enter(places)
        else:
            auditing.enter(places)
        Redirect(files, places).install(patches)
    temporary_files_in(str(temporary), patches)


def attempt(kind: str, folder: Path) -> str:
    """Why this protection can't be entered, or "". Run it in a separate process, because it can't be undone."""
    scratch = folder / f"try-{kind}"
    try:
        enter(kind, scratch, [folder], Patches())
        write_past_python(_outside(folder))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def leaked(folder: Path) -> bool:
    """Did the attempt's test write reach the real file? Some sandboxes report success for a system call and do nothing."""
    outside = _outside(folder)
    found = outside.exists()
    outside.unlink(missing_ok=True)
    return found


def _outside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.outside")


def remove(scratch: Path) -> None:
    """Removes it with the folders of an overlay, which have no read permission."""

    def open_up(function: Any, path: str, error: Any) -> None:
        with suppress(OSError):
            os.chmod(path, stat.S_IRWXU)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

    shutil.rmtree(scratch, onerror=open_up)


def _shared_on_purpose() -> Sequence[Path]:
    """Compile caches, so that a later trial need not compile again, and the files through which processes share a GPU (MPS)."""
    shared = [cache_dir(), os.path.expanduser("~/.triton"), "/tmp/nvidia-mps"]
    return [Path(one) for one in shared if os.path.isdir(one)]
