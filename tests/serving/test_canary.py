"""A new version beside the one that serves: shared requests, verdicts, rollback, labels, and what must not harm anybody."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaged_runs import change_json
from served_rows import table_requests
from servers import Crowd, RunningServer

from flatout.base.errors import UsageError
from flatout.base.tree import to_data, to_text
from flatout.packaging.package import open_package
from flatout.serving.asking import Timing
from flatout.serving.canary import tally
from flatout.serving.canary.answer_ids import AnswerIds
from flatout.serving.canary.comparable import answer_kind, check_replaces
from flatout.serving.canary.judge import CanaryJudge
from flatout.serving.canary.limits import CanaryLimits, parse_shares
from flatout.serving.canary.options import CanaryOptions
from flatout.serving.canary.rollout import Rollout, RolloutStatus
from flatout.serving.canary.rollout_view import rollout_doc, state_files
from flatout.serving.counters import SharedCounters
from flatout.serving.front.canary_split import CanarySplit, ShadowCopy, SplitRule
from flatout.serving.front.exchange import CANARY, INSTEAD, STABLE, UNTIMED
from flatout.serving.front.refusals import Refusal
from flatout.serving.front.watching import MOMENTS, AnsweredRequest
from flatout.serving.one_of_each_batch import OneOfEachBatch
from flatout.serving.shared_watching import SharedWatching

FAULTY = """
import os, time
from functools import partial
from flatout.serving import loading
from flatout.serving.canary import rollout
rollout._FIRST_PATIENCE_S = rollout._LEAST_PATIENCE_S = 0.3
first = loading.LoadedModel.__init__

def faulty(self, order, package, *more):
    first(self, order, package, *more)
    def run(whole, fault, *given):
        if fault == "raises": raise RuntimeError("it is broken")
        if fault == "ends": os._exit(7)
        if fault == "hangs": time.sleep(3600)
        return whole(*given)
    for name in ("run", "run_arrays"):
        if hasattr(self.runtime, name):
            setattr(self.runtime, name, partial(run, getattr(self.runtime, name), package.card["run"]["name"]))

loading.LoadedModel.__init__ = faulty
"""


@pytest.fixture(scope="module")
def version(packaged: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Another package that answers the same, by the name of its run."""
    folder = tmp_path_factory.mktemp("versions")

    def one(name: str) -> Path:
        if not (folder / name).exists():
            packaged("classes_table").copy(folder / name)
            change_json(folder / name, "card.json", lambda card: card["run"].__setitem__("name", name))
        return folder / name

    return one


def verdict(state: Path) -> dict[str, Any]:
    return dict(json.loads((state / "canary-people.json").read_text()))


@pytest.mark.parametrize(
    ("fault", "why"), [("raises", ["errors"]), ("ends", ["its process ended 2 times", "errors"]), ("hangs", ["errors"])]
)
def test_a_bad_canary_is_rolled_back_and_no_client_notices(
    fault: str, why: list[str], version: Callable[[str], Path], packaged: Callable[[str], Any], tmp_path: Path
) -> None:
    arguments = (f"people={packaged('classes_table').path}", "--canary", version(fault), "--share", "50%", "--workers", 1)
    with RunningServer(*arguments, "--state", tmp_path, code=FAULTY) as server:
        with Crowd(server, table_requests(packaged("classes_table"), "people")) as crowd:
            server.until(lambda: "rolled back after" in server.said, "roll back")
            crowd.some_more(30)
        assert not crowd.wrong and not crowd.lost and set(crowd.versions) == {"1"}
        found = verdict(tmp_path)
        assert found["status"] == "rolled back" and found["reason"].startswith(tuple(why))
        receipt = found["receipt"]
        assert receipt["settings"] == {"package": open_package(packaged("classes_table").path).folder.hash}
        assert receipt["entries"][0]["verdict"] == "rejected" and receipt["entries"][0]["name"] == "errors"
        assert sum(found["sums"][1][:1]) <= 500, "a canary that fails every request gets those of a few looks"
        told = 'flatout_canary{model="people",status="rolled back"} 1'
        server.until(lambda: told in server.get("/metrics").body.decode(), "say so in its metrics")
        server.until(lambda: len(server.executors()) == 1, "end the canary's process")


