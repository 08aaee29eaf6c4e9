"""Runs a script as `python script.py` would: with its own __main__, arguments, folder, imports and exit."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

from flatout.base.errors import UsageError


@dataclass(frozen=True)
class Script:
    """`name`: the file from the command line, or with `as_module` the module after -m."""

    name: str
    arguments: tuple[str, ...] = ()
    as_module: bool = False

    def __str__(self) -> str:
        return " ".join([*(["-m"] if self.as_module else []), self.name, *self.arguments])

    def file(self) -> Path | None:
        """None for a module that is not below the current folder."""
        path = Path(self.name.replace(".", "/") if self.as_module else self.name)
        candidates = [path / "__main__.py", path.with_suffix(".py") if self.as_module else path]
        return next((one for one in candidates if one.is_file()), None)


class Enough(BaseException):
    """Raised inside a script to end it once enough steps were observed."""


@dataclass(frozen=True)
class Ending:
    """How a script ended. `error`: its uncaught exception, except SystemExit and KeyboardInterrupt."""

    exit_code: int
    error: BaseException | None = None
    interrupted: bool = False


def check(script: Script) -> None:
    """UsageError if the script does not exist."""
    if not script.as_module:
        path = Path(script.name)
        if path.is_dir() and not (path / "__main__.py").exists():
            raise UsageError(f"expected a training script, got the folder {script.name}; name a file in it, or use -m PACKAGE")
        if not path.exists():
            near = sorted(str(p) for p in Path(path.parent).glob("*.py"))[:5] if path.parent.is_dir() else []
            raise UsageError(
                f"file not found: {script.name}" + (f"; scripts in that folder: {', '.join(near)}" if near else "")
                + ". Options of flatout go before the script"
            )  # fmt: skip


def run_script(script: Script) -> Ending:
    """Runs the script in this process. Prints an uncaught error as Python does."""
    try:
        code, module, first_path = _loaded(script)
    except UsageError:
        raise
    except Exception as error:  # finding a module runs the code of its package
        _print_error(error)
        return Ending(1, error)
    sys.argv = [str(module.__file__) if script.as_module else script.name, *script.arguments]
    sys.path[0] = first_path  # replaces the folder of the flatout command
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
            _kept.append(module)  # threads that it started may still use its globals
    return Ending(0)


_kept: list[ModuleType] = []
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _loaded(script: Script) -> tuple[CodeType, ModuleType, str]:
    module = ModuleType("__main__")
    if script.as_module:
        sys.path.insert(0, os.getcwd())
        try:
            spec = _found(script.name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(script.name + ".__main__")
        finally:
            sys.path.pop(0)
        if spec is None or spec.origin is None or spec.loader is None:
            raise UsageError(f"-m {script.name}: found neither a module nor a package with a __main__.py")
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
        raise UsageError(f"expected a training script, but {script.name} is not Python source")
    module.__file__, module.__package__ = path, None
    # without this module's __future__ imports; as in Python, links are resolved for imports but not in __file__
    return compile(source, path, "exec", dont_inherit=True), module, os.path.dirname(os.path.realpath(path))


def _found(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not name.startswith(f"{error.name}."):  # a missing import inside the module
            raise
        return None


def _exit_code(ended: SystemExit) -> int:
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code & 0xFF
    print(ended.code, file=sys.stderr)
    return 1


def _print_error(error: BaseException) -> None:
    """Prints it with the script's excepthook, without flatout's frames."""
    _without_ours(error, set())
    sys.excepthook(type(error), error, error.__traceback__)


def _without_ours(error: BaseException | None, done: set[int]) -> None:
    if error is None or id(error) in done:
        return
    done.add(id(error))
    kept, trace = [], error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith((_OURS, "<frozen importlib")):
            kept.append(trace)
        trace = trace.tb_next
    for one, after in zip(kept, [*kept[1:], None], strict=False):
        one.tb_next = after
    error.__traceback__ = kept[0] if kept else None
    _without_ours(error.__cause__, done)
    _without_ours(error.__context__, done)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()
