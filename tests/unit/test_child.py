"""Supervised children: none is left behind, whoever is killed; how one ended is told in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flatout.base.child import Child, Printed
from flatout.base.exits import exit_words, last_line, printed_to
from flatout.base.messages import BadMessage, Messages, Questions

HERE = Path(__file__).parent
KINDS = 9  # of those that every_child.py starts


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def tree(there: Path) -> list[str]:
    return [sys.executable, str(HERE / "process_tree.py"), str(there)]


def leaves_a_tree(there: Path) -> list[str]:
    return python(
        f"import os, subprocess, time; subprocess.Popen({tree(there)!r})\n"
        f"while len(os.listdir({str(there)!r})) < 2: time.sleep(.01)"
    )


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(true: Callable[[], object], seconds: float = 60) -> None:
    end_s = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.01)


def grown(there: Path, processes: int = 2) -> list[int]:
    def pids() -> list[int]:
        return [int(path.name) for path in there.iterdir() if path.name.isdigit()]

    until(lambda: len(pids()) == processes)
    return pids()


# ---- how it ended ----


def test_the_exit_code_and_the_last_line_are_kept() -> None:
    with Child(python("import sys; print('first', flush=True); sys.exit('it fell over')")) as child:
        assert child.wait(60) == 1
    assert child.how_it_ended() == "ended with code 1: it fell over"
    assert child.printed().splitlines() == ["first", "it fell over"]


def test_an_error_counts_more_than_output_that_is_flushed_after_it() -> None:
    code = "import os; print('loss 0.5'); os.write(2, b'RuntimeError: no memory\\n'); raise SystemExit(3)"
    with Child(python(code)) as child:
        assert child.wait(60) == 3
    assert child.how_it_ended() == "ended with code 3: RuntimeError: no memory"
    assert child.printed().splitlines() == ["loss 0.5", "RuntimeError: no memory"]


def test_the_signal_is_named() -> None:
    with Child(python("import os; print('here', flush=True); os.kill(os.getpid(), 11)")) as child:
        assert child.wait(60) == -signal.SIGSEGV
        assert child.how_it_ended() == "was killed by SIGSEGV: here"
    assert exit_words(-77) == "was killed by signal 77"


def test_one_that_does_not_end_in_time_is_told_with_its_last_line() -> None:
    with Child(python("import time; print('waits', flush=True); time.sleep(600)")) as child:
        until(child.printed)
        assert child.wait(0.05) is None
        assert child.how_it_ended() == "did not answer within 50 ms: waits"
        pid = child.pid
    assert not lives(pid) and child.wait() == -signal.SIGKILL


def test_only_the_end_of_a_long_output_is_read(tmp_path: Path) -> None:
    with Child(python("print('x' * 100_000); print('end ' * 200); print('  ')")) as child:
        child.wait(60)
    assert len(child.printed()) == 16_000
    assert last_line(child.printed()) == ("end " * 200)[:300]
    (tmp_path / "words").write_bytes(b"\xff\nthe end\n")
    assert printed_to(tmp_path / "words") == "\ufffd\nthe end\n" and printed_to(tmp_path / "none") == ""


def test_a_command_that_is_not_there_is_an_error_in_words() -> None:
    with Child(["no-such-command"]) as child:
        assert child.wait(60) == 127
    assert child.how_it_ended() == "ended with code 127: can't start no-such-command: No such file or directory"


def test_what_it_is_given_and_what_is_dropped() -> None:
    code = "import os, sys; print('dropped'); print(sys.stdin.read(), os.environ['WORD'], file=sys.stderr)"
    with Child(python(code), given="some words", output=Printed.DROPPED, environment={"WORD": "x"}) as child:
        assert child.wait(60) == 0
    assert child.printed() == "some words x\n"


# ---- signals ----


def test_signals_are_handled_as_if_nobody_stood_between() -> None:
    code = (
        "import signal; names = ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGPIPE', 'SIGUSR1', 'SIGTSTP', 'SIGCHLD');"
        "print(*(int(signal.getsignal(getattr(signal, one)) == signal.SIG_IGN) for one in names));"
        "print(signal.pthread_sigmask(0, []))"
    )
    plain = subprocess.run(python(code), capture_output=True, text=True, check=True).stdout
    with Child(python(code)) as child:
        assert child.wait(60) == 0
    assert child.printed() == plain
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Child(python(code)) as child:
            child.wait(60)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert child.printed().split()[2] == "1"


def test_a_signal_reaches_the_command() -> None:
    code = (
        "import signal, time; signal.signal(15, lambda *_: print('saved', flush=True)); print('ready', flush=True)\n"
        "while True: time.sleep(9)"
    )
    with Child(python(code)) as child:
        until(child.printed)
        child.signal(signal.SIGTERM)
        until(lambda: "saved" in child.printed())
        child.signal(signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL
        child.signal(signal.SIGTERM)  # it has ended: nobody gets it


def test_its_keeper_stays_when_the_whole_job_gets_a_signal() -> None:
    code = "import signal, time; [signal.signal(one, 1) for one in (1, 2, 10, 15)]; print('ready', flush=True); time.sleep(600)"
    with Child(python(code)) as child:
        until(child.printed)
        keeper = psutil.Process(child.pid).ppid()
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.kill(keeper, one)
        assert child.wait(0.1) is None and lives(keeper)


# ---- nothing is left behind ----


def test_a_tree_ends_with_its_owner_though_it_ignores_signals_and_left_the_session(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="any"), Child(tree(tmp_path)):
        pids = grown(tmp_path)
        raise RuntimeError("any")
    assert not any(map(lives, pids))


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    with Child(leaves_a_tree(tmp_path)) as child:
        assert child.wait(60) == 0
        assert not any(map(lives, grown(tmp_path)))


def test_in_the_foreground_it_may_leave_something_behind(tmp_path: Path) -> None:
    with Child(leaves_a_tree(tmp_path), foreground=True, output=Printed.SHOWN, errors=Printed.SHOWN) as child:
        assert child.wait(60) == 0
    pids = grown(tmp_path)
    assert all(map(lives, pids))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_processes_that_fork_on_and_on_are_ended() -> None:
    """Each forks the next one and ends, so that a list of them is always late."""
    chain = "if not os.fork():\n while True:\n  if os.fork(): os._exit(0)\n"
    code = f"import os\nos.write(1, b'begins')\n{chain}os.wait()"
    with Child(python(code)) as child:
        until(child.printed)
        session = child.pid
        time.sleep(0.1)
    assert not [one for one in psutil.process_iter() if lives(one.pid) and session_of(one.pid) == session]


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


@pytest.fixture
def starter() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
        started.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


ASKER = """
import os, sys, time
from flatout.base.child import Child
with Child(sys.argv[2:]) as child:
    if sys.argv[1] == "forked" and not os.fork():
        print(os.getpid(), flush=True)
        open(sys.argv[-1] + "/fork.pid", "w").write(str(os.getpid()))
        time.sleep(60)  # and holds what its parent had open
    time.sleep(600)
