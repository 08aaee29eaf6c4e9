"""A trial has a terminal as stdin, or an empty stdin where none can be made."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASKS = """\
import os, sys
from flatout.boost.terminal import take_terminal

def none():
    raise OSError("out of pty devices")

if sys.argv[1] == "none":
    os.openpty = none
take_terminal()
try:
    input()
except EOFError:
    print(sys.stdin.isatty(), *(os.get_terminal_size() if sys.stdin.isatty() else ()))
"""


@pytest.mark.parametrize(("which", "said"), [("one", "True 80 24\n"), ("none", "False\n")])
def test_a_question_ends_and_the_width_is_known(which: str, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ASKS, which], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, said), ended.stderr
