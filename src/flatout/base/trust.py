"""Whether a folder's content can only come from its owner. flatout checks this before it reads its caches.

Like OpenSSH, it checks owners and modes from the root of the file system down:

- Below a folder that others may write to, only a folder owned by this user or root is accepted.
- If others can create entries in the cache folder itself, a private folder inside it is used.
- A cache owned by somebody else, in a place where only root could create it, is accepted: whoever configures it trusts its
  owner. So root in a container can use a volume of any owner.
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
    """The folder to use: this one or one inside it. Raises MachineError if neither can be trusted."""
    folder = folder.expanduser().absolute()
    real = folder.resolve()
    open_to_others = False
    for place in (*reversed(real.parents), real):
        try:
            about = place.lstat()
        except OSError:
            return folder  # does not exist yet: whoever creates it owns it
        if open_to_others and about.st_uid not in (os.geteuid(), 0):
            raise MachineError(
                f"the cache {folder} is not used: {place} belongs to {_user(about.st_uid)} and is in a folder where others can "
                "create files. Set FLATOUT_CACHE (in Python cache=) to a folder of your own"
            )
        if about.st_uid in (os.geteuid(), 0) and not about.st_mode & 0o011:
            return folder  # no other user can enter
        open_to_others = _others_can_write(about)
    return _own_folder(folder) if open_to_others else folder


def _own_folder(folder: Path) -> Path:
    own = folder / f"of-user-{os.geteuid()}"
    with suppress(OSError):  # not writable: reported when something is to be stored there
        own.mkdir(mode=0o700, exist_ok=True)
        about = own.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise MachineError(
                f"the cache {folder} is not used: others can write to it, and {own} is not private to you. Remove "
                f"{own}, or set FLATOUT_CACHE (in Python cache=) to a folder of your own"
            )
    return own


def _others_can_write(about: os.stat_result) -> bool:
    if about.st_mode & 0o002:
        return True
    return bool(about.st_mode & 0o020) and not _is_private_group(about.st_gid)


@lru_cache(maxsize=64)
def _is_private_group(gid: int) -> bool:
    """The user's private group that many systems create, with no other members."""
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
