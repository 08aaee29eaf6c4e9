"""Requests through a lane to an executor: every answer belongs to its request, whatever happens to the executor."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executors import LIMIT_S, QUICK, Asked, ControlledExecutor, ExecutorProcess, ExecutorThread

from flatout.packaging import package as packages
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.serving.arena import Arena
from flatout.serving.asking import NoRoom, Outcome, Reason, Status
from flatout.serving.lane import FrontLane

KINDS = ("several", "chars", "images")
ONE = np.array([0])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from packaged_runs import KINDS as RUNS

    from flatout.packaging import export as exporting

    made = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(exporting, "_write_onnx", lambda *given: None)  # takes most of the time of an export
            run, _, _ = RUNS[kind](folder)
            made[kind] = exporting.export(run, folder / "package").package.path
    return made


@pytest.fixture(autouse=True)
def few_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "SIZES", (1, 2))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`planted(check)`: the model of an ExecutorThread calls `check(rows)` before each batch."""

    def plant(check: Any) -> None:
        run = EagerRuntime.run

        def checked(self: EagerRuntime, rows: Any) -> Any:
            check(rows)
            return run(self, rows)

        monkeypatch.setattr(EagerRuntime, "run", checked)

    return plant


def texts(length: int) -> dict[str, torch.Tensor]:
    return {"x": torch.from_numpy(np.random.default_rng(length).integers(0, 7, (16, length)))}


async def flood(lane: FrontLane, models: list[Asked], requests: int, most_rows: int, outstanding: int) -> Counter[str]:
    """Random requests of random models, several hundred at a time. Counts statuses, reasons and wrong answers."""
    draw = np.random.default_rng(5)
    found: Counter[str] = Counter()
    ended = asyncio.Event()
    sent = 0

    def one() -> None:
        nonlocal sent
        sent += 1
        asked = models[int(draw.integers(len(models)))]
        rows = 1 if draw.random() < 0.7 else int(draw.integers(1, most_rows + 1))
        asked.ask(lane, draw.integers(0, asked.count, rows), finish, priority=int(draw.integers(0, 3)))

    def finish(outcome: Outcome, right: bool) -> None:
        found[outcome.status.name] += 1
        found[outcome.timing.reason.name] += 1
        found["wrong"] += outcome.status is Status.ANSWERED and not right
        found["together"] += outcome.timing.batch_rows > most_rows
        if sent < requests:
            one()
        elif not lane.outstanding:
            ended.set()

    for _ in range(outstanding):
        one()
    await asyncio.wait_for(ended.wait(), LIMIT_S)
    return found


def test_thousands_of_requests_of_several_models_and_shapes_get_their_own_answers(
    exported: dict[str, Path], tmp_path: Path
) -> None:
    paths = {0: exported["several"], 1: exported["images"], 2: exported["chars"]}
    with ExecutorProcess() as executor:
        ready = executor.load(paths, tmp_path)
        assert [model["number"] for model in ready["models"]] == [0, 1, 2]
        assert all(seconds > 0 for model in ready["models"] for _, seconds in model["curve"])

        async def main() -> None:
            arena = Arena(8 << 20)
            lane = FrontLane(asyncio.get_running_loop(), arena)
            executor.attach(lane, [0, 1, 2])
            models = [Asked(0, paths[0]), Asked(1, paths[1])]
            models += [Asked(2, paths[2], texts(length)) for length in (2, 5, 8)]
            found = await flood(lane, models, 4000, 12, 150)
            assert found["ANSWERED"] == 4000 and found["wrong"] == 0 and found["together"] > 100
            assert found["SHAPE"]  # texts of other lengths waited
            assert arena.free_bytes == 8 << 20
            # larger than the largest batch: pieces are run and joined
            many = np.arange(20_000) % models[0].count
            outcome, right = await models[0].answer(lane, many)
            assert right and outcome.timing.batch_rows < 20_000
            # no rows, and rows of no length
            assert (await models[0].answer(lane, np.array([], dtype=np.int64)))[1]
            empty = Asked(2, paths[2], texts(0))
            assert (await empty.answer(lane, np.arange(2)))[0].status in (Status.ANSWERED, Status.FAILED)
            assert (await models[0].answer(lane, ONE))[1]
            with pytest.raises(NoRoom) as never:
                lane.room(models[1].model, 1_000_000)
            assert not never.value.ever
            lane.close()

        asyncio.run(main())
        counted = executor.statistics()
        assert sum(model["requests"] for model in counted.values()) >= 4002
        assert counted[0]["rows"] >= 20_000 and counted[0]["failed"] == 0
        executor.control.send({"do": "drain"})
        executor.hear("drained")
        executor.control.close()  # its supervisor is gone
        assert executor.process.wait(LIMIT_S) == 0


