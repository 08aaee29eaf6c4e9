"""The proof: planted bugs are caught and named, correct variants of the same step pass; paired losses with their power."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flatout.base.errors import UsageError
from flatout.measure.paired import MIN_POWER, PairedCheck, check_losses
from flatout.measure.proof import LIMITS, StepCheck, StepSnapshot, check_step, repeat_noise
from flatout.measure.step_noise import StepNoise

Batch = tuple[Tensor, Tensor]
Objective = Callable[[nn.Module, Batch], tuple[Tensor, float]]
OptimizerMaker = Callable[[nn.Module], torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# real steps


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 10))


def convnet() -> nn.Module:
    """The biases before batch norm have a true gradient of zero."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 8), (8, 16)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))


class Reader(nn.Module):
    """A tiny GPT; its key bias has a true gradient of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 32)
        self.norm = nn.LayerNorm(32)
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.tokens(x)
        seen = self.norm(stream)
        query, key, value = (layer(seen).unsqueeze(1) for layer in (self.query, self.key, self.value))
        stream = stream + F.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1)
        logits: Tensor = self.head(stream + self.narrow(F.gelu(self.wide(stream))))
        return logits


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "convnet": convnet, "gpt": Reader}


def batches(kind: str, n: int = 3) -> list[Batch]:
    draw = torch.Generator().manual_seed(7)
    centers = torch.randn(10, 64, generator=draw)
    made = []
    for _ in range(n):
        if kind == "gpt":
            text = torch.randint(0, 5, (16, 17), generator=draw).cumsum(1) % 32
            made.append((text[:, :-1], text[:, 1:]))
        else:
            y = torch.randint(0, 10, (64,), generator=draw)
            x = centers[y] + torch.randn(64, 64, generator=draw)
            made.append((x.view(-1, 1, 8, 8) if kind == "convnet" else x, y))
    return made


def mean_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    logits = model(batch[0]).float()
    return F.cross_entropy(logits.flatten(0, -2), batch[1].flatten()), float(batch[1].numel())


def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    """Matrices decay; biases and norms do not."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, **options)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@dataclass(frozen=True)
class How:
    """One way to take a step; the defaults are the reference's."""

    objective: Objective = mean_loss
    optimizer: OptimizerMaker = adamw
    plain: OptimizerMaker = adamw  # what the step should have used
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model  # may wrap it, or change it in place
    parts: int = 1
    clip: float | None = None
    spoil: Callable[[nn.Module], None] = lambda model: None  # called between backward and the update


REFERENCE = How()


def trained(kind: str, steps: int = 5) -> nn.Module:
    torch.manual_seed(1)
    model = MODELS[kind]()
    optimizer = adamw(model)
    for batch in batches(kind, steps):
        optimizer.zero_grad()
        mean_loss(model, batch)[0].backward()
        optimizer.step()
    return model


def take_step(start: nn.Module, given: list[Batch], how: How = REFERENCE) -> StepSnapshot:
    model = copy.deepcopy(start).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    forward = how.prepare(model)
    further = []
    state = copy.deepcopy(model.state_dict())
    for batch in given[1:]:
        with torch.no_grad(), how.context():
            further.append(how.objective(forward, batch)[0].item())
    model.load_state_dict(state)
    loss_sum, weight, dtype = 0.0, 0.0, ""
    whole = given[0][1].numel()
    for part in zip(*(column.chunk(how.parts) for column in given[0]), strict=True):
        with how.context():
            loss, counted = how.objective(forward, part)
        (loss * (counted / whole)).backward()
        loss_sum, weight, dtype = loss_sum + loss.item() * counted, weight + counted, str(loss.dtype).removeprefix("torch.")
    how.spoil(model)
    norm = None if how.clip is None else float(nn.utils.clip_grad_norm_(model.parameters(), how.clip))
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    how.optimizer(model).step()
    updates = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    return StepSnapshot(
        (loss_sum / weight, *further), dtype, weight, norm, gradients, updates, expected_of(start, gradients, how.plain),
        {name: buffer.clone() for name, buffer in model.named_buffers()}, before,
    )  # fmt: skip