@pytest.fixture
def deployment(version: Callable[[str], Path], packaged: Callable[[str], Any], tmp_path: Path) -> Iterator[Any]:
    """Starts a server with a good canary that has half of the requests, with the same state each time."""
    arguments = [f"people={packaged('classes_table').path}", "--canary", version("good"), "--share", "50%", "--workers", 1]
    arguments += ["--canary-key", "header:x-user", "--state", tmp_path, "--keep-old", "1 s"]
    yield lambda: RunningServer(*arguments)


def test_a_killed_server_comes_back_where_it_was_and_a_person_decides(deployment: Any, packaged: Any, tmp_path: Path) -> None:
    row = table_requests(packaged("classes_table"), "people")[0]

    def ask(server: RunningServer, user: int) -> Any:
        return server.post(row.path, row.body, headers={"x-user": f"user-{user}"})

    with deployment() as server:
        server.until(lambda: "as a canary" in server.said, "start the canary")
        server.until(lambda: any(ask(server, user).headers["x-flatout-version"] == "2" for user in range(30)), "share")
        versions = [ask(server, user).headers["x-flatout-version"] for user in range(24)]
        assert len(server.executors()) == 3, "the stable version, the canary, and the control"
        stands = server.get("/canary").json
        assert stands["status"] == "running" and "errors" in stands["not_enough_evidence_yet"]
        assert "canary of people: 50% of the requests" in server.get("/live.json").json["notes"][0]
        assert set(versions) == {"1", "2"}
        answer = ask(server, 0)
        name, label = answer.headers["x-flatout-id"], answer.json["class"]
        assert server.post("/feedback", {"id": name, "label": label}).json == {"counted": True, "why": ""}
        again = server.post("/feedback", {"id": name, "label": label})
        assert again.status == 409 and "has a label already" in again.error
        unknown = server.post("/feedback", {"id": name[:-1] + "x", "label": label})
        assert unknown.status == 404 and "X-Flatout-Id" in unknown.error
        other = ask(server, 1).headers["x-flatout-id"]
        wrong = server.post("/feedback", {"id": other, "label": "no such class"})
        assert wrong.status == 400 and "expected one of" in wrong.error
        assert server.post("/feedback", b"[]").status == 400
        both = server.post("/feedback", [{"id": other, "label": label}, {"id": name, "label": label}]).json
        assert both["counted"] == 1 and [one["status"] for one in both["labels"]] == [200, 409]
        time.sleep(1.2)  # its state is written once a second
        before = verdict(tmp_path)["sums"]
        os.kill(server.pid, signal.SIGKILL)
    assert before[0][tally.LABELLED] + before[1][tally.LABELLED] == 2

    with deployment() as server:
        server.until(lambda: "as a canary" in server.said, "start the canary")
        assert "running, as before, after" in server.said
        server.until(lambda: ask(server, versions.index("2")).headers["x-flatout-version"] == "2", "share")
        assert [ask(server, user).headers["x-flatout-version"] for user in range(24)] == versions
        assert server.post("/feedback", {"id": name, "label": label}).status == 409
        late = ask(server, 0).headers["x-flatout-id"]
        assert server.post("/canary", {"do": "promote"}).status == 200
        server.until(lambda: {ask(server, user).headers["x-flatout-version"] for user in range(24)} == {"2"}, "promote")
        assert server.post("/canary", {"do": "promote"}).status == 409
        told = server.post("/feedback", {"id": late, "label": label}).json
        assert told == {"counted": False, "why": "too late to count: the canary was promoted"}
        server.until(lambda: len(server.executors()) == 1, "end the old version when it need not be warm any more")
        assert {ask(server, user).headers["x-flatout-version"] for user in range(10)} == {"2"}

    with deployment() as server:  # the same command serves what was promoted
        assert "promoted, as before" in server.said
        assert len(server.executors()) == 1 and ask(server, 0).status == 200
    assert verdict(tmp_path)["sums"][0][0] >= before[0][0]


