"""The command as a program calls it, in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from flatout.cli.main import main


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """`flatout load` with these arguments: exit code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flatout", "load", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture
def measured(command: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    """The JSON of a run that was made."""

    def call(*arguments: object) -> Any:
        code, out, err = command(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return call
