"""The loss of tokens in each of its forms, and padded: the same numbers. What a form needs and does not get is said."""

from __future__ import annotations

import copy
import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import RecipeError, UsageError
from flatout.engine.assembly import make_step
from flatout.engine.settings import Settings
from flatout.models.gpt import gpt
from flatout.models.head import pad_vocabulary
from flatout.objectives.build import build
from flatout.objectives.chunked_loss import chunked_loss, projection_of
from flatout.objectives.next_token import NextToken
from flatout.plan import make as planned
from flatout.plan.choose import choose, situation_of
from flatout.plan.knobs import loss_head, vocabulary_padding
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation
from flatout.recipe.build import build_job
from flatout.store.tensors import read_tensors
from flatout.testing.knobs import KnobConformance, made_up

CPU = torch.device("cpu")
TOKENS = 5000
_FOLDER = tempfile.TemporaryDirectory()


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "ceilings_of", lambda device, cache, job: made_up())


def small_gpt(vocabulary: int = TOKENS, tied: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return gpt(vocabulary, 8, layers=1, heads=1, width=16, tied=tied)


class Whole(nn.Module):
    """Gives logits and keeps to itself what they are made of; its layer `hidden` is not what a loss in parts looks for."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.hidden, self.head = nn.Embedding(TOKENS, 16), nn.Linear(16, 16), nn.Linear(16, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(self.tokens(x)))
        return logits


@functools.cache
def token_file() -> Path:
    draw = torch.Generator().manual_seed(0)
    path = Path(_FOLDER.name) / "tokens.bin"
    torch.randint(0, TOKENS, (2304,), generator=draw).numpy().astype("uint16").tofile(path)
    return path


def recipe(model: Any = small_gpt, **given: Any) -> fo.Recipe:
    data = fo.data.text(token_file(), encoding="tokens", vocabulary=TOKENS, window=8, holdout=0.1)
    asked = {"batch": 16, "lr": 1e-3, "budget": "20000 steps", "objective": "next_token", **given}
    return fo.Recipe(data=data, model=model, **asked)


# the loss in parts


def case(dtype: torch.dtype = torch.float32, rows: int = 50, vocabulary: int = 77) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 12, generator=draw, dtype=dtype)
    weight = torch.randn(vocabulary, 12, generator=draw, dtype=dtype)
    bias = torch.randn(vocabulary, generator=draw, dtype=dtype)
    target = torch.randint(0, vocabulary, (rows,), generator=draw)
    target[::7] = -100
    return hidden, weight, bias, target


def gradients(loss: Any, *learned: Tensor) -> tuple[Tensor, ...]:
    leaves = [one.clone().requires_grad_() for one in learned]
    value = loss(*leaves)
    (value / 7).backward()
    return value.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)


@pytest.mark.parametrize("rows_at_once", [1, 16, 50, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_in_parts_is_the_loss(dtype: torch.dtype, rows_at_once: int) -> None:
    hidden, weight, bias, target = case(dtype)
    ours = gradients(lambda h, w, b: chunked_loss(h, w, b, target, -100, rows_at_once), hidden, weight, bias)
    plain = gradients(lambda h, w, b: F.cross_entropy(F.linear(h, w, b), target, reduction="sum"), hidden, weight, bias)
    assert len(ours) == 4
    for mine, other in zip(ours, plain, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, other)


def test_the_loss_in_parts_takes_products_in_the_format_of_autocast() -> None:
    hidden, weight, _, target = case(rows=200)

    def whole(h: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, w).float(), target, reduction="sum")

    with torch.autocast("cpu", torch.bfloat16):
        ours = gradients(lambda h, w: chunked_loss(h, w, None, target, -100, 64), hidden, weight)
        halved = gradients(whole, hidden, weight)
    exact = gradients(whole, hidden, weight)
    assert all(one.dtype == torch.float32 for one in ours)
    torch.testing.assert_close(ours[0], halved[0], rtol=1e-6, atol=0)
    assert not torch.equal(ours[0], exact[0])
    for mine, other, right in zip(ours[1:], halved[1:], exact[1:], strict=True):
        assert (mine - right).norm() <= 1.5 * (other - right).norm()


def test_what_is_frozen_costs_no_gradient() -> None:
    hidden, weight, bias, target = case()
    learned = hidden.clone().requires_grad_()
    chunked_loss(learned, weight, bias, target, -100, 16).backward()
    (expected,) = gradients(lambda h: F.cross_entropy(F.linear(h, weight, bias), target, reduction="sum"), hidden)[1:]
    torch.testing.assert_close(learned.grad, 7 * expected)
    assert weight.grad is None and bias.grad is None


def test_the_loss_in_parts_is_one_graph_for_the_compiler() -> None:
    hidden, weight, _, target = case()

    def loss(h: Tensor, w: Tensor) -> Tensor:
        return chunked_loss(h, w, None, target, -100, 16)

    plain = gradients(loss, hidden, weight)
    for mine, other in zip(gradients(torch.compile(loss, fullgraph=True), hidden, weight), plain, strict=True):
        torch.testing.assert_close(mine, other)


def test_the_operator_is_what_torch_asks_of_one() -> None:
    hidden, weight, bias, target = case()
    hidden.requires_grad_(), weight.requires_grad_()
    given = (hidden, weight, bias, target, -100, torch.float32, 16, True, False)
    torch.library.opcheck(torch.ops.flatout.chunked_token_loss.default, given)


# the forms of next_token


def batch(ignored: bool = True) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(2)
    made = {name: torch.randint(0, TOKENS, (6, 8), generator=draw) for name in ("x", "y")}
    if ignored:
        made["y"][1, :5] = -100
    return made


@pytest.mark.parametrize("padding", [0, 64])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("ignore", [-100, None])
@pytest.mark.parametrize("kind", ["joined", "chunked"])
def test_a_model_learns_the_same_past_its_logits_and_padded(kind: str, ignore: int | None, tied: bool, padding: int) -> None:
    objective, given = build({"next_token": {"ignore": ignore}}), batch(ignored=ignore is not None)
    first, second = small_gpt(tied=tied), small_gpt(tied=tied)
    pad_vocabulary(second, padding)
    expected, weight = objective(first, given)
    found, other_weight = objective.with_loss_head(kind, second, CPU)(second, given)
    torch.testing.assert_close(found, expected)
    assert float(weight) == float(other_weight)
    expected.backward()
    found.backward()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)


def test_inputs_reach_the_hidden_states() -> None:
    model = small_gpt()
    given = {**batch(), "documents": torch.zeros(6, 8, dtype=torch.long)}
    given["documents"][:, 4:] = 1
    objective = build("next_token", inputs={"x": "x", "documents": "documents"})
    torch.testing.assert_close(objective.with_loss_head("chunked", model, CPU)(model, given)[0], objective(model, given)[0])
    assert not torch.allclose(objective(model, given)[0], build("next_token")(model, given)[0], rtol=1e-6)


def test_a_head_that_is_any_linear_layer_will_do() -> None:
    layer = nn.Linear(4, 9)
    assert projection_of(layer) == (layer.weight, layer.bias)


@pytest.mark.parametrize(
    ("model", "objective", "kind", "words"),
    [
        (Whole(), "next_token", "chunked", r"Whole lacks a method hidden\(\.\.\.\).*--off loss_head"),
        (Whole(), "next_token", "joined", r"loss_head=joined: Whole lacks a method hidden\(\.\.\.\).*--off loss_head"),
        (nn.Linear(2, 2), "classify", "chunked", "needs objective next_token, this is classify: --off loss_head"),
        (small_gpt(), "next_token", "fused", "needs a CUDA device and Triton, but the run is on cpu: --off loss_head"),
    ],
)
def test_a_form_that_can_not_be_is_refused(model: nn.Module, objective: str, kind: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(objective).with_loss_head(kind, model, CPU)


def test_a_model_without_a_head_is_refused() -> None:
    model = small_gpt()
    model.head = nn.Identity()
    with pytest.raises(UsageError, match="GPT lacks a layer head"):
        build("next_token").with_loss_head("chunked", model, CPU)


def test_a_formula_of_the_users_own_stays() -> None:
    class Doubled(NextToken):
        def loss(self, output: Tensor, batch: dict[str, Tensor]) -> Any:
            loss, weight = super().loss(output, batch)
            return 2 * loss, weight

    model = small_gpt()
    assert Doubled().with_loss_head("plain", model, CPU)(model, batch())[0] == 2 * NextToken()(model, batch())[0]
    with pytest.raises(UsageError, match="loss_head=chunked: Doubled computes its own loss"):
        Doubled().with_loss_head("chunked", model, CPU)


# a step and a run


def test_a_step_takes_what_the_settings_say() -> None:
    job = build_job(recipe())
    steps = {
        kind: make_step(job, copy.deepcopy(job.model), Settings(loss_head=kind, vocabulary_padding=padding)).step
        for kind, padding in (("plain", 0), ("chunked", 64), ("joined", 64))
    }
    assert [step.model.head.pad_vocabulary_to for step in steps.values()] == [0, 64, 64]
    losses = [float(step.passes.mean_loss(batch())) for step in steps.values()]
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-6)


def test_a_run_in_parts_and_padded_ends_as_a_plain_one(tmp_path: Path) -> None:
    pins: dict[str, Any] = {"device": "cpu", "precision": "bf16"}
    changes: tuple[dict[str, Any], ...] = ({}, {"loss_head": "chunked", "vocabulary_padding": 64, "micro_batch": 5})
    runs = [
        fo.run(recipe(budget="6 steps", ema=0.5, settings=pins | more), runs=tmp_path / str(place), cache=None)
        for place, more in enumerate(changes)
    ]
    plain, other = (run.result["metrics"] for run in runs)
    assert other["loss"] == pytest.approx(plain["loss"], rel=1e-4)
    kept = read_tensors(runs[1].folder.path / "model.safetensors")
    assert kept["tokens.weight"].shape == (TOKENS, 16)
    predicted = fo.predict(runs[1], {"x": batch()["x"]}, device="cpu")
    assert predicted["prediction"].max() < TOKENS


@pytest.mark.parametrize(
    ("model", "setting", "words"),
    [
        (Whole, {"loss_head": "chunked"}, r"settings: loss_head=chunked: Whole lacks a method hidden\(\.\.\.\)"),
        (Whole, {"vocabulary_padding": 64}, "settings: vocabulary_padding=64: Whole has no head with an attribute"),
        (small_gpt, {"loss_head": "fused"}, "settings: loss_head=fused needs a CUDA device"),
    ],
)
def test_a_pin_that_can_not_be_is_refused_before_anything_runs(model: Any, setting: dict[str, Any], words: str) -> None:
    knobs = (loss_head, vocabulary_padding)
    with pytest.raises(RecipeError, match=words):
        choose(build_job(recipe(model)), {"device": "cpu", **setting}, made_up(), "pinned", knobs=knobs)


# the knobs


class OfTokens(KnobConformance):
    def recipe(self) -> fo.Recipe:
        return recipe()


class TestLossHead(OfTokens):
    knob = loss_head

    def plain(self) -> Settings:
        return Settings(device="cpu", fused_optimizer=False, micro_batch=8)


class TestVocabularyPadding(OfTokens):
    knob = vocabulary_padding


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, model: Any = small_gpt, triton: bool = True, **given: Any) -> Situation:
    monkeypatch.setattr("flatout.objectives.token_loss._HAS_TRITON", triton)
    s = situation_of(build_job(recipe(model, **given)), {"device": "cpu"}, made_up())
    return Situation(s.job, torch.device("cuda"), {}, s.ceilings, s.plain)


def chosen(knob: Any, s: Situation) -> Choice:
    (choice,) = [decision for decision in knob.default(s, {}) if isinstance(decision, Choice)]
    return choice


def test_a_gpu_takes_the_kernels_and_the_padding_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    s = on_a_gpu(monkeypatch)
    assert chosen(loss_head, s).value == "joined"
    assert chosen(vocabulary_padding, s) == Choice(
        "vocabulary_padding", 64, "5,000 tokens computed as 5,056: a width that kernels prefer, same loss"
    )
    plain = Settings(device="cuda")
    assert [one.value for one in loss_head.candidates(s, plain)] == ["fused", "joined"]
    assert [one.value for one in vocabulary_padding.candidates(s, plain)] == [64]


class OwnHead(nn.Module):
    """Of a user: it has what the loss is computed from, and nobody knows whether its forward does more."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(TOKENS, 16), nn.Linear(16, TOKENS)

    def hidden(self, x: Tensor) -> Tensor:
        found: Tensor = self.tokens(x)
        return found

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(x))
        return logits


