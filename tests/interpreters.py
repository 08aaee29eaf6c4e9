"""`python ARGUMENTS` as `subprocess` starts it, without the seconds that importing torch takes: forked off an interpreter that
has imported torch and flatout and done nothing else. Not for tests of imports, or of how an interpreter starts and ends."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from multiprocessing import process, reduction
from typing import IO, Any, NoReturn

TEMPLATE = multiprocessing.get_context("forkserver")
TEMPLATE.set_forkserver_preload(
    [
        "flatout.runs.train", "flatout.engine.loop", "flatout.engine.parallel.spread", "flatout.engine.parallel.piped",
        "flatout.engine.parallel.context", "flatout.engine.parallel.local", "flatout.engine.parallel.shared_evaluation",
        "flatout.store.sharded", "flatout.world.joining", "torch.distributed.checkpoint", "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel", "torch.distributed.pipelining", "safetensors.torch", "torch._dynamo",
        "flatout.cli.main", "flatout.doctor.watching", "flatout.boost.boosting", "flatout.boost.looking",
        "flatout.boost.running",
    ]
)  # fmt: skip
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # as `flatout doctor` sets it; read when torch is loaded


class ForkedPython:
    """To those who watch it, a `Popen` with a session of its own."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: str | os.PathLike[str] = ".",
        env: Mapping[str, str] | None = None,
        stdin: IO[Any] | None = None,
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
    ) -> None:
        """A stream that is not given is /dev/null. See `piped` for pipes."""
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self.args = list(arguments)
        environment = dict(os.environ if env is None else env)
        path = _first_path(environment.get("PYTHONPATH"))
        with open(os.devnull, "r+b") as nowhere:
            streams = [_Descriptor((one or nowhere).fileno()) for one in (stdin, stdout, stderr)]
            self._process = TEMPLATE.Process(
                target=_be_python, args=(self.args, os.path.abspath(cwd), environment, path, streams), daemon=True
            )
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        assert self.stdout is not None and self.stderr is not None
        with ThreadPoolExecutor(2) as readers:
            said = [readers.submit(pipe.read) for pipe in (self.stdout, self.stderr)]
            if is_late := bool(wait(said, timeout).not_done):
                self.kill()  # it will say no more, and the readers end
        assert not is_late, f"after {timeout} s it still ran, and had said: {[one.result() for one in said]}"
        self.wait()
        for pipe in (self.stdout, self.stderr):
            pipe.close()
        return said[0].result(), said[1].result()


def piped(arguments: Sequence[str], *, cwd: str | os.PathLike[str] = ".", env: Mapping[str, str] | None = None) -> ForkedPython:
    """With pipes for stdout and stderr."""
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    with open(out_end, "wb") as to_out, open(err_end, "wb") as to_err:
        process = ForkedPython(arguments, cwd=cwd, env=env, stdout=to_out, stderr=to_err)
    process.stdout, process.stderr = open(out), open(err)  # noqa: SIM115
    return process


def run_forked(
    arguments: Sequence[str],
    *,
    cwd: str | os.PathLike[str] = ".",
    env: Mapping[str, str] | None = None,
    timeout: float = 240.0,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Until it ends, with what it printed. Its stdin is empty."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = ForkedPython(arguments, cwd=cwd, env=env, stdout=out, stderr=err)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            said = []
            for stream in (out, err):
                stream.seek(0)
                said.append(stream.read())
    ended = subprocess.CompletedProcess(process.args, code, *said)
    if check and code:
        raise AssertionError(f"exit code {code}: {ended.stderr}")
    return ended


@cache
def _first_path(given: str | None) -> list[str]:
    """`sys.path` of an interpreter that has just started, without the folder of its script."""
    environment = {**os.environ, "PYTHONPATH": given or ""}
    told = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.path[1:], sep='\\n')"], env=environment, stdout=-1, check=True
    )
    return told.stdout.decode().splitlines()


class _Descriptor:
    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _received, (reduction.DupFd(self._number),)


def _received(passed: Any) -> int:
    return int(passed.detach())


def _be_python(
    arguments: Sequence[str], cwd: str, environment: Mapping[str, str], path: Sequence[str], streams: Sequence[int]
) -> NoReturn:
    code = 1
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(cwd)
        _as_at_its_start(environment)
        sys.path[:] = path
        code = _exit_code_of(arguments)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for said in (sys.stdout, sys.stderr):
            said.flush()
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def _as_at_its_start(environment: Mapping[str, str]) -> None:
    """No trace of how it was started, and what Python and torch read from the environment when they start."""
    import torch

    state: Any = process
    main = next(kind for kind in state.BaseProcess.__subclasses__() if kind.__name__ == "_MainProcess")
    state._current_process, state._parent_process = main(), None
    state._children, state._dangling = set(), type(state._dangling)()
    multiprocessing.set_start_method(None, force=True)  # type: ignore[arg-type]
    atexit._clear()
    lines = 1 if environment.get("PYTHONUNBUFFERED") else -1
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=lines), open(2, "w", buffering=1)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    os.environ.clear()
    os.environ.update(environment)
    if threads := environment.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))


def _exit_code_of(arguments: Sequence[str]) -> int:
    how, *rest = arguments
    try:
        if how == "-m":
            sys.argv = rest
            sys.path.insert(0, os.getcwd())
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif how == "-c":
            sys.argv = ["-c", *rest[1:]]
            sys.path.insert(0, "")
            exec(compile(rest[0], "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
        else:
            sys.argv = [how, *rest]
            sys.path.insert(0, os.path.dirname(os.path.realpath(how)))
            runpy.run_path(how, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
