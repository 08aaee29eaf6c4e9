"""The compiler, watched: breaks, recompilations and failures are said with their line, and cost speed alone.

Only the last tests make kernels. The others compile to the same operations (torch's eager backend), which takes no time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreters import run_forked
from test_engine_data import stopped_at
from test_engine_graph import Replayed
from test_engine_kit import equal, kinds, train, weights
from test_token_budgets import Summer, asked
from torch import Tensor, nn

from flatout.base.errors import Stopped
from flatout.base.events import read_events
from flatout.engine import compile_cache, graph
from flatout.engine.compile_cache import CompiledFiles, made_for
from flatout.engine.compiling import CompileWatch
from flatout.engine.settings import Settings
from flatout.engine.step import Step
from flatout.objectives.build import build as build_objective
from flatout.plan import choose
from flatout.runs.verbs import Run

ON = {"compile": "on"}
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # from torch, after a break


class Plain(nn.Module):
    """Statistics and random numbers: what a step that is done twice would leave changed."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.drop(self.norm(self.body(x))))
        return y


class Printing(Plain):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        print(end="")  # the break
        return super().forward(x)


class Branching(Plain):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        if x.sum() > 0:  # the branch
            x = x + 1
        return super().forward(x)


class Looping(Plain):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            print(end="")  # the break in a loop
            x = x * 2
        return super().forward(x)


