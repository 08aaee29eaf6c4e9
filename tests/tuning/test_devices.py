"""Several devices, ranks and what is lost of them: each trial's score is the same, and so is the winner."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from interpreters import run_forked
from known_machine import keep_ceilings
from stacking import DIGITS

import flatout as fo
from flatout.base.answering_child import AnsweringChild
from flatout.base.errors import MachineError, PeerLost, TrainingError, UsageError
from flatout.base.events import read_events
from flatout.tuning.crew.crew import TrialCrew
from flatout.tuning.crew.far import answer_rank_0, far_seats
from flatout.tuning.crew.own_seats import on_devices, own_seats
from flatout.tuning.crew.placing import TrialWork
from flatout.tuning.crew.seats import CrewSeat
from flatout.tuning.start import StudyStart
from flatout.tuning.study.driver import Driver
from flatout.tuning.training.layout import STACKED, Layout
from flatout.world.joining import ProcessPlace

STEPS = 32
TWO = "cpu,cpu"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, and with what was measured of this machine."""
    folder = tmp_path_factory.mktemp("devices")
    keep_ceilings(folder / "cache")
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**DIGITS, "budget": f"{STEPS} steps"}))
    return folder


@pytest.fixture(scope="module", autouse=True)
def _stacks_of_four() -> Iterator[None]:
    """Measured rates would differ from study to study, and with them its waves."""
    layout = Layout(STACKED, width=4, threads=1, rates={"stacked": 1000.0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialCrew, "measure_layout", lambda self, trials, limit_s: layout)
        patch.setattr("flatout.tuning.study.driver._MEASURING_S", 1e9)
        patch.setattr("flatout.tuning.study.saving.LEAST_S", 0.0)
        patch.setattr("flatout.tuning.study.saving._SHARE", math.inf)
        patch.setattr("flatout.tuning.study.finals._SIZES", ((1, 1, 3),))
        yield


@pytest.fixture(scope="module", autouse=True)
def _torch_is_imported_once() -> Iterator[None]:
    """Processes of all studies here are forked from one template, as those of one study are."""
    with StudyStart() as start:
        tuned.start = start  # type: ignore[attr-defined]
        yield


def tuned(place: Path, runs: Path, device: str | None = TWO) -> fo.Study:
    space = {"lr": "1e-3..3e-1", "model.hidden": [[8], [16]]}
    start: StudyStart = tuned.start  # type: ignore[attr-defined]
    return fo.tune(place / "recipe.yaml", space, trials=8, device=device, runs=runs, cache=place / "cache", start=start)


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> fo.Study:
    """On two devices, and nothing happens to them."""
    return tuned(place, tmp_path_factory.mktemp("whole"))


def everything(study: fo.Study) -> list[Any]:
    """What a study found, without times."""
    events = [event for event in study.folder.events() if event["kind"] in ("rung", "finals")]
    return [[event.get(key) for key in ("to", "trials", "scores", "failed", "key")] for event in events]


def test_a_killed_process_changes_nothing(
    place: Path, whole: fo.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it trains, in the second rung: with it go weights that only it had."""
    ask, killed = AnsweringChild.ask, list[int]()

    def killed_while_it_trains(self: AnsweringChild, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
        if question.get("train", {}).get("to") == 4 and not killed:
            assert self._running is not None
            killed.append(self._running.child.pid)
            threading.Timer(0.02, os.kill, (killed[0], signal.SIGKILL)).start()
        return ask(self, question, limit_s)

    monkeypatch.setattr(AnsweringChild, "ask", killed_while_it_trains)
    study = tuned(place, tmp_path)
    assert killed and everything(study) == everything(whole)
    assert study.result["winner"] == whole.result["winner"]


def test_a_killed_study_of_two_devices_goes_on_with_one_to_the_same_winner(
    place: Path, whole: fo.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, count = Driver._trained, [0]

    def dies(self: Driver, rung: Any) -> Any:
        count[0] += 1
        if count[0] == 3:
            raise SystemExit(9)
        return trained(self, rung)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Driver, "_trained", dies)
        tuned(place, tmp_path)
    study = tuned(place, tmp_path, None)
    sittings = [event for event in study.folder.events() if event["kind"] in ("begun", "resumed")]
    assert [event["devices"] for event in sittings] == [["cpu", "cpu"], ["cpu"]]
    assert everything(study) == everything(whole) and study.result["winner"] == whole.result["winner"]


@pytest.mark.parametrize("asked", ["tpu", "cpu,cuda:0", "", "cuda:x"])
def test_devices_that_are_not_there(asked: str, place: Path, tmp_path: Path) -> None:
    with pytest.raises((UsageError, MachineError), match="device"):
        tuned(place, tmp_path, asked)
    assert not list(tmp_path.iterdir())


def test_a_recipe_without_a_file_is_trained_on_one_device() -> None:
    asked, devices = on_devices(fo.Recipe(**{**DIGITS, "settings": {}}), TWO)
    assert devices == ["cpu", "cpu"] and asked.pins["device"] == "cpu"
    assert [seat.name for seat in own_seats(asked, None, devices, None)] == ["cpu"]
    with pytest.raises(UsageError, match=r"write it to a \.yaml"):
        own_seats(asked, None, devices, ProcessPlace(0, 2, 0, 2, "localhost", 0))


class Stored(dict[str, str]):
    """What ranks write down for each other; `get` waits."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def set(self, name: str, value: str) -> None:
        with self.changed:
            self[name] = value
            self.changed.notify_all()

    def get(self, name: str) -> str:  # type: ignore[override]
        with self.changed:
            assert self.changed.wait_for(lambda: name in self, 20)
            return self[name]

    def set_timeout(self, limit: Any) -> None:
        pass


class Slow:
    """Trains for as long as it is let."""

    def __init__(self, begun: threading.Event, ends: threading.Event) -> None:
        self.begun, self.ends = begun, ends

    def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
        ((verb, given),) = question.items()
        if verb != "train":
            return {"seen": True, "identity": "a", "total_steps": 9, "state_bytes": 12.0, "metric": "accuracy"}
        self.begun.set()
        assert self.ends.wait(20)
        return {"scores": {str(number): number / 10 for number, _ in given["trials"]}, "seconds": 1.0}

    def stop(self) -> None:
        self.ends.set()


class Ranks:
    """Rank 0 in this thread, two others in threads of their own."""

    def __init__(self, until_done: ExitStack) -> None:
        self.store, self.ended = Stored(), dict[int, Any]()
        self.members = [Slow(threading.Event(), threading.Event()) for _ in range(3)]
        self.threads = [threading.Thread(target=self._answer, args=(rank,)) for rank in (1, 2)]
        for thread in self.threads:
            thread.start()
        own = CrewSeat("own", lambda: self.members[0])
        others = until_done.enter_context(far_seats(self._place(0), self.store, lambda: "runs/study-1"))
        self.crew = TrialCrew([own, *others], isolated=True)

    def _place(self, rank: int) -> ProcessPlace:
        return ProcessPlace(rank, 3, rank, 3, "localhost", 0)

    def _answer(self, rank: int) -> None:
        seats = [CrewSeat("cpu", lambda: self.members[rank])]
        try:
            self.ended[rank] = answer_rank_0(self._place(rank), self.store, seats)
        except Exception as error:
            self.ended[rank] = error

    def joined(self) -> dict[int, Any]:
        for thread in self.threads:
            thread.join(20)
        return self.ended


def units(count: int) -> list[TrialWork]:
    layout = Layout(STACKED, width=2, rates={"stacked": 100.0})
    return [TrialWork([(number, []) for number in range(2 * count)], 0, 9, layout)]


def test_ranks_train_for_the_first_and_one_may_be_lost(tmp_path: Path) -> None:
    with ExitStack() as until_done:
        ranks = Ranks(until_done)
        assert ranks.crew.meet()["identity"] == "a"
        assert [name.partition(" on ")[0] for name in ranks.crew.names] == ["own", "cpu of rank 1", "cpu of rank 2"]
        ranks.crew.keep_states_in(tmp_path)

        def lose_rank_1() -> None:
            ranks.members[1].begun.wait(20)
            ranks.crew._members[1].line.hang_up()  # type: ignore[union-attr]
            for member in (ranks.members[0], ranks.members[2]):
                member.ends.set()

        loser = threading.Thread(target=lose_rank_1)
        loser.start()
        found = ranks.crew.train(units(5), "choose")
        loser.join()
        assert found.scores == {number: number / 10 for number in range(10)}
        assert "rank 1" in " ".join(found.lost) and "is gone" in " ".join(found.lost)
        assert [name.partition(" on ")[0] for name in ranks.crew.names] == ["own", "cpu of rank 2"]
        assert ranks.crew.train(units(2), "choose").scores.keys() == set(range(4))
    ended = ranks.joined()
    assert isinstance(ended[1], PeerLost) and ended[2] == "runs/study-1"


def test_ranks_say_why_the_first_has_ended() -> None:
    with pytest.raises(UsageError), ExitStack() as until_done:
        ranks = Ranks(until_done)
        raise UsageError("trials: expected 1 or more")
    for error in ranks.joined().values():
        assert isinstance(error, TrainingError) and error.exit_code == 2 and "expected 1 or more" in str(error)


def test_a_stranger_is_not_let_in() -> None:
    with ExitStack() as until_done:
        ranks = Ranks(until_done)
        port = json.loads(ranks.store["tune"])["port"]
        with pytest.raises(OSError):
            socket.create_connection(("localhost", port), 5).close()  # all are there: nobody listens any more
    ranks.joined()


def test_other_code_on_another_rank_is_an_error() -> None:
    with pytest.raises(TrainingError, match=r"rank 2.*another identity"), ExitStack() as until_done:
        ranks = Ranks(until_done)
        asked = ranks.members[2].ask
        ranks.members[2].ask = lambda question, limit_s: {**asked(question, limit_s), "identity": "b"}  # type: ignore[method-assign]
        ranks.crew.meet()
    ranks.joined()


def test_under_torchrun(place: Path) -> None:
    arguments = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "flatout", "tune"]
    arguments += [str(place / "recipe.yaml"), "lr=1e-3..3e-1", "--trials", "4", "--runs", str(place / "runs"), "--json"]
    paths = os.pathsep.join(part for part in (str(Path(fo.__file__).parent.parent), os.environ.get("PYTHONPATH", "")) if part)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "FLATOUT_CACHE": str(place / "cache")}
    ended = run_forked(arguments, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["result"]["finished_trials"] >= 1, "rank 0 alone prints"
    (log,) = (place / "runs").glob("*/study.jsonl")
    events = list(read_events(log))
    assert len(events[0]["devices"]) == 2 and "rank 1" in events[0]["devices"][1]
    assert not any(event["lost"] for event in events if event["kind"] == "rung")
