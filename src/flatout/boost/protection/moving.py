"""Makes renames work that fail on an overlay: of real folders, and from one overlay to another."""

from __future__ import annotations

import errno
import os
import shutil
from typing import Any

from flatout.doctor.patches import Patches


def copy_where_rename_fails(patches: Patches) -> None:
    for name in ("rename", "replace"):
        patches.wrap(os, name, _moving)
    patches.wrap(os, "link", _linking)


def _moving(original: Any) -> Any:
    def move(src: Any, dst: Any, **named: Any) -> None:
        try:
            original(src, dst, **named)
        except OSError as error:
            if error.errno != errno.EXDEV or named:
                raise
            _copied(src, dst)

    return move


def _copied(src: Any, dst: Any) -> None:
    if os.path.isdir(src) and not os.path.islink(src):
        if os.path.lexists(dst):
            os.rmdir(dst)  # only an empty folder may be replaced
        shutil.copytree(src, dst, symlinks=True)
        shutil.rmtree(src)
        return
    aside = f"{os.fsdecode(dst)}.{os.getpid()}.moved"
    shutil.copy2(src, aside, follow_symlinks=False)
    os.rename(aside, dst)
    os.unlink(src)


def _linking(original: Any) -> Any:
    def link(src: Any, dst: Any, **named: Any) -> None:
        try:
            original(src, dst, **named)
        except OSError as error:
            if error.errno != errno.EXDEV or named:
                raise
            if os.path.lexists(dst):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst) from None
            shutil.copy2(src, dst)

    return link