class Counting(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # the count
        return super().forward(x * (1 + self.calls % 2))


def line_of(comment: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"test_compiling.py:{next(number for number, line in enumerate(lines, 1) if line.endswith('# ' + comment))}"


def backend(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda compute, dynamic, mode: compile_with(compute, dynamic=dynamic, backend=made))


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    backend(monkeypatch, "eager")


def step_of(model: nn.Module, settings: Settings, **options: Any) -> Step:
    return Step(model, build_objective("classify", ["x"]), torch.optim.SGD(model.parameters()), settings, **options)


def few() -> dict[str, Tensor]:
    return {"x": torch.ones(4, 6), "y": torch.zeros(4, dtype=torch.int64)}


def degraded(run: Run, what: str = "compile") -> list[str]:
    return [event["why"] for event in kinds(run, "degraded") if event["what"] == what]


@pytest.mark.parametrize(
    ("model", "comment", "words"),
    [
        (Printing, "the break", "builtin operator `print`"),
        (Branching, "the branch", "data-dependent branching"),
        (Looping, "the break in a loop", "this function runs eagerly"),
    ],
)
def test_where_a_graph_breaks_is_said(tmp_path: Path, without_kernels: None, model: Any, comment: str, words: str) -> None:
    run = train(tmp_path, model=model, settings=ON)
    (why,) = degraded(run)
    assert line_of(comment) in why and words in why and "in forward" in why
    compiled = kinds(run, "compiled")[0]
    assert compiled["graphs"] >= 1 and compiled["seconds"] > 0 and compiled["recompiles"] == []
    assert "degraded: compile" in run.explain()


def test_a_model_in_one_piece_is_nothing_to_speak_of(tmp_path: Path, without_kernels: None) -> None:
    run = train(tmp_path, model=Plain, settings=ON)
    (compiled,) = kinds(run, "compiled")
    assert (compiled["graphs"], compiled["breaks"], compiled["recompiles"]) == (1, [], [])
    assert degraded(run) == [] and kinds(train(tmp_path, model=Plain), "compiled") == []


def test_what_is_compiled_again_and_again_is_said_and_so_is_its_end(tmp_path: Path, without_kernels: None) -> None:
    run = train(tmp_path, model=Counting, budget="16 steps", settings=ON)
    again = [line for event in kinds(run, "compiled") for line in event["recompiles"]]
    assert len(again) == 7 and all(line_of("the count") in line and "calls == " in line for line in again)
    (why,) = degraded(run)
    assert line_of("the count") in why and "compiled 8 times" in why and "no longer held" in why and "--off compile" in why


def test_many_models_in_one_process_do_not_share_a_limit(without_kernels: None) -> None:
    watch = CompileWatch()
    for _ in range(torch._dynamo.config.recompile_limit + 2):
        step = step_of(Plain(), Settings(compile="on"))
        step.passes.warm(4)
        step(few())
        news = watch.news()
        assert news is not None and news.graphs == 1 and news.recompiles == news.eager == ()


def test_graphs_of_the_compiler_write_over_what_they_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_one_place(traced: Any, inputs: Any) -> Any:
        places: dict[int, Tensor] = {}

        def run(*given: Any) -> Any:
            returned = traced(*given)
            for number, out in enumerate(returned):
                out.data = places.setdefault(number, torch.empty_like(out)).copy_(out.detach())
            return returned

        return run

    backend(monkeypatch, in_one_place)
    step = step_of(nn.Linear(6, 3), Settings(compile="reduce-overhead"))
    step.update.set_rate(0.1)
    step.passes.warm(4)
    for _ in range(3):
        step(few())
    assert len(set(step.records.drain().losses)) == 3


def refuses(traced: Any, inputs: Any) -> Any:
    raise ValueError("this graph is not to my taste")


def breaks_later(traced: Any, inputs: Any) -> Any:
    def run(*given: Any) -> Any:
        traced(*given)
        raise AssertionError("expected size 12==12, stride 1==12 at dim=1")

    return run


@pytest.mark.parametrize(("made", "words"), [(refuses, "not to my taste"), (breaks_later, "expected size 12==12")])
def test_what_can_not_be_compiled_trains_eagerly_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Any, words: str
) -> None:
    plain = train(tmp_path / "plain", model=Plain, clip=1.0)
    backend(monkeypatch, made)
    run = train(tmp_path / "compiled", model=Plain, clip=1.0, settings=ON)
    (event,) = kinds(run, "degraded")
    assert event["what"] == "compile" and event["value"] == "off" and words in event["why"] and "--off compile" in event["why"]
    assert equal(weights(run), weights(plain)) and kinds(run, "compiled") == []


class NotCompiled(Replayed):
    def _record(self) -> None:
        if self.step.passes.compiled:
            refuses_as_torch_does()
        super()._record()


def refuses_as_torch_does() -> None:
    raise torch._dynamo.exc.InternalTorchDynamoError("this graph is not to my taste")


def test_a_graph_of_the_whole_step_does_without_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train(tmp_path / "plain", model=Plain)
    monkeypatch.setattr(choose, "conflicts", lambda settings: [])
    monkeypatch.setattr(graph, "GraphStep", NotCompiled)
    run = train(tmp_path / "graph", model=Plain, settings={**ON, "graph": True})
    (event,) = kinds(run, "degraded")
    assert event["what"] == "compile" and "not to my taste" in event["why"]
    assert run.result["metrics"]["train_loss"] == pytest.approx(plain.result["metrics"]["train_loss"], abs=1e-5)


class Mistaken(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ x


def test_the_models_own_mistake_is_no_failure_of_the_compiler() -> None:
    said: list[str] = []
    model = Mistaken()
    step = Step(
        model, build_objective("classify", ["x"]), torch.optim.SGD(model.parameters()), Settings(), on_eager=said.append
    )
    step.passes.compiled = True
    step.passes._compiled_mean = lambda batch: refuses(None, None)
    step.passes.warm(4)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        step(few())
    assert said == []


def test_a_step_whose_update_has_begun_is_not_done_again(without_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of(Plain(), Settings(compile="on"), on_eager=lambda why: None)
    step.passes.warm(4)
    updates = []

    def half_done() -> None:
        updates.append(1)
        raise RuntimeError("in the middle of an update")

    monkeypatch.setattr(step.update.optimizer, "step", half_done)
    with pytest.raises(RuntimeError, match="in the middle"):
        step(few())
    assert len(updates) == 1


def test_without_anyone_to_tell_the_compilers_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    backend(monkeypatch, refuses)
    step = step_of(Plain(), Settings(compile="on"))
    step.passes.warm(4)
    with pytest.raises(RuntimeError, match="not to my taste"):
        step(few())


def test_a_machine_without_a_compiler(tmp_path: Path) -> None:
    from torch._functorch import config as autograd
    from torch._inductor import config

    missing = config.patch({"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False})
    uncached = autograd.patch({"enable_autograd_cache": False})
    with missing, uncached:
        run = train(tmp_path, model=Plain, budget="2 steps", settings=ON)
    (why,) = degraded(run)
    assert "install g++" in why and "--off compile" in why and run.result["steps"] == 2


def test_one_compilation_serves_all_shapes(tmp_path: Path, without_kernels: None) -> None:
    """The first batch here is as long as it has rows, and both change."""
    run = train(tmp_path, asked(model=Summer, budget="30 steps", settings=ON))
    (compiled,) = kinds(run, "compiled")
    assert compiled["graphs"] == 1 and degraded(run) == []
    step = step_of(Summer(), Settings(compile="on"), shapes_vary=True)
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    for shape in [(8, 8), (8, 16), (12, 24), (5, 40)]:
        step({"x": torch.randint(1, 200, shape), "y": torch.zeros(shape[0], dtype=torch.int64)})
    assert graphs["unique_graphs"] - before == 1


# ---- what is kept with the run ----


def kept(folder: Path, **other: str) -> CompiledFiles:
    return CompiledFiles(folder, {**made_for(Settings(compile="on")), **other})


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"artifacts\nof torch", None))
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", lambda content: content == b"artifacts\nof torch" or None)
    assert kept(tmp_path).save() is None
    return tmp_path / compile_cache.NAME


def test_what_was_saved_is_loaded(saved: Path) -> None:
    assert kept(saved.parent).load() is None and saved.stat().st_mode & 0o077 == 0
    assert kept(saved.parent / "elsewhere").load() is None  # nothing there is nothing to speak of


def test_a_file_that_others_can_write_to_is_not_loaded(saved: Path) -> None:
    saved.chmod(0o620)
    assert "written by other users" in str(kept(saved.parent).load())
    saved.chmod(0o600)
    saved.rename(saved.with_name("target"))
    saved.symlink_to("target")
    assert "can't be read" in str(kept(saved.parent).load())


def test_a_foreign_or_damaged_file_is_not_loaded(saved: Path) -> None:
    assert "torch was" in str(kept(saved.parent, torch="9.9").load())
    whole = saved.read_bytes()
    for content in (whole[:-1], whole.replace(b"of", b"at"), b"", b"\x80\x04.", b"[1]\n", b"17\n"):
        saved.write_bytes(content)
        assert "is damaged" in str(kept(saved.parent).load())


def test_an_error_inside_of_torch_is_said(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(content: bytes) -> None:
        raise KeyError("no such artifact")

    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", fails)
    assert "no such artifact" in str(kept(saved.parent).load())


def test_a_run_whose_cache_is_damaged_goes_on(tmp_path: Path, without_kernels: None) -> None:
    with pytest.raises(Stopped):
        train(tmp_path, model=Plain, settings=ON, observers=[stopped_at(4)])
    (folder,) = tmp_path.iterdir()
    (folder / compile_cache.NAME).write_bytes(b"half a li")
    run = train(tmp_path, model=Plain, settings=ON)
    assert any("is damaged" in why for why in degraded(run, "compile cache")) and run.result["steps"] == 12


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from flatout.base.errors import Stopped
from test_compiling import ON, Plain
from test_engine_data import stopped_at
from test_engine_kit import train
from torch._inductor import config

config.fallback_by_default = True  # all but the kernels, for which the C++ compiler takes ten times as long
try:
    train(Path(sys.argv[2]), model=Plain, settings=ON, observers=[stopped_at(4)] if sys.argv[3] == "cut" else [])
except Stopped:
    pass
"""


def test_a_resumed_run_finds_what_was_compiled(tmp_path: Path) -> None:
    """In a new process, with empty caches, as on another machine of the same kind."""
    for part in ("cut", "rest"):
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / part), "OMP_NUM_THREADS": "1"}
        command = ["-c", SCRIPT, str(Path(__file__).parent), str(tmp_path / "runs"), part]
        run_forked(command, check=True, env=environment)
    (folder,) = (tmp_path / "runs").iterdir()
    first, second = [event for event in read_events(folder / "events.jsonl") if event["kind"] == "compiled"]
    assert first["cached"] == 0 and second["cached"] == 2  # forward and backward
    assert json.loads((folder / "result.json").read_text())["steps"] == 12
