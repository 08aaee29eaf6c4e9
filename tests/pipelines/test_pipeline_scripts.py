"""Pipelines of scripts: what runs again and what does not, kills, faults, and stages side by side."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pipelines_here import COPY, Here, script

from flatout.base.errors import RunBusy, UsageError
from flatout.store.lock import FileLock


@pytest.fixture
def chain(here: Here) -> Here:
    """b of a, c of b; d of another file."""
    here.write("other.txt", "o\n")
    return here.stages(
        third=script("python twice.py b.txt c.txt", "c.txt"),
        second=script("python twice.py a.txt b.txt", "b.txt"),
        apart=script("python twice.py other.txt d.txt", "d.txt"),
    )


def test_stages_run_in_order_and_only_what_changed_runs_again(chain: Here) -> None:
    assert chain.did() == {"second": "ran", "third": "ran", "apart": "ran"}
    assert chain.read("c.txt") == "a\n" * 4
    assert set(chain.did().values()) == {"unchanged"} and not chain.said
    chain.write("a.txt", "b\n")
    outcome = chain.run()
    assert {name: one.status for name, one in outcome.stages.items()} == {"second": "ran", "third": "ran", "apart": "unchanged"}
    assert outcome.stages["second"].why == ("a.txt changed",) and outcome.stages["third"].why == ("b.txt changed",)
    assert chain.read("c.txt") == "b\n" * 4


def test_a_comment_does_not_run_a_stage_again_and_a_constant_of_a_helper_does(here: Here) -> None:
    here.write("script.py", "from helper import times\nopen('b.txt', 'w').write('x' * times())\n")
    here.write("helper.py", "import deeper\ndef times():\n    return deeper.COUNT\n")
    here.write("deeper.py", "COUNT = 3\n")
    here.stages(one=script("python script.py", "b.txt"))
    assert here.did() == {"one": "ran"}
    here.write("deeper.py", '"""Now with a comment."""\n\n# really\nCOUNT = 3\n')
    here.write("helper.py", "import deeper\ndef times():\n    '''A docstring.'''\n    return deeper.COUNT  # three\n")
    assert here.did() == {"one": "unchanged"}
    here.write("deeper.py", "COUNT = 4\n")
    outcome = here.run()
    assert outcome.stages["one"].status == "ran" and "COUNT" in outcome.stages["one"].why[0]
    assert here.read("b.txt") == "xxxx"


def test_an_output_that_is_gone_or_was_edited_comes_back(chain: Here) -> None:
    chain.run()
    (chain.folder / "b.txt").unlink()
    assert chain.did()["second"] == "restored" and chain.read("b.txt") == "a\n" * 2
    chain.write("b.txt", "edited by hand\n")
    assert chain.did() == {"second": "restored", "third": "unchanged", "apart": "unchanged"}
    assert chain.read("b.txt") == "a\n" * 2
    assert chain.read("built/.pipeline/aside/b.txt.1") == "edited by hand\n" and "moved to" in chain.notes()


def test_a_file_that_was_there_before_is_moved_aside_and_never_lost(here: Here) -> None:
    here.write("b.txt", "mine\n")
    here.stages(one=script("python twice.py a.txt b.txt", "b.txt"))
    assert here.did() == {"one": "ran"}
    assert here.read("built/.pipeline/aside/b.txt.1") == "mine\n"


def test_another_folder_takes_the_results(chain: Here, tmp_path: Path) -> None:
    chain.run()
    shutil.copytree(chain.folder, tmp_path / "clone", ignore=shutil.ignore_patterns("built", "[bcd].txt"))
    clone = Here(tmp_path / "clone", chain.cache)
    assert set(clone.did().values()) == {"restored"}
    assert clone.read("c.txt") == chain.read("c.txt")
    assert set(clone.did().values()) == {"unchanged"}


def test_a_damaged_kept_result_is_never_taken(chain: Here) -> None:
    chain.run()
    (chain.folder / "b.txt").unlink()
    for path in chain.cache.rglob("objects/*/*"):
        path.chmod(0o644)
        path.write_bytes(b"damaged")
    assert chain.did()["second"] == "ran" and chain.read("b.txt") == "a\n" * 2


def test_a_stage_that_fails_stops_what_waits_for_it_alone(chain: Here) -> None:
    chain.write("twice.py", f"{COPY}\nif target == 'b.txt':\n    raise SystemExit('no room')\n")
    outcome = chain.run()
    assert {name: one.status for name, one in outcome.stages.items()} == {
        "second": "failed", "third": "not run", "apart": "ran",
    }  # fmt: skip
    assert outcome.exit_code == 1 and "no room" in outcome.stages["second"].words
    assert "built/.pipeline/logs/second.log" in outcome.stages["second"].words
    chain.write("twice.py", COPY)
    assert chain.did() == {"second": "ran", "third": "ran", "apart": "ran"}


def test_a_stage_that_hangs_is_stopped_with_its_processes(here: Here) -> None:
    here.write("hang.py", "import subprocess\nchild = subprocess.Popen(['sleep', '99'])\n"
               "open('pid', 'w').write(str(child.pid))\nchild.wait()\n")  # fmt: skip
    here.stages(one=script("python hang.py", "b.txt", limit="1 s"))
    outcome = here.run()
    assert outcome.stages["one"].status == "failed" and "did not end within 1 s" in outcome.stages["one"].words
    with pytest.raises(ProcessLookupError):
        os.kill(int(here.read("pid")), 0)


def test_a_script_that_does_not_write_what_it_declares_fails(here: Here) -> None:
    here.stages(one=script("python twice.py a.txt elsewhere.txt", "b.txt"))
    outcome = here.run()
    assert outcome.exit_code == 1 and "did not write b.txt" in outcome.stages["one"].words


def test_a_file_that_a_script_does_not_declare_is_named(here: Here) -> None:
    here.write("two.py", "import pathlib\npathlib.Path('b.txt').write_text('b')\npathlib.Path('hidden.txt').write_text('h')\n")
    here.stages(one=script("python two.py", "b.txt"))
    assert here.run().exit_code == 0
    assert "hidden.txt" in here.notes() and "do not list" in here.notes()


def test_a_script_that_changes_what_it_reads_fails(here: Here) -> None:
    here.write("change.py", "open('b.txt', 'w').write(open('a.txt').read())\nopen('a.txt', 'a').write('more\\n')\n")
    here.stages(one=script("python change.py", "b.txt", inputs=["a.txt"]))
    outcome = here.run()
    assert outcome.stages["one"].status == "failed" and "a.txt changed" in outcome.stages["one"].words


def test_another_result_with_nothing_changed_is_said(here: Here) -> None:
    here.write("now.py", "import time\nopen('b.txt', 'w').write(str(time.time_ns()))\n")
    here.stages(one=script("python now.py", "b.txt"), two=script("python twice.py b.txt c.txt", "c.txt"))
    here.run()
    assert here.did(fresh=["one"]) == {"one": "ran", "two": "ran"}
    assert "gave another result than before although nothing changed (b.txt)" in here.notes()
    assert here.did(fresh=["two"]) == {"one": "unchanged", "two": "ran"}
    assert "another result" not in here.notes()


def test_a_second_pipeline_at_once_is_refused(chain: Here) -> None:
    (chain.folder / "built" / ".pipeline").mkdir(parents=True)
    lock = FileLock(chain.folder / "built" / ".pipeline" / "lock")
    assert lock.take()
    with pytest.raises(RunBusy, match=str(os.getpid())):
        chain.run()
    lock.release()
    assert set(chain.did().values()) == {"ran"}


MEET = """
import os, sys, time
mine = sys.argv[1]
other = {"one": "two", "two": "one"}[mine]
open(f"{mine}.txt", "w").write("here")
while not os.path.exists(f"{other}.txt"):
    time.sleep(0.01)