def test_an_executor_killed_in_a_batch_loses_nothing(exported: dict[str, Path], tmp_path: Path) -> None:
    slow = (
        f"{QUICK}\nimport time\nfrom flatout.packaging.runtimes.eager import EagerRuntime\nrun = EagerRuntime.run\n"
        "EagerRuntime.run = lambda self, rows: (time.sleep(0.005), run(self, rows))[1]"
    )
    path = exported["several"]
    with ExecutorProcess(slow) as first, ExecutorProcess(slow) as second:
        first.load({0: path}, tmp_path)
        second.load({0: path}, tmp_path)

        async def main() -> None:
            loop = asyncio.get_running_loop()
            lane = FrontLane(loop, Arena(4 << 20))
            asked = Asked(0, path)
            first.attach(lane, [0])
            loop.call_later(0.2, first.process.kill)
            loop.call_later(0.5, second.attach, lane, [0])
            found = await flood(lane, [asked], 3000, 8, 64)
            assert first.process.poll() is not None
            assert found["ANSWERED"] == 3000 and found["wrong"] == 0
            # a second end of the executor is an outcome, not a loss
            futures = [asyncio.ensure_future(asked.answer(lane, ONE)) for _ in range(5)]
            await asyncio.sleep(0)
            second.process.kill()
            second.process.wait()
            impatient = FrontLane(loop, Arena(1 << 20), patience_s=0.1)  # nobody is attached
            outcome, _ = await asked.answer(impatient, ONE)
            assert outcome.status is Status.GONE and "no executor" in outcome.problem
            lane.close()
            assert {(await future)[0].status for future in futures} <= {Status.GONE, Status.ANSWERED}
            assert lane.arena.free_bytes == 4 << 20
            impatient.close()

        asyncio.run(main())


def test_a_hang_is_noticed_and_a_damaged_package_is_a_message(exported: dict[str, Path], tmp_path: Path) -> None:
    hangs = (
        f"{QUICK}\nimport time\nfrom flatout.packaging.runtimes.eager import EagerRuntime\nrun = EagerRuntime.run\n"
        "EagerRuntime.run = lambda self, rows: (time.sleep(3600 if len(rows['x']) == 3 else 0), run(self, rows))[1]"
    )
    with ExecutorProcess(hangs) as executor, ExecutorProcess() as other:
        executor.load({0: exported["several"]}, tmp_path)

        async def main() -> None:
            lane = FrontLane(asyncio.get_running_loop(), Arena(1 << 20))
            asked = Asked(0, exported["several"])
            executor.attach(lane, [0])
            assert (await asked.answer(lane, ONE))[1]
            executor.hear("alive")
            asked.ask(lane, np.arange(3), lambda outcome, right: None)
            await asyncio.sleep(0.2)
            executor.heard.clear()
            with pytest.raises(TimeoutError):
                while True:  # what was said before the hang
                    executor.hear("alive", 2.0)
            lane.close()

        asyncio.run(main())
        broken = tmp_path / "broken"
        shutil.copytree(exported["several"], broken)
        with (broken / "weights.safetensors").open("r+b") as file:
            file.seek(-4, 2)
            file.write(b"abcd")
        with pytest.raises(EOFError):
            other.load({0: broken}, None)
        assert "weights.safetensors" in next(content for content in other.heard if content["say"] == "failed")["problem"]
        assert other.process.wait(LIMIT_S) == 1