def test_a_head_of_the_users_own_is_joined_with_its_loss_by_trial_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    s = on_a_gpu(monkeypatch, OwnHead)
    assert chosen(loss_head, s).value == "fused"
    (better,) = loss_head.candidates(s, Settings(device="cuda", loss_head="fused"))
    assert better.value == "joined" and better.factor > 1
    assert chosen(loss_head, on_a_gpu(monkeypatch, Whole)).value == "fused"


def test_parts_are_tried_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    s = on_a_gpu(monkeypatch)
    split = Settings(device="cuda", loss_head="joined", micro_batch=8, precision="bf16")
    (found,) = loss_head.candidates(s, split)
    assert found.value == "chunked" and "640 kB of logits" in found.why
    assert not list(loss_head.candidates(on_a_gpu(monkeypatch, Whole), split))


@pytest.mark.parametrize("given", [{"triton": False}, {"objective": lambda model, batch: (model(batch["x"]).sum(), 1)}])
def test_where_there_are_no_kernels_torchs_formula_stays(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    s = on_a_gpu(monkeypatch, **given)
    assert chosen(loss_head, s).value == "plain"
    assert not list(loss_head.candidates(s, Settings(device="cuda")))


def test_the_reason_of_torchs_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = fo.Recipe(data="digits", model="mlp", batch=16, lr=1e-3, budget="6 steps")
    of_classes = situation_of(build_job(digits), {"device": "cpu"}, made_up())
    assert chosen(loss_head, of_classes).why == "other values need the objective next_token; it is classify"
    assert "a CUDA device, Triton" in chosen(loss_head, on_a_gpu(monkeypatch, triton=False)).why


def test_a_model_that_can_not_pad_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    s = on_a_gpu(monkeypatch, Whole)
    assert chosen(vocabulary_padding, s).value == 0
    assert not list(vocabulary_padding.candidates(s, Settings(device="cuda")))
