"""The stream between blocks: in which format it flows, in models that offer it and in those that only have embeddings."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import RecipeError
from flatout.engine.assembly import make_step
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.onednn import onednn_kept
from flatout.measure.groups import ATTENTION
from flatout.models.gpt import gpt
from flatout.models.residual import can_narrow, narrow_residual
from flatout.plan.knobs import residual
from flatout.plan.knobs.all import conflicts
from flatout.plan.plan import Prediction
from flatout.plan.prediction import COMPUTE, OperatorGroup
from flatout.plan.situation import Situation
from flatout.plan.work import work_of
from flatout.recipe.build import build_job

CPU = torch.device("cpu")
GPT = {"gpt": {"layers": 2, "heads": 2, "width": 16}}
TEXT = "to be or not to be, that is the question. " * 40


class Encoder(nn.Module):
    """As others write one: nothing here knows of the setting."""

    def __init__(self, vocabulary: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, 16), nn.Embedding(64, 16)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(16, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            stream = block(stream)
        out: Tensor = self.head(stream)
        return out


def text_job(tmp_path: Path, model: Any = None, **given: Any) -> Job:
    (tmp_path / "words.txt").write_text(TEXT)
    data = fo.data.text(tmp_path / "words.txt", encoding="chars", window=16, holdout=0.0)
    return build_job(
        fo.Recipe(data=data, model=model or GPT, objective="next_token", batch=8, lr=1e-3, budget="9 steps", **given)
    )


def flows_in(model: nn.Module, x: Tensor, autocast: bool = True) -> set[torch.dtype]:
    """Formats of what enters the blocks."""
    seen: set[torch.dtype] = set()
    hooks = [block.register_forward_pre_hook(lambda _, given: seen.add(given[0].dtype)) for block in model.blocks]  # type: ignore[union-attr,arg-type,func-returns-value]
    with onednn_kept(torch.bfloat16), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model(x)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("make", [lambda: gpt(32, 16, layers=2, heads=2, width=16), Encoder], ids=["gpt", "any"])
def test_the_stream_has_the_format_that_was_asked_for(make: Any) -> None:
    model, x = make(), torch.randint(0, 32, (2, 8))
    plain = model(x)
    assert flows_in(model, x) == {torch.float32}
    for _ in range(2):  # turned twice, it is turned once
        narrow_residual(model, True)
    assert flows_in(model, x) == flows_in(copy.deepcopy(model), x) == {torch.bfloat16}
    assert flows_in(model, x, autocast=False) == {torch.float32} and torch.equal(model(x), plain)
    narrow_residual(model, False)
    assert flows_in(model, x) == {torch.float32}


def test_what_autocast_does_not_touch_stays() -> None:
    class Twofold(nn.Embedding):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), x

    exact, twofold = nn.Embedding(8, 4).double(), Twofold(8, 4)
    for model in (exact, twofold):
        narrow_residual(model, True)
    x = torch.zeros(2, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16):
        assert exact(x).dtype == torch.float64 and twofold(x)[0].dtype == torch.float32


def test_a_step_takes_what_the_settings_say(tmp_path: Path) -> None:
    job = text_job(tmp_path)
    x = torch.zeros(2, 8, dtype=torch.int64)
    for value, dtype in (("autocast", torch.bfloat16), ("float32", torch.float32)):
        made = make_step(job, copy.deepcopy(job.model), Settings(precision="bf16", residual=value))
        assert flows_in(made.step.model, x) == {dtype}
    wide, narrow = (work_of(job, Settings(precision="bf16", residual=value)).counts for value in ("float32", "autocast"))
    assert narrow.bytes < wide.bytes and narrow.flops == wide.flops


def test_a_run_ends_near_where_a_plain_one_does(tmp_path: Path) -> None:
    losses = []
    for value in ("float32", "autocast"):
        (tmp_path / "words.txt").write_text(TEXT)
        data = fo.data.text(tmp_path / "words.txt", encoding="chars", window=16, holdout=0.1)
        asked: dict[str, Any] = {"objective": "next_token", "batch": 8, "lr": 1e-2, "budget": "60 steps", "model": GPT}
        settings = {"device": "cpu", "precision": "bf16", "residual": value}
        recipe = fo.Recipe(data=data, settings=settings, **asked)
        run = fo.run(recipe, runs=tmp_path / value, cache=tmp_path / "cache", planning="off")
        losses.append(run.result["metrics"]["loss"])
        assert fo.evaluate(run, device="cpu")["loss"] == losses[-1]  # as it was trained
    assert losses[0] < 2.0 and losses[1] == pytest.approx(losses[0], rel=0.05)
    assert losses[0] != losses[1]


def situation(job: Job, attends: bool = True, **pins: Any) -> Situation:
    groups = (OperatorGroup(ATTENTION, 1.0, 1.0, 1, 0.1, COMPUTE),) if attends else ()
    return Situation(job, CPU, pins, None, Prediction(groups=groups))


def test_it_is_tried_in_mixed_precision_where_there_is_a_stream(tmp_path: Path) -> None:
    job = text_job(tmp_path)
    mixed = Settings(precision="bf16")
    assert [one.value for one in residual.candidates(situation(job), mixed)] == ["autocast"]
    assert not list(residual.candidates(situation(job), Settings()))
    assert not list(residual.candidates(situation(job), Settings(precision="bf16", residual="autocast")))
    assert not list(residual.candidates(situation(job, attends=False), mixed))
    (choice,) = residual.default(situation(job), {})
    assert choice.value == "float32"


def test_before_compiling_it_need_not_gain(tmp_path: Path) -> None:
    job, mixed = text_job(tmp_path), Settings(precision="bf16")

    def unless_slower(settings: Settings, device: str = "cuda", **pins: Any) -> bool:
        s = replace(situation(job, **pins), device=torch.device(device))
        (candidate,) = residual.candidates(s, settings)
        return candidate.unless_slower

    assert unless_slower(mixed)
    assert not unless_slower(replace(mixed, compile="on"))
    assert not unless_slower(mixed, compile="off")
    assert not unless_slower(mixed, device="cpu")


def test_what_can_not_be_is_refused(tmp_path: Path) -> None:
    flat = build_job(
        fo.Recipe(
            data=fo.data.arrays(torch.randn(32, 4), torch.arange(32) % 2, classes=2, holdout=0.0),
            model={"mlp": {}}, batch=8, lr=0.1, budget="9 steps", evaluate=None,
        )
    )  # fmt: skip
    assert not can_narrow(flat.model)
    with pytest.raises(RecipeError, match="MLP has neither an embedding nor an attribute narrow_residual"):
        list(residual.default(situation(flat, residual="autocast"), {}))
    (words,) = conflicts(Settings(residual="autocast"))
    assert words == "residual=autocast needs precision bf16, fp16 or fp8; it is fp32: --off residual"