def test_out_of_memory_at_the_largest_batch_means_smaller_batches(
    exported: dict[str, Path], tmp_path: Path, planted: Any
) -> None:
    limit = [10**9]

    def check(rows: Any) -> None:
        if len(rows["x"]) > limit[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")

    planted(check)
    with ExecutorThread() as executor:
        executor.load({0: exported["several"]}, tmp_path)
        asked = Asked(0, exported["several"])
        limit[0] = 5

        async def main() -> None:
            lane = FrontLane(asyncio.get_running_loop(), Arena(4 << 20))
            executor.attach(lane, [0])
            found = await flood(lane, [asked], 500, 9, 40)
            assert found["ANSWERED"] == 500 and found["wrong"] == 0
            lane.close()

        asyncio.run(main())
        assert executor.statistics()[0]["largest"] == 4
        assert "out of memory" in executor.hear("event")["line"]


def test_one_bad_request_fails_alone(exported: dict[str, Path], tmp_path: Path, planted: Any) -> None:
    def check(rows: Any) -> None:
        if (rows["kind"] > 100).any():
            raise ValueError("kind is out of range\nand more lines")

    planted(check)
    with ExecutorThread() as executor:
        executor.load({0: exported["several"]}, tmp_path)

        async def main() -> None:
            lane = FrontLane(asyncio.get_running_loop(), Arena(4 << 20))
            executor.attach(lane, [0])
            good, bad = Asked(0, exported["several"]), Asked(0, exported["several"])
            bad.rows["kind"] = bad.rows["kind"] + 1000
            answers = await asyncio.gather(
                *(asked.answer(lane, np.arange(rows)) for asked, rows in [(good, 1), (bad, 1), (good, 3), (bad, 2), (good, 1)])
            )
            for place, (outcome, right) in enumerate(answers):
                if place in (1, 3):
                    assert outcome.status is Status.FAILED
                    assert outcome.problem == "ValueError: kind is out of range"
                else:
                    assert right
            lane.close()

        asyncio.run(main())
        assert executor.statistics()[0]["failed"] == 2


def test_what_is_late_is_refused_and_cancelled_requests_free_their_memory(exported: dict[str, Path], tmp_path: Path) -> None:
    with ExecutorThread() as executor:
        executor.load({0: exported["several"]}, tmp_path, goal="p99 20 ms")

        async def main() -> None:
            lane = FrontLane(asyncio.get_running_loop(), Arena(1 << 20))
            executor.attach(lane, [0])
            asked = Asked(0, exported["several"])
            soon = time.monotonic()
            outcome, right = await asked.answer(lane, ONE, deadline_s=soon + 10)
            assert right and outcome.timing.reason is Reason.IDLE and outcome.timing.queue_s >= 0
            answers = await asyncio.gather(*(asked.answer(lane, ONE, deadline_s=soon - place) for place in range(5)))
            refused = [outcome for outcome, _ in answers if outcome.status is Status.LATE]
            assert refused and all(outcome.retry_after_s > 0 for outcome in refused)
            for _ in range(50):
                room = lane.room(asked.model, 1)
                for column in room.inputs.values():
                    column[...] = 0
                lane.ask(room, lambda outcome: pytest.fail("a cancelled request was answered"))
                room.release()
            while lane.outstanding:
                await asyncio.sleep(0.001)
            assert lane.arena.free_bytes == 1 << 20
            lane.close()

        asyncio.run(main())


def test_a_new_version_takes_over_while_requests_run(exported: dict[str, Path], tmp_path: Path) -> None:
    path = exported["several"]
    with ExecutorThread() as old, ExecutorThread() as new:
        old.load({0: path}, tmp_path)
        new.load({1: path}, tmp_path)

        async def main() -> None:
            lane = FrontLane(asyncio.get_running_loop(), Arena(4 << 20))
            old.attach(lane, [0], "first")
            before = [asyncio.ensure_future(Asked(0, path).answer(lane, ONE)) for _ in range(20)]
            await asyncio.sleep(0)
            new.attach(lane, [1], "second")
            lane.retire("first")
            after = [asyncio.ensure_future(Asked(1, path).answer(lane, ONE)) for _ in range(20)]
            assert all(right for _, right in await asyncio.gather(*before, *after))
            lane.close()

        asyncio.run(main())


def test_fronts_share_an_executor_and_may_leave(exported: dict[str, Path], tmp_path: Path) -> None:
    with ExecutorThread() as executor:
        executor.load({0: exported["several"]}, tmp_path)

        async def main() -> None:
            loop = asyncio.get_running_loop()
            asked = Asked(0, exported["several"])
            lanes = [FrontLane(loop, Arena(1 << 20)) for _ in range(3)]
            for place, lane in enumerate(lanes):
                executor.attach(lane, [0], front=str(place))
            for turn in range(3):
                work = [asked.answer(lane, np.arange(1 + place % 2)) for place in range(60) for lane in lanes[turn:]]
                assert all(right for _, right in await asyncio.gather(*work))
                asked.ask(lanes[turn], ONE, lambda outcome, right: None)
                lanes[turn].close()

        asyncio.run(main())
        _until_no_fronts(executor)


def _until_no_fronts(executor: ControlledExecutor) -> None:
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        executor.control.send({"do": "statistics"})
        if executor.hear("statistics")["fronts"] == 0:
            return
        time.sleep(0.01)
    pytest.fail("the executor still has fronts that are gone")