"""


def test_stages_that_need_not_wait_run_side_by_side(here: Here) -> None:
    """Each waits until the other has begun: one after another they would not end."""
    here.write("meet.py", MEET)
    here.stages(
        **{name: script(f"python meet.py {name}", f"{name}.txt", limit="20 s", needs={"cores": 0.5}) for name in ("one", "two")}
    )
    outcome = here.run()
    assert outcome.exit_code == 0
    work_s, wall_s = outcome.together
    assert work_s > wall_s > 0


@pytest.mark.parametrize("needs", [{"cores": 4096}, {"memory": "900 TB"}])
def test_stages_that_do_not_fit_run_one_after_another(here: Here, needs: dict[str, object]) -> None:
    """A script that finds another one at work fails."""
    here.write(
        "alone.py", "import os, sys, time\nos.mkdir('at_work')\ntime.sleep(0.2)\nos.rmdir('at_work')\nopen(sys.argv[1], 'w')\n"
    )
    here.stages(**{name: script(f"python alone.py {name}.txt", f"{name}.txt", needs=needs) for name in ("one", "two", "three")})
    assert set(here.did().values()) == {"ran"}


def test_a_killed_pipeline_goes_on_and_leaves_no_process(here: Here) -> None:
    here.write("slow.py", "import os, time\nopen('b.txt', 'w').write('half')\nopen('pid', 'w').write(str(os.getpid()))\n"
               "time.sleep(0 if os.path.exists('go') else 60)\nopen('b.txt', 'w').write('whole')\n")  # fmt: skip
    here.stages(
        first=script("python twice.py a.txt f.txt", "f.txt"), one=script("python slow.py", "b.txt", after=["first"]),
        two=script("python twice.py b.txt c.txt", "c.txt"),
    )  # fmt: skip
    command = [sys.executable, "-m", "flatout", "pipeline", str(here.file)]
    with subprocess.Popen(command, env={**os.environ, "FLATOUT_CACHE": str(here.cache)}, stderr=subprocess.DEVNULL) as running:
        while not (here.folder / "pid").exists():
            assert running.poll() is None
            time.sleep(0.02)
        running.send_signal(signal.SIGKILL)
    script_pid = int(here.read("pid") or 0)
    ends = time.monotonic() + 20
    while Path(f"/proc/{script_pid}").exists() and "Z" not in Path(f"/proc/{script_pid}/stat").read_text().split()[2]:
        assert time.monotonic() < ends
        time.sleep(0.02)
    here.write("go", "")
    assert here.did() == {"first": "unchanged", "one": "ran", "two": "ran"}
    assert here.read("c.txt") == "wholewhole" and not (here.folder / "built/.pipeline/aside").exists()


def test_the_command_runs_says_and_ends_with_its_codes(chain: Here) -> None:
    environment = {**os.environ, "FLATOUT_CACHE": str(chain.cache)}

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        asked = [sys.executable, "-m", "flatout", "pipeline", *words]
        return subprocess.run(
            asked, cwd=chain.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    done = command("pipeline.yaml", "second")
    assert done.returncode == 0 and "1 stage: 1 ran" in done.stdout and "second: python twice.py a.txt b.txt" in done.stderr
    told = json.loads(command("--json", "--quiet", "--html", "page.html").stdout)
    page = chain.read("page.html")
    assert "all is done" in page and "1 unchanged" in page and "python twice.py a.txt b.txt" in page and "<svg" not in page
    assert page.count("data:image/svg+xml") == 1, "what each stage took"
    assert {one["stage"]: one["did"] for one in told["stages"]} == {"second": "unchanged", "third": "ran", "apart": "ran"}
    look = "import runpy, sys; sys.argv = ['', 'pipeline']; runpy.run_module('flatout', {}, '__main__'); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", look], cwd=chain.folder, env=environment, capture_output=True, text=True, check=True
    )
    assert "3 unchanged" in loaded.stdout
    assert not {"torch", "numpy", "typer", "yaml", "flatout.pipelines.stages.driver"} & set(loaded.stdout.split())
    refused = command("--html", "page.html", "--dry")
    assert refused.returncode == 2 and "--dry runs nothing" in refused.stderr
    refused = command("pipeline.yaml", "thrid")
    assert refused.returncode == 2 and "did you mean 'third'?" in refused.stderr
    chain.write("twice.py", "raise SystemExit(7)\n")
    assert command("--html", "page.html").returncode == 1
    assert "a stage failed" in chain.read("page.html") and "with code 7" in chain.read("page.html")


def test_dry_says_what_would_run_and_changes_nothing(chain: Here) -> None:
    chain.run()
    chain.write("a.txt", "b\n" * 2)
    chain.stages(
        third=script("python twice.py b.txt c.txt", "c.txt"), second=script("python twice.py a.txt b.txt", "b.txt"),
        apart=script("python twice.py other.txt d.txt", "d.txt"), new=script("python twice.py other.txt e.txt", "e.txt"),
    )  # fmt: skip
    before = {path: path.stat().st_mtime_ns for path in (chain.folder / "built" / ".pipeline").rglob("*") if path.is_file()}
    would = chain.would()
    assert would["second"].why == ("a.txt changed",) and would["third"].why == ("after second",)
    assert not would["third"].certain and not would["apart"].why
    assert would["second"].forecast.seconds is not None and would["new"].forecast.seconds is None
    assert {path: path.stat().st_mtime_ns for path in before} == before and not (chain.folder / "e.txt").exists()


def test_a_stage_with_a_time_runs_again_when_it_is_over_and_when_the_clock_went_back(here: Here) -> None:
    here.stages(one=script("python twice.py a.txt b.txt", "b.txt", when="every 1 h"))
    assert here.did() == {"one": "ran"}
    assert here.did() == {"one": "unchanged"}
    record = here.folder / "built/.pipeline/stages/one.json"
    for moved_s, why in ((-3601, "it is time"), (86400, "the clock was set back")):
        written = json.loads(record.read_text())
        record.write_text(json.dumps({**written, "at": time.time() + moved_s}))
        outcome = here.run()
        assert outcome.stages["one"].status == "ran" and why in outcome.stages["one"].why[0]


def test_a_stage_that_waits_for_drift_runs_after_each_alarm(here: Here) -> None:
    """The file is the one that `serve --drift` keeps: tests/serving/test_drift.py."""
    here.stages(one=script("python twice.py a.txt b.txt", "b.txt", when="drift in state/drift-people.json"))

    def watch(**state: Any) -> None:
        here.write("state/drift-people.json", json.dumps(state))

    assert here.did() == {"one": "ran"} and here.did() == {"one": "unchanged"}  # no server has watched yet
    for alarmed, moved, status in ((0.0, [], "unchanged"), (time.time() - 3600, ["age"], "unchanged"),
                                   (time.time(), ["age", "job"], "ran")):  # fmt: skip
        watch(alarmed=alarmed, moved=moved)
        outcome = here.run()
        assert outcome.stages["one"].status == status
    assert outcome.stages["one"].why == ("a server has seen drift since: age, job (state/drift-people.json)",)
    for damaged in ("{", "[]", '{"alarmed": "soon", "moved": []}', '{"package": "a"}'):
        here.write("state/drift-people.json", damaged)
        with pytest.raises(UsageError, match=r"drift-people\.json is no state of a drift watch"):
            here.run()


def test_damaged_state_means_that_a_stage_runs_again(chain: Here) -> None:
    chain.run()
    state = chain.folder / "built/.pipeline"
    (state / "stages" / "second.json").write_text('{"flatout_stage": 1, "stage"')
    (state / "history.jsonl").write_bytes(b"\0\xff" * 50)
    assert chain.did() == {"third": "unchanged", "second": "restored", "apart": "unchanged"}


def test_an_environment_variable_that_is_declared_counts(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.write("env.py", "import os\nopen('b.txt', 'w').write(os.environ.get('COLOUR', 'none'))\n")
    here.stages(one=script("python env.py", "b.txt", environment=["COLOUR"]))
    here.run()
    monkeypatch.setenv("COLOUR", "red")
    assert here.did() == {"one": "ran"} and here.read("b.txt") == "red"
    assert here.did() == {"one": "unchanged"}


def test_watching_runs_when_an_input_changes_and_when_there_is_drift(here: Here) -> None:
    here.stages(one=script("python twice.py a.txt b.txt", "b.txt", when="drift in drift-people.json"))
    said = []
    command = [sys.executable, "-m", "flatout", "pipeline", str(here.file), "--watch"]
    with subprocess.Popen(command, env={**os.environ, "FLATOUT_CACHE": str(here.cache)}, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as running:  # fmt: skip
        assert running.stderr is not None
        for line in running.stderr:
            said.append(line)
            if line.startswith("waiting"):
                if any("has seen drift" in one for one in said):
                    break
                if "b\n" not in here.read("b.txt"):
                    assert "or drift in drift-people.json (which is not there yet)" in line
                    here.write("a.txt", "b\n")
                else:
                    here.write("drift-people.json", json.dumps({"alarmed": time.time(), "moved": ["age"]}))
        assert here.read("b.txt") == "b\n" * 2
        assert "one: a server has seen drift since: age (drift-people.json)\n" in said
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