def expected_of(start: nn.Module, gradients: dict[str, Tensor | None], plain: OptimizerMaker) -> dict[str, Tensor]:
    model = copy.deepcopy(start)
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]
    plain(model).step()
    return {name: p.detach() - q.detach() for (name, p), q in zip(model.named_parameters(), start.parameters(), strict=True)}


def compare(kind: str, how: How, precision: str = "fp32", *, reference: How = REFERENCE) -> StepCheck:
    start, given = trained(kind), batches(kind)
    return check_step(take_step(start, given, reference), take_step(start, given, how), precision)


# planted bugs: each is caught, and the message names it


def doubled(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad *= 2


def bias_skipped(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    """The last bias is added as a constant, so it gets no gradient."""
    assert isinstance(model, nn.Sequential) and isinstance(model[3], nn.Linear)
    logits = F.linear(model[2](model[1](model[0](batch[0]))), model[3].weight, model[3].bias.detach())
    return F.cross_entropy(logits, batch[1]), float(len(batch[1]))


def bias_zeroed(model: nn.Module) -> None:
    bias = model.get_parameter("3.bias")
    assert bias.grad is not None
    bias.grad.zero_()


def labels_shifted(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    return mean_loss(model, (batch[0], batch[1].roll(1, dims=-1)))


def norms_stale(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0
    return model


def narrow_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    return F.cross_entropy(model(batch[0]).bfloat16(), batch[1]), float(len(batch[1]))


def narrow_loss_widened(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    loss, weight = narrow_loss(model, batch)
    return loss.float(), weight


def last_part_dropped() -> Objective:
    seen = 0

    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        nonlocal seen
        if torch.is_grad_enabled():
            seen += 1
        loss, weight = mean_loss(model, batch)
        return (loss * 0, 0.0) if torch.is_grad_enabled() and seen == 4 else (loss, weight)

    return objective


def one_group_frozen(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = adamw(model)
    optimizer.param_groups[1]["lr"] = 0.0
    return optimizer


def norms_decay(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = adamw(model)
    optimizer.param_groups[1]["weight_decay"] = 0.1
    return optimizer


def half_rate(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = adamw(model)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    return optimizer


BUGS = [
    ("mlp", lambda: How(spoil=doubled), "times as long as the baseline's"),
    ("mlp", lambda: How(objective=bias_skipped), "3.bias has no gradient"),
    ("mlp", lambda: How(spoil=bias_zeroed), "the gradient of 3.bias"),
    ("mlp", lambda: How(objective=labels_shifted), "another direction: cosine"),
    ("gpt", lambda: How(objective=labels_shifted), "another direction: cosine"),
    ("convnet", lambda: How(prepare=norms_stale), "running_mean is stale"),
    ("mlp", lambda: How(objective=last_part_dropped(), parts=4), "covers 48 samples or tokens, the baseline's covers 64"),
    ("mlp", lambda: How(objective=narrow_loss), "computed in bfloat16, the baseline's in float32"),
    ("mlp", lambda: How(objective=narrow_loss_widened), "computed in bfloat16, then widened"),
    ("mlp", lambda: How(optimizer=one_group_frozen), "did not change"),
    ("mlp", lambda: How(optimizer=norms_decay), "the update of 1.weight"),
    ("mlp", lambda: How(optimizer=half_rate), "0.5 times as long (different learning rate?)"),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("kind", "bug", "named"), BUGS)
def test_planted_bugs_are_caught_and_named(kind: str, bug: Callable[[], How], named: str, precision: str) -> None:
    check = compare(kind, bug(), precision)
    assert not check.passed and named in check.why and "not enough evidence" not in check.why


def test_decay_on_norms_is_called_weight_decay() -> None:
    assert "different weight decay" in compare("mlp", How(optimizer=norms_decay)).why


def test_a_doubled_gradient_shows_in_the_norm_when_clipping_hides_it() -> None:
    """Under Adam neither loss nor update shows it, and after clipping the gradients are equal too."""
    check = compare("mlp", How(spoil=doubled, clip=0.1), "bf16", reference=How(clip=0.1))
    assert not check.passed and "gradient norm before clipping is 2 times" in check.why
    assert "points elsewhere" not in check.why and "update" not in check.why


def test_stale_buffers_are_seen_without_the_state_before() -> None:
    start, given = trained("convnet"), batches("convnet")
    stale = replace(take_step(start, given, How(prepare=norms_stale)), before={})
    check = check_step(take_step(start, given), stale, "bf16")
    assert not check.passed and "the buffer" in check.why


# correct variants of the same step


def narrow() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def test_the_reference_agrees_with_itself() -> None:
    for kind in MODELS:
        check = compare(kind, How())
        assert check.passed and check.figures["loss_error"] == 0 and check.figures["worst_cosine"] == 1


@pytest.mark.parametrize("kind", MODELS)
def test_mixed_precision_passes_as_itself_and_fails_as_fp32(kind: str) -> None:
    check = compare(kind, How(context=narrow), "bf16")
    assert check.passed, check.why
    assert 0.99 < float(check.figures["worst_cosine"]) < 1  # small differences are reported too
    if kind == "convnet":
        assert not compare(kind, How(context=narrow), "fp32").passed


@pytest.mark.parametrize("kind", ["convnet", "gpt"])
def test_gradients_that_are_truly_zero_may_be_noise(kind: str) -> None:
    check = compare(kind, How(context=narrow), "bf16")
    assert check.passed and float(check.figures["gradients_lost_in_noise"]) >= 1


def test_compiled_mixed_precision_passes() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    start, given = trained("mlp"), batches("mlp", 1)  # forward alone would be one more graph to compile
    compiled = take_step(start, given, How(prepare=torch.compile, context=narrow))  # type: ignore[arg-type]
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]  # else eager would be compared with eager
    check = check_step(take_step(start, given), compiled, "bf16")
    assert check.passed, check.why


def channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def checkpointed(model: nn.Module) -> nn.Module:
    class Recomputed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(model, x, use_reentrant=False)  # type: ignore[no-any-return]

    return Recomputed()


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("mlp", How(parts=4)),
        ("mlp", How(parts=5)),
        ("gpt", How(parts=4)),
        ("mlp", How(optimizer=lambda model: adamw(model, fused=True))),
        ("convnet", How(prepare=channels_last)),
        ("mlp", How(prepare=checkpointed)),
        ("gpt", How(prepare=checkpointed)),
        ("mlp", How(optimizer=sgd, plain=sgd)),
        ("mlp", How(clip=0.1)),
    ],
    ids=[
        "4 parts",
        "uneven parts",
        "4 parts of text",
        "fused",
        "channels_last",
        "recomputed",
        "recomputed text",
        "sgd",
        "clip",
    ],
)
def test_correct_variants_pass(kind: str, how: How) -> None:
    check = compare(kind, how, reference=How(clip=how.clip))
    assert check.passed, check.why
    assert "one step agrees within fp32" in check.why


def test_tiny_learning_rates_are_not_enough_evidence() -> None:
    """At the first step of a warm-up nothing changes, so a frozen group would look the same."""
    check = compare("mlp", How(), reference=How(optimizer=still, plain=still))
    assert not check.passed and check.why.startswith("not enough evidence: no update is larger than the rounding")


def still(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


# broken and noisy


@pytest.fixture(scope="module")
def plain() -> StepSnapshot:
    return take_step(trained("convnet"), batches("convnet"))


@pytest.mark.parametrize(("by", "passes"), [(1.0, True), (30.0, False)])
def test_a_bias_may_be_off_by_as_much_as_its_weight(by: float, passes: bool, plain: StepSnapshot) -> None:
    """Before batch norm its true gradient is zero, so its error has random direction and length."""
    draw = torch.Generator().manual_seed(0)
    gradients = {name: gradient.clone() for name, gradient in plain.gradients.items() if gradient is not None}
    size = 0.005 * gradients["0.weight"].square().mean().sqrt()
    gradients["0.bias"].mul_(1e-6)
    off = {name: gradient.clone() for name, gradient in gradients.items()}
    off["0.weight"] += size * torch.randn(off["0.weight"].shape, generator=draw)
    off["0.bias"] += by * size * torch.randn(off["0.bias"].shape, generator=draw).clamp(-0.7, 0.7)
    found = check_step(replace(plain, gradients=gradients), replace(plain, gradients=off), "fp32")
    assert found.passed == passes, found.why
    assert passes or "the gradient of 0.bias" in found.why


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: {"losses": (float("nan"), *s.losses[1:])}, "the loss is not finite"),
        (
            lambda s: {"gradients": {**s.gradients, "0.weight": s.gradients["0.weight"] * float("inf")}},
            "0.weight is not finite",
        ),
        (lambda s: {"updates": {**s.updates, "9.bias": s.updates["9.bias"] * float("nan")}}, "update of 9.bias is not finite"),
        (lambda s: {"buffers": {**s.buffers, "1.running_var": s.buffers["1.running_var"] / 0}}, "1.running_var is not finite"),
        (lambda s: {"gradients": {**s.gradients, "9.bias": None}}, "9.bias has no gradient"),
        (lambda s: {"gradients": {**s.gradients, "9.bias": torch.ones(12)}}, "has shape (12,), expected (10,)"),
        (lambda s: {"buffers": {**s.buffers, "1.num_batches_tracked": torch.tensor(99)}}, "1.num_batches_tracked"),
        (lambda s: {"losses": s.losses[:1]}, "got 1 losses, the baseline has 3"),
        (lambda s: {"norm": 1.0}, "gradient norm"),
    ],
    ids=["loss", "gradient", "update", "buffer", "missing", "shape", "counter", "fewer losses", "norm"],
)
def test_broken_steps_fail_with_a_reason(
    plain: StepSnapshot, change: Callable[[StepSnapshot], dict[str, Any]], named: str
) -> None:
    check = check_step(plain, replace(plain, **change(plain)), "bf16")
    assert not check.passed and named in check.why


def test_a_gradient_where_the_reference_has_none(plain: StepSnapshot) -> None:
    reference = replace(plain, gradients={**plain.gradients, "9.bias": None})
    assert "9.bias has a gradient" in check_step(reference, plain, "fp32").why


def test_infinities_in_masks_are_allowed(plain: StepSnapshot) -> None:
    masked = replace(plain, buffers={**plain.buffers, "mask": torch.full((4, 4), float("-inf")).triu(1)})
    assert check_step(masked, masked, "fp32").passed


def test_a_broken_baseline_is_not_enough_evidence(plain: StepSnapshot) -> None:
    broken = replace(plain, losses=(float("inf"),))
    assert check_step(broken, plain, "fp32").why.startswith("not enough evidence: the baseline is broken")


def shaken(snapshot: StepSnapshot, by: float, seed: int) -> StepSnapshot:
    """A step of a nondeterministic model: each gradient is off by this share of its length."""
    draw = torch.Generator().manual_seed(seed)

    def shake(g: Tensor) -> Tensor:
        noise = torch.randn(g.shape, generator=draw)
        return g + by * noise * float(g.norm() / noise.norm())

    return replace(snapshot, gradients={name: None if g is None else shake(g) for name, g in snapshot.gradients.items()})


def test_the_noise_of_the_reference_widens_the_limits(plain: StepSnapshot) -> None:
    again, candidate = shaken(plain, 0.2, seed=1), shaken(plain, 0.2, seed=2)
    assert not check_step(plain, candidate, "fp32").passed
    assert check_step(plain, candidate, "fp32", again).passed
    doubled_too = replace(candidate, gradients={n: None if g is None else 2 * g for n, g in candidate.gradients.items()})
    assert "times as long" in check_step(plain, doubled_too, "fp32", again).why


def test_a_noisy_baseline_is_not_enough_evidence(plain: StepSnapshot) -> None:
    check = check_step(plain, shaken(plain, 1.5, seed=2), "fp32", shaken(plain, 1.5, seed=1))
    assert not check.passed and check.why.startswith("not enough evidence: two runs of the baseline differ too much")


def test_a_gradient_whose_direction_is_noise_is_judged_by_its_size(plain: StepSnapshot) -> None:
    """A bias before batch norm on a GPU: another direction in each run, and small."""

    def with_bias(seed: int, by: float) -> StepSnapshot:
        bias = plain.gradients["0.bias"]
        assert bias is not None
        drawn = by * 1e-3 * torch.randn(bias.shape, generator=torch.Generator().manual_seed(seed))
        return replace(plain, gradients={**plain.gradients, "0.bias": drawn})

    reference, noise = with_bias(1, 1.0), repeat_noise(with_bias(1, 1.0), with_bias(2, 1.0), "fp32")
    assert not check_step(reference, with_bias(3, 1.0), "fp32").passed
    assert check_step(reference, with_bias(3, 1.0), "fp32", noise=noise).passed
    large = check_step(reference, with_bias(3, 40.0), "fp32", noise=noise)
    assert not large.passed and "the gradient of 0.bias, whose direction is lost in noise" in large.why


def test_noise_is_the_largest_of_all_repeats(plain: StepSnapshot) -> None:
    small, large = (repeat_noise(plain, shaken(plain, by, seed=1), "fp32") for by in (0.05, 0.2))
    both = small.with_more(large)
    assert both.repeats == 2 and both.sizes == large.with_more(small).sizes
    assert StepNoise.from_list(both.to_list()).usual("angle") == pytest.approx(large.usual("angle"))


def test_an_unknown_precision_lists_the_known_ones(plain: StepSnapshot) -> None:
    with pytest.raises(UsageError, match="bf16"):
        check_step(plain, plain, "bf61")
    assert set(LIMITS) == {"fp32", "tf32", "bf16", "fp16", "fp8"}


# paired losses


def arms(n: int, noise: float, seed: int, repeats: int = 3, carried: float = 0.3) -> tuple[list[list[float]], list[float]]:
    """Equal runs around a falling loss near 2; a share of each step's noise carries over to the next."""
    draw = np.random.default_rng(seed)
    off = draw.normal(0.0, noise, (repeats + 1, n))
    for step in range(1, n):
        off[:, step] = carried * off[:, step - 1] + np.sqrt(1 - carried**2) * off[:, step]
    losses = 2.0 + 0.3 * np.exp(-np.arange(n) / n) + 0.1 * draw.normal(size=n) + off
    return losses[1:].tolist(), losses[0].tolist()


def test_equal_runs_pass_with_their_figures() -> None:
    reference, candidate = arms(60, 0.02, seed=1)
    check = check_losses(reference, candidate)
    assert check.passed and check.n == 60 and check.power > 0.95 and "non-inferiority" in check.test
    assert check.margin == pytest.approx(0.01 * np.mean(reference)) and check.figures["upper_bound"] < check.margin
    assert "60 paired steps agree" in check.why


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        ([0.0] * 40, "40 paired steps have identical losses"),
        ([1e-6, -1e-6] * 20, "40 paired steps agree: loss differs by less than 0.01%; margin 1%, power 100%"),
        ([2.0**-8, -(2.0**-8)] * 20, "40 paired steps agree: loss differs by less than 0.01%; margin 1%, power 100%"),
        ([-0.004, -0.006] * 20, "loss is better by 0.25%, at least by 0.25%; margin"),
        ([0.004, 0.006] * 20, "loss is worse by 0.25%, at most 0.25% worse (95%); margin"),
        ([0.06, 0.06] + [-0.004] * 38, "loss is better by 0.04%, at most 0.25% worse (95%); margin"),
    ],
)
def test_the_verdict_says_how_much_two_runs_differ(candidate: list[float], words: str) -> None:
    assert words in check_losses([[2.0] * 40, [2.0] * 40], [2.0 + off for off in candidate]).why


def test_a_better_run_passes() -> None:
    reference, candidate = arms(60, 0.02, seed=2)
    assert check_losses(reference, [0.9 * loss for loss in candidate]).passed


def test_a_run_three_percent_worse_fails() -> None:
    for seed in range(20):
        reference, candidate = arms(60, 0.02, seed)
        check = check_losses(reference, [1.03 * loss for loss in candidate])
        assert not check.passed and "worse by" in check.why and "not enough evidence" not in check.why


def test_a_run_worse_by_the_margin_passes_at_most_1_time_in_20() -> None:
    passed = 0
    for seed in range(400):
        reference, candidate = arms(60, 0.03, seed)
        worse = check_losses(reference, candidate).margin
        passed += check_losses(reference, [loss + worse for loss in candidate]).passed
    assert passed / 400 <= 0.08


@pytest.mark.parametrize("noise", [0.03, 0.045, 0.06, 0.09])
def test_power_matches_simulation(noise: float) -> None:
    checks = [check_losses(*arms(60, noise, seed, carried=0.0)) for seed in range(400)]
    below = np.mean([check.figures["upper_bound"] < check.margin for check in checks])
    assert below == pytest.approx(np.mean([check.power for check in checks]), abs=0.06)


def test_too_much_noise_is_not_enough_evidence_and_says_how_many_steps() -> None:
    reference, candidate = arms(30, 0.15, seed=3)
    check = check_losses(reference, candidate)
    assert not check.passed and check.power < MIN_POWER and check.why.startswith("not enough evidence")
    needed = int(check.figures["steps_needed"])
    assert needed > 200 and f"about {needed} steps" in check.why
    enough = [check_losses(*arms(2 * needed, 0.15, seed)).power for seed in range(10)]
    assert np.median(enough) > MIN_POWER


def test_too_few_steps_are_not_enough_evidence() -> None:
    reference, candidate = arms(12, 0.0001, seed=4)
    assert check_losses(reference, candidate).why == "not enough evidence: 12 paired steps, at least 20 are needed"


def test_repeats_that_differ_widen_the_margin() -> None:
    reference, candidate = arms(40, 0.001, seed=5)
    apart = [[loss + shift for loss in repeat] for repeat, shift in zip(reference, (-0.1, 0.0, 0.1), strict=True)]
    check = check_losses(apart, candidate)
    assert check.margin == pytest.approx(0.1 * 2**0.5, rel=0.02) and check.margin > check_losses(reference, candidate).margin


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda loss, step: float("nan") if step == 41 else loss, "the loss is nan at step 42 of 60"),
        (lambda loss, step: loss * 3 ** max(step - 50, 0), "diverges"),
        (lambda loss, step: loss + max(step - 25, 0) * 0.004, "drifts"),
    ],
    ids=["not finite", "explodes", "drifts"],
)
def test_diverging_runs_fail(spoil: Callable[[float, int], float], named: str) -> None:
    reference, candidate = arms(60, 0.005, seed=6)
    check: PairedCheck = check_losses(reference, [spoil(loss, step) for step, loss in enumerate(candidate)])
    assert not check.passed and named in check.why


def test_equal_losses_to_the_last_digit_pass() -> None:
    reference, _ = arms(20, 0.0, seed=7)
    check = check_losses(reference, reference[0])
    assert check.passed and check.power == 1.0


def test_runs_of_different_lengths_are_rejected() -> None:
    with pytest.raises(UsageError, match="as long as the candidate"):
        check_losses([[1.0] * 20, [1.0] * 19], [1.0] * 20)
    with pytest.raises(UsageError, match="one repeat"):
        check_losses([], [1.0] * 20)
