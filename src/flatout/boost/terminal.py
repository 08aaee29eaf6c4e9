"""A terminal for a trial: many scripts ask for its width, for their progress bar, and stop if there is none."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

_USUAL = os.terminal_size((80, 24))
_END_OF_INPUT = b"\x04" * 256  # for as many questions to a user who isn't there


def take_terminal() -> None:
    """stdin becomes a terminal as wide as the user's, at which nobody types; the process holds its other end until it ends.
    Where no terminal can be made, stdin is empty."""
    size = _size_of(0)
    try:
        ours, theirs = os.openpty()
    except OSError:  # a sandbox without terminals, or all are taken: then as without this
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.close(nowhere)
        return
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, size.columns, 0, 0))
    os.write(ours, _END_OF_INPUT)
    os.dup2(theirs, 0)
    os.close(theirs)
    plain = os.get_terminal_size

    def get_terminal_size(descriptor: int = 1) -> os.terminal_size:
        return size if descriptor in (0, 1, 2) else plain(descriptor)  # stdout and stderr of a trial are files

    os.get_terminal_size = get_terminal_size


def _size_of(descriptor: int) -> os.terminal_size:
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return _USUAL
    return size if size.columns and size.lines else _USUAL
