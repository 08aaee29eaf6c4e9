"""A script run as `python script.py` would run it: its own __main__, arguments, folder, imports, and way to end."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

from flatout.base.errors import UsageError


@dataclass(frozen=True)
class Script:
    """What was named on the command line: a file, or with `as_module` what follows -m."""

    name: str
    arguments: tuple[str, ...] = ()
    as_module: bool = False

    def __str__(self) -> str:
        return " ".join([*(["-m"] if self.as_module else []), self.name, *self.arguments])


class Enough(BaseException):
    """Raised inside of a script to end it: all has been seen."""


@dataclass(frozen=True)
class Ending:
    """How it ended. `error` is what it raised and did not catch, sys.exit and Ctrl-C left out."""

    exit_code: int
    error: BaseException | None = None
    interrupted: bool = False


def check(script: Script) -> None:
    """Before anything is started: can it be found?"""
    if not script.as_module:
        path = Path(script.name)
        if path.is_dir() and not (path / "__main__.py").exists():
            raise UsageError(f"expected a training script, got the folder {script.name}: name a file in it, or use -m PACKAGE")
        if not path.exists():
            near = sorted(str(p) for p in Path(path.parent).glob("*.py"))[:5] if path.parent.is_dir() else []
            raise UsageError(
                f"there is no file {script.name}" + (f"; the scripts there: {', '.join(near)}" if near else "")
                + ". flatout's own options come before the script"
            )  # fmt: skip


def run_script(script: Script) -> Ending:
    """In this process. It ends as the script ends: an error is printed as Python would print it."""
    try:
        code, module, first_path = _loaded(script)
    except (SyntaxError, ImportError) as error:
        _print_error(error)
        return Ending(1, error)
    sys.argv = [str(module.__file__) if script.as_module else script.name, *script.arguments]
    sys.path[0] = first_path  # there stands the folder of flatout's own command
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(code, module.__dict__)
    except Enough:
        return Ending(0)
    except SystemExit as ended:
        return Ending(_exit_code(ended))
    except KeyboardInterrupt:
        return Ending(130, interrupted=True)
    except BaseException as error:
        _print_error(error)
        return Ending(1, error)
    finally:
        _flush()
        if sys.modules.get("__main__") is module:
            sys.modules["__main__"] = before
            _kept.append(module)  # what it left running may still look at its globals
    return Ending(0)


_kept: list[ModuleType] = []


def _loaded(script: Script) -> tuple[CodeType, ModuleType, str]:
    module = ModuleType("__main__")
    if script.as_module:
        sys.path.insert(0, os.getcwd())
        try:
            spec = importlib.util.find_spec(script.name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(script.name + ".__main__")
        finally:
            sys.path.pop(0)
        if spec is None or spec.origin is None or spec.loader is None:
            raise UsageError(f"-m {script.name}: there is no such module here, nor is it a package with a __main__.py")
        code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]
        module.__file__, module.__spec__, module.__package__ = spec.origin, spec, spec.parent
        module.__loader__ = spec.loader
        return code, module, os.getcwd()
    path = os.path.abspath(script.name)
    if os.path.isdir(path):
        path = os.path.join(path, "__main__.py")
    with open(path, "rb") as file:
        source = file.read()
    if b"\0" in source[:1024]:
        raise UsageError(f"{script.name} is no Python source: expected a training script")
    module.__file__, module.__package__ = path, None
    return compile(source, path, "exec"), module, os.path.dirname(path)


def _exit_code(ended: SystemExit) -> int:
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code & 0xFF
    print(ended.code, file=sys.stderr)
    return 1


def _print_error(error: BaseException) -> None:
    """Without the frames of flatout that lie around the script's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace, file=sys.stderr)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()