def test_a_shadow_gets_copies_and_answers_nobody(version: Callable[[str], Path], packaged: Any, tmp_path: Path) -> None:
    arguments = (f"people={packaged('classes_table').path}", "--shadow", version("good"), "--state", tmp_path, "--workers", 1)
    rows = table_requests(packaged("classes_table"), "people")
    with RunningServer(*arguments) as server:
        server.until(lambda: "as a shadow" in server.said, "start the shadow")
        with Crowd(server, rows, threads=2) as crowd:
            crowd.some_more(40)
        assert not crowd.wrong and not crowd.lost and set(crowd.versions) == {"1"}
        many = server.post("/predict", b"[" + b",".join(row.body for row in rows) + b"]")
        assert len(many.json["predictions"]) == len(rows)

        def compared(how: str) -> int:
            lines = server.get("/metrics").body.decode().splitlines()
            return sum(int(line.split()[-1]) for line in lines if f'compared="{how}"' in line)

        server.until(lambda: compared("same") + compared("not_copied") >= crowd.answered // 2, "compare answers")
        assert compared("different") == 0
        server.until(lambda: "answers: " in receipt_shown(tmp_path)[1], "keep the state of the shadow")
        title, shown = receipt_shown(tmp_path)
        assert title == "shadow of people: running" and " 0 differ; " in shown
        assert verdicts_shown(tmp_path) == {"undecided"}


def test_the_command_receipt_shows_a_canary_and_refuses_other_files(
    version: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from typer.testing import CliRunner

    from flatout.cli.main import app

    def command(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["receipt", *map(str, arguments)], catch_exceptions=True)

    state = tmp_path / "state"
    rollout_of(version("good"), state, []).decide(RolloutStatus.ROLLED_BACK)
    assert "canary of people: rolled back: asked for" in command(state).stdout
    found = json.loads(command(state, "--json", "--html", tmp_path / "page.html").stdout)
    assert found["status"] == "rolled back" and found["stable"] == "old" and found["receipt"]["settings"] == {"package": "old"}
    assert "rolled back: asked for" in (tmp_path / "page.html").read_text()
    (state / "canary-other.json").write_text("{}")
    assert "several canaries" in str(command(state).exception)
    for content in ("{", "[]", "{}", '{"receipt": {"entries": 3}}'):
        (state / "canary-other.json").write_text(content)
        assert "canary-other.json is no state of a canary" in str(command(state / "canary-other.json").exception)


def test_what_can_not_be_a_canary(version: Callable[[str], Path], packaged: Callable[[str], Any], tmp_path: Path) -> None:
    table, other = open_package(packaged("classes_table").path), open_package(packaged("numbers_table").path)
    with pytest.raises(UsageError, match="is the same package as the one that serves people"):
        check_replaces(table, open_package(packaged("classes_table").path), "people")
    with pytest.raises(UsageError, match=r"can't take the place of people: .*has no output"):
        check_replaces(table, other, "people")
    check_replaces(table, open_package(version("good")), "people")
    for written, why in (("5", "between 0% and 100%"), ("25%,5%", "grow"), ("some", "written as 5%")):
        with pytest.raises(UsageError, match=why):
            parse_shares(written)
    assert parse_shares("1%, 5%,25%") == CanaryLimits().stages


# ---- verdicts, from counts ----


def rollout_of(package: Path, folder: Path, said: list[str], **changed: Any) -> Rollout:
    options = CanaryOptions("people", package, folder, **changed)
    return Rollout(options, "old", "new", answer_kind(open_package(package)), said.append)


def traffic(drawn: Any, n: int, errors: float = 0.002, slow: float = 1.0, shares: tuple[float, ...] = (0.5, 0.3, 0.2)) -> Any:
    counts = tally.empty()
    failed = drawn.binomial(n, errors)
    tally.add_requests(counts, n, failed, slow * 0.02 * np.exp(0.4 * drawn.standard_normal(n - failed)))
    counts[tally.PREDICTED][: len(shares)] = drawn.multinomial(n, shares)
    return counts


def run(rollout: Rollout, looks: int, n: int, **canary: Any) -> int:
    """The number of the canary's requests until the verdict."""
    drawn, counted = np.random.default_rng(11), tally.empty((2,))
    for _ in range(looks):
        share = rollout.share
        counted = counted + np.stack([traffic(drawn, round(n * (1 - share))), traffic(drawn, round(n * share), **canary)])
        rollout.look(counted)
        rollout.summary()
        if rollout.is_over:
            return int(counted[1][tally.REQUESTS])
    return 0


def test_stages_follow_evidence_and_an_equal_version_is_promoted(version: Callable[[str], Path], tmp_path: Path) -> None:
    said: list[str] = []
    rollout = rollout_of(version("good"), tmp_path, said)
    assert not rollout.look(tally.empty((2,))) and rollout.share == 0.01  # no traffic: no verdict
    assert rollout.summary()["not_enough_evidence_yet"] and not rollout.summary()["needs"]  # nothing is known of v1 either
    run(rollout, 150, 20_000)
    assert rollout.status is RolloutStatus.PROMOTED and rollout.share == 1.0
    assert "with 97% a bad version is rolled back within" in " ".join(said)
    assert [line for line in said if "it gets" in line] == [
        f"canary of people: nothing bad is seen; it gets {share} of the requests" for share in ("0.05", "0.25")
    ]
    assert rollout.receipt().settings == {"package": "new"} and verdicts_shown(tmp_path) == {"kept"}
    assert receipt_shown(tmp_path)[0].startswith("canary of people: promoted: no figure is worse than allowed")
    again = rollout_of(version("good"), tmp_path, said)
    assert again.status is RolloutStatus.PROMOTED and again.summary()["requests"] == rollout.summary()["requests"]
    assert Rollout(again.options, "old", "newer", answer_kind(open_package(version("good"))), said.append).share == 0.01


@pytest.mark.parametrize(
    ("bad", "figure"),
    [({"errors": 0.02}, "errors"), ({"slow": 1.3}, "latency"), ({"shares": (0.1, 0.3, 0.6)}, "predictions")],
)
def test_bad_versions_are_rolled_back_in_the_first_stages(
    bad: dict[str, Any], figure: str, version: Callable[[str], Path], tmp_path: Path
) -> None:
    rollout = rollout_of(version("good"), tmp_path, [])
    rollout.save()
    assert "not enough evidence yet: errors, latency p50" in receipt_shown(tmp_path)[1]
    requests = run(rollout, 120, 20_000, **bad)
    assert rollout.status is RolloutStatus.ROLLED_BACK and rollout.reason.startswith(figure)
    assert rollout.stage < 2 and requests < 8_000
    title, shown = receipt_shown(tmp_path)
    assert title == f"canary of people: rolled back: {rollout.reason}"
    assert f"{tally_of(rollout, 0):,} by the stable version, {requests:,} by the canary" in shown
    moved = to_data(rollout_doc(state_files(tmp_path)[0]))["figures"][-1]
    assert moved["figure"].startswith("predictions of") and moved["n"] == requests
    assert (abs(moved["stable"] - moved["other"]) > 0.35) == (figure == "predictions")


def tally_of(rollout: Rollout, arm: int) -> int:
    return int(rollout.summary()["requests"][("stable", "canary")[arm]])


def verdicts_shown(folder: Path) -> set[str]:
    return {row["verdict"] for row in to_data(rollout_doc(state_files(folder)[0]))["figures"]}


def receipt_shown(folder: Path) -> tuple[str, str]:
    """The first line, and all of what `flatout receipt` prints."""
    (state,) = state_files(folder)
    shown = to_text(rollout_doc(state))
    return shown.splitlines()[0], shown


@pytest.mark.parametrize(("slack_s", "status"), [(0.001, RolloutStatus.ROLLED_BACK), (0.02, RolloutStatus.PROMOTED)])
def test_a_latency_within_the_slack_is_not_held_against_a_canary(
    slack_s: float, status: RolloutStatus, version: Callable[[str], Path], tmp_path: Path
) -> None:
    limits = CanaryLimits(stages=(0.25,), latency_slack_s=slack_s)
    rollout = rollout_of(version("good"), tmp_path, [], limits=limits)
    run(rollout, 60, 4000, slow=1.25)  # p50 25 ms instead of 20, p99 63 instead of 51
    assert rollout.status is status


def test_traffic_from_one_key_or_a_few_requests_decide_nothing(version: Callable[[str], Path], tmp_path: Path) -> None:
    rollout, drawn = rollout_of(version("good"), tmp_path, []), np.random.default_rng(1)
    counted = tally.empty((2,))
    counted[1] = traffic(drawn, 20_000, errors=0.5)  # all of it by the canary: nothing to compare it with
    assert not rollout.look(counted) and not rollout.is_over
    few = rollout_of(version("good"), tmp_path / "few", [])
    few.look(np.stack([traffic(drawn, 5000), tally.empty()]))
    assert not few.look(np.stack([traffic(drawn, 10_000), traffic(drawn, 1, errors=1.0)]))  # one error is no verdict


def test_labels_decide_where_nothing_else_differs(version: Callable[[str], Path], tmp_path: Path) -> None:
    rollout = rollout_of(version("good"), tmp_path, [], limits=replace(CanaryLimits(), needs_labels=True))
    kind = answer_kind(open_package(version("good")))
    drawn = np.random.default_rng(2)
    counted = tally.empty((2,))
    for _ in range(40):
        counted = counted + np.stack([traffic(drawn, 500), traffic(drawn, 100)])
        for arm, n, wrong in ((1, 50, 0.1), (2, 10, 0.6)):
            for _ in range(n):
                label = int(drawn.random() < wrong)
                assert rollout.label(AnswerIds(rollout.secret).name(arm, 0.0).decode(), kind.classes[label]).counted
        if rollout.look(counted):
            break
    assert rollout.status is RolloutStatus.ROLLED_BACK and rollout.reason.startswith("wrong answers")


# ---- latencies of batches ----


def answered(batches: list[int], in_all: int = 1) -> list[AnsweredRequest]:
    """Requests of batches by size; each batch has `in_all` times as many rows, the others of which went to other processes."""
    drawn = np.random.default_rng(0)
    return [
        AnsweredRequest(None, b"POST", b"/predict", 200, 1, 9, b"", Timing(0.0, 0.0, compute_s, in_all * size))
        for size, compute_s in zip(batches, drawn.random(len(batches)).tolist(), strict=True)
        for _ in range(size)
    ]


def test_one_request_of_each_batch_is_evidence_of_latency() -> None:
    batches = [1, 50, 3, 7] * 100
    requests = answered(batches)
    chosen = OneOfEachBatch()
    first = chosen.chosen(requests[:30])  # in the middle of a batch
    found = np.concatenate([first, chosen.chosen(requests[30:])])
    taken = [one.timing.compute_s for one, is_alone in zip(requests, found, strict=True) if is_alone]
    assert len(taken) == len(set(taken)) and len(batches) - 1 <= len(taken) <= len(batches)
    assert 80 < OneOfEachBatch().chosen(answered(batches, in_all=4)).sum() < 120  # by each of four processes
    without = [one._replace(timing=Timing()) for one in requests[:5]]
    assert OneOfEachBatch().chosen(without).all() and not len(OneOfEachBatch().chosen([]))


def test_equal_versions_with_slow_batches_are_not_rolled_back() -> None:
    """Batches of 8 in both versions: with every request as evidence half of these are rolled back."""
    drawn, many = np.random.default_rng(3), 12
    judge = CanaryJudge(CanaryLimits(stages=(0.3,)), shape=(many,))
    chosen = [[OneOfEachBatch(), OneOfEachBatch()] for _ in range(many)]
    for _ in range(60):
        counts = [tally.empty((many,)), tally.empty((many,))]
        for place in range(many):
            for arm, batches in enumerate((20, 8)):
                times_s = 0.02 * np.exp(0.5 * drawn.standard_normal(batches))
                requests = [AnsweredRequest(None, b"", b"", 200, 1, 9, b"", Timing(0.0, 0.0, time_s, 8))
                            for time_s in times_s.tolist() for _ in range(8)]  # fmt: skip
                alone = chosen[place][arm].chosen(requests)
                taken = [one.timing.compute_s for one, is_alone in zip(requests, alone, strict=True) if is_alone]
                tally.add_requests(counts[arm][place], len(requests), 0, taken)
        judge.look(*counts)
    assert judge.rolls_back().sum() <= 1


# ---- times are compared under equal load ----


class AskedExchange(ShadowCopy):
    """A request that notes who was asked."""

    def __init__(self) -> None:
        super().__init__(lambda failed, copy: None)
        self.who: list[str] = []


def split_with(share: float, control: bool) -> CanarySplit:
    made = object.__new__(CanarySplit)
    made._rule = SplitRule("people", "2", share, b"0" * 32, None, 60.0, False, None)
    made._stable, made._canary, made._control = "stable", "canary", "control" if control else None  # type: ignore[assignment]
    return made


async def asked_of(share: float, control: bool, fails: str = "") -> list[tuple[list[str], int]]:
    split, found = split_with(share, control), []

    def ask(version: Any, exchange: Any) -> None:
        exchange.who.append(version)
        if version == fails:
            exchange.answered_instead(Refusal(503, "it is busy"))

    for _ in range(4000):
        exchange = AskedExchange()
        split.shared(exchange, ask)
        found.append((exchange.who, exchange.arm))
    return found


def test_a_control_gets_as_many_requests_as_the_canary_and_alone_tells_how_long_the_stable_version_takes() -> None:
    found = asyncio.run(asked_of(0.1, control=True))
    counts = {who: sum(one[0] == [who] for one in found) for who in ("stable", "canary", "control")}
    assert sum(counts.values()) == 4000
    assert 300 < counts["canary"] < 500 and 300 < counts["control"] < 500
    assert {tuple(who): arm for who, arm in found} == {("stable",): UNTIMED, ("canary",): CANARY, ("control",): STABLE}
    without = asyncio.run(asked_of(0.1, control=False))
    assert {tuple(who): arm for who, arm in without} == {("stable",): STABLE, ("canary",): CANARY}


def test_what_a_control_does_not_answer_the_stable_version_answers_and_the_canary_is_not_blamed() -> None:
    found = asyncio.run(asked_of(0.1, control=True, fails="control"))
    assert {tuple(who): arm for who, arm in found} == {
        ("stable",): UNTIMED,
        ("canary",): CANARY,
        ("control", "stable"): UNTIMED,
    }
    blamed = asyncio.run(asked_of(0.1, control=True, fails="canary"))
    assert {tuple(who): arm for who, arm in blamed}[("canary", "stable")] == INSTEAD


def test_untimed_requests_count_as_requests_and_not_as_times() -> None:
    counters = SharedCounters()
    watching = SharedWatching(counters, 0, None)
    for arm in (UNTIMED, UNTIMED, STABLE, CANARY):
        moments = MOMENTS.pack(0.0, 0.0, 0.0, 0.0, 0.0, 0.01, 0.0, 0.0, 0.0, 0.0)
        watching.answered(AnsweredRequest(None, b"POST", b"/predict", 200, 1, 10, moments, Timing(), arm))
    watching.flush()
    stable, canary = watching.arms
    assert (stable[tally.REQUESTS], stable[tally.SLOW].sum(), canary[tally.REQUESTS], canary[tally.SLOW].sum()) == (3, 1, 1, 1)