"""


@pytest.mark.parametrize("how", ["alone", "forked"])
def test_a_killed_owner_leaves_nothing(how: str, tmp_path: Path, starter: Callable[..., subprocess.Popen[bytes]]) -> None:
    owner = starter(sys.executable, "-c", ASKER, how, *tree(tmp_path))
    pids = grown(tmp_path)
    owner.kill()
    until(lambda: not any(map(lives, pids)))
    if how == "forked":
        os.kill(int((tmp_path / "fork.pid").read_text()), signal.SIGKILL)


def test_a_killed_keeper_takes_its_command_along(tmp_path: Path) -> None:
    with Child(python("import time; time.sleep(600)")) as child:
        pid = child.pid
        os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL
    until(lambda: not lives(pid))


def test_nothing_that_flatout_started_is_left_when_it_is_killed(
    tmp_path: Path, starter: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Trials of plan and boost, workers, layouts that are tried, drills, probes, and the script that boost runs."""
    owner = starter(sys.executable, str(HERE / "every_child.py"), str(tmp_path))
    pids = grown(tmp_path, 2 * KINDS)
    all_pids = {*pids, *(one.pid for one in psutil.Process(owner.pid).children(recursive=True))}
    assert len(all_pids) > 3 * KINDS - 2  # most have a keeper or a template of their own
    owner.kill()
    owner.wait()
    until(lambda: not any(map(lives, all_pids)))


# ---- messages ----


@pytest.fixture
def pipe() -> Iterator[tuple[Messages, int]]:
    read_from, write_to = os.pipe()
    yield Messages(read_from), write_to
    os.close(read_from)


def test_messages_come_whole(pipe: tuple[Messages, int]) -> None:
    messages, write_to = pipe
    os.write(write_to, b'{"a": 1}\n{"b"')
    assert messages.receive(1) == {"a": 1}
    with pytest.raises(TimeoutError):
        messages.receive(0)
    os.write(write_to, b": 2}\n")
    assert messages.receive(None) == {"b": 2}
    os.write(write_to, b'{"half": ')
    os.close(write_to)
    with pytest.raises(EOFError, match=r"""closed in the middle of a message: '\{"half": '"""):
        messages.receive(1)


@pytest.mark.parametrize("line", [b"Segmentation fault", b'{"half": \n', b"[1, 2]", b"\xff\xfe"])
def test_what_is_no_message_is_an_error_in_words(line: bytes, pipe: tuple[Messages, int]) -> None:
    messages, write_to = pipe
    os.write(write_to, line + b'\n{"next": 1}\n')
    with pytest.raises(BadMessage, match=r"expected a .*JSON.*, got '"):
        messages.receive(1)
    while (found := _next(messages)) is None:
        pass
    assert found == {"next": 1}
    os.close(write_to)


def _next(messages: Messages) -> dict[str, int] | None:
    try:
        return messages.receive(1)
    except BadMessage:
        return None


def test_a_question_to_nobody_is_an_error_in_words() -> None:
    questions = Questions()
    questions.hand_over()
    with pytest.raises(EOFError, match="the pipe was closed"):
        questions.ask({"what": 1})
    with pytest.raises(EOFError, match="the pipe was closed"):
        questions.answer(1)
    questions.close()
