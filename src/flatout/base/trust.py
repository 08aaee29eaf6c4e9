"""Whether what lies in a folder can only come from its owner: flatout reads back what it kept in a cache.

As OpenSSH does for its files, owners and modes are looked at, from the root of the file system down:

- A folder that others may write to is passed only into a folder that belongs to this user or to root.
- Where others can create entries in the cache itself, a folder inside of it is used that is this user's alone.
- A cache that somebody else keeps, in a place where only root could put it, is read: whoever names it trusts its owner. So
  root in a container can use a volume of any owner.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from flatout.base.errors import MachineError


def private_cache(folder: Path) -> Path:
    """The folder to keep things in: this one, or one inside of it. MachineError where neither can be trusted."""
    folder = folder.expanduser().absolute()
    real = folder.resolve()
    open_to_others = False
    for place in (*reversed(real.parents), real):
        try:
            about = place.lstat()
        except OSError:
            return folder  # not there yet: whoever makes it owns it
        if open_to_others and about.st_uid not in (os.geteuid(), 0):
            raise MachineError(
                f"the cache {folder} is not used: {place} belongs to {_user(about.st_uid)}, in a folder where others can "
                "create files. Set FLATOUT_CACHE (in Python cache=) to a folder of your own"
            )
        if about.st_uid in (os.geteuid(), 0) and not about.st_mode & 0o011:
            return folder  # nobody else can enter
        open_to_others = _others_can_write(about)
    return _own_folder(folder) if open_to_others else folder


def _own_folder(folder: Path) -> Path:
    own = folder / f"of-user-{os.geteuid()}"
    with suppress(OSError):  # a folder that can't be written: whoever wants to keep something there says so
        own.mkdir(mode=0o700, exist_ok=True)
        about = own.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise MachineError(
                f"the cache {folder} is not used: others can write to it, and {own} is not yours alone. Remove that, or set "
                "FLATOUT_CACHE (in Python cache=) to a folder of your own"
            )
    return own


def _others_can_write(about: os.stat_result) -> bool:
    if about.st_mode & 0o002:
        return True
    return bool(about.st_mode & 0o020) and not _is_private_group(about.st_gid)


@lru_cache(maxsize=64)
def _is_private_group(gid: int) -> bool:
    """The group that many systems give each user, and nobody else is in."""
    if gid == 0 and os.geteuid() == 0:
        return True
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
