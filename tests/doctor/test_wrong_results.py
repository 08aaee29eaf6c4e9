"""Loops that learn something else than meant, and the same loops put right: only the first are told so."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import flatout as fo
from flatout.doctor.finding import WRONG

F = nn.functional
Step = Callable[[], object]
STEPS, WATCHED = 14, 9


def wrong(step: Step, after: Callable[[], object] = lambda: None) -> dict[str, str]:
    """What the doctor says of so many steps, by name: evidence of what makes results wrong."""
    with fo.doctor.watch(steps=WATCHED, tell=io.StringIO()) as watched:
        for _ in range(STEPS):
            step()
        after()
    assert watched.diagnosis is not None
    return {one.id: one.evidence for one in watched.diagnosis.findings if one.about == WRONG}


class Learner:
    """A model and its optimizer; `loss` gets the model's answer."""

    def __init__(self, model: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor]) -> None:
        self.model, self.x, self.loss = model, x, loss
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model(self.x)).backward()
        self.optimizer.step()


X, ROWS = torch.randn(16, 8), torch.randint(0, 3, (16,))


@pytest.mark.parametrize("last, found", [(nn.Softmax(1), True), (nn.Identity(), False), (nn.LogSoftmax(1), False)])
def test_a_softmax_before_cross_entropy(last: nn.Module, found: bool) -> None:
    told = wrong(Learner(nn.Sequential(nn.Linear(8, 3), last), X, lambda answer: nn.CrossEntropyLoss()(answer, ROWS)))
    assert ("refused_by_loss" in told) == found


def test_a_sigmoid_that_goes_through_a_view_on_its_way_to_the_loss() -> None:
    model = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
    told = wrong(Learner(model, X, lambda answer: F.binary_cross_entropy_with_logits(answer.view(-1), (ROWS > 1).float())))
    assert "sigmoid" in told["refused_by_loss"]


@pytest.mark.parametrize("target, found", [(X[:, 0], True), (X[:, :1], False)])
def test_predictions_that_are_compared_with_all_targets(target: Tensor, found: bool) -> None:
    told = wrong(Learner(nn.Linear(8, 1), X, lambda answer: (answer - target).square().mean()))
    assert ("broadcast_loss" in told) == found
    assert not found or "(16, 16)" in told["broadcast_loss"]


class Writer(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal, self.embed, self.out = causal, nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.out(F.scaled_dot_product_attention(x, x, x, is_causal=self.causal)).transpose(1, 2)


@pytest.mark.parametrize("causal, shift, found", [(True, 0, True), (True, 1, False), (False, 0, False)])
def test_targets_that_are_the_inputs_of_a_causal_model(causal: bool, shift: int, found: bool) -> None:
    text = torch.randint(0, 20, (4, 12))
    step = Learner(Writer(causal), text[:, : 12 - shift], lambda scores: F.cross_entropy(scores, text[:, shift:]))
    assert ("copied_targets" in wrong(step)) == found


@pytest.mark.parametrize("order", ["clear between", "never clear", "clear after"])
def test_when_gradients_are_cleared(order: str) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        model(X).square().mean().backward()
        if order == "clear between":
            optimizer.zero_grad()
        optimizer.step()
        if order == "clear after":
            optimizer.zero_grad(set_to_none=False)

    expected = {"clear between": "stepping_without_gradients", "never clear": "gradients_never_cleared"}
    assert set(wrong(step)) == {expected[order]} - {""} if order in expected else not wrong(step)


def test_gradients_of_several_batches_and_of_another_networks_step_are_no_fault() -> None:
    """A GAN: the critic's gradients are not empty after the generator's backward pass, and cleared before its own."""
    maker, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    for_maker, for_critic = (torch.optim.SGD(one.parameters(), lr=1e-3, fused=True) for one in (maker, critic))

    def step() -> None:
        for_critic.zero_grad()
        for _ in range(2):
            (critic(maker(torch.randn(4, 4)).detach()).mean() - critic(X).mean()).backward()
        for_critic.step()
        for_maker.zero_grad()
        (-critic(maker(torch.randn(4, 4))).mean()).backward()
        for_maker.step()

    assert not wrong(step)


class Two(nn.Module):
    """An encoder and a head; what is between them, and how they are kept, is the fault or not."""

    def __init__(self, detached: bool = False, listed: bool = False) -> None:
        super().__init__()
        parts = [nn.Linear(8, 8), nn.Linear(8, 1)]
        self.parts = parts if listed else nn.ModuleList(parts)
        self.extra, self.detached = nn.Linear(1, 1), detached

    def forward(self, x: Tensor) -> Tensor:
        x = self.parts[0](x)
        return self.extra(self.parts[1](x.detach() if self.detached else x))


@pytest.mark.parametrize(
    "detached, listed, expected",
    [(False, False, set()), (True, False, {"cut_gradients"}), (False, True, {"untrained_weights"})],
)
def test_weights_that_never_learn(detached: bool, listed: bool, expected: set[str]) -> None:
    assert set(wrong(Learner(Two(detached, listed), X, lambda answer: answer.square().mean()))) == expected


def test_a_head_that_replaced_the_one_that_the_optimizer_has() -> None:
    model = Two()
    step = Learner(model, X, lambda answer: answer.square().mean())
    model.extra = nn.Linear(1, 1)
    assert set(wrong(step)) >= {"untrained_weights"}


def test_a_backbone_without_an_optimizer_costs_time_and_is_no_fault() -> None:
    backbone, head = nn.Linear(8, 512), nn.Linear(512, 1)
    step = Learner(head, X, lambda answer: answer.square().mean())
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3, fused=True)

    def whole() -> None:
        optimizer.zero_grad()
        step.loss(head(backbone(torch.randn(512, 8)).tanh())).backward()
        optimizer.step()

    with fo.doctor.watch(steps=WATCHED, tell=io.StringIO()) as watched:
        for _ in range(STEPS):
            whole()
    assert watched.diagnosis is not None
    found = {one.id: one for one in watched.diagnosis.findings}
    assert found["needless_gradients"].cost_ms > 0 and "2 weight tensors" in found["needless_gradients"].evidence
    assert not [one for one in found.values() if one.about == WRONG]


DATA: Dataset[tuple[Tensor, ...]] = TensorDataset(torch.randn(56, 8), torch.randn(56, 1))


@pytest.mark.parametrize("evaluated, found", [("same", "no other data"), ("mixed", "8 of 16"), ("apart", ""), ("both", "")])
def test_an_evaluation_on_rows_of_the_training(evaluated: str, found: str) -> None:
    train = DataLoader(Subset(DATA, range(40)), batch_size=4, shuffle=True)
    others = {"mixed": [Subset(DATA, range(32, 48))], "apart": [Subset(DATA, range(40, 56))], "same": []}
    sets = others.get(evaluated, others["apart"])
    loaders = [DataLoader(one, batch_size=8) for one in sets] + ([train] if evaluated in ("same", "both") else [])
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    with fo.doctor.watch(steps=WATCHED, tell=io.StringIO()) as watched:
        for _ in range(2):
            for x, y in train:
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
            with torch.no_grad():
                for loader in loaders:
                    for x, y in loader:
                        F.mse_loss(model(x), y)
    assert watched.diagnosis is not None
    told = {one.id: one.evidence for one in watched.diagnosis.findings if one.about == WRONG}
    assert found in told["evaluated_on_training_data"] if found else not told


@pytest.mark.parametrize("set_back", [False, True])
def test_a_model_that_stays_in_evaluation_mode(set_back: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 1), nn.Dropout(0.1))
    step = Learner(model, X, lambda answer: answer.square().mean())
    done: list[int] = []

    def one() -> None:
        model.train(set_back or len(done) < 6)
        done.append(1)
        step()

    assert ("eval_mode_in_training" in wrong(one)) != set_back


@pytest.mark.parametrize("value, found", [(0.0, True), (1.0, False)])
def test_a_loss_that_is_not_finite(value: float, found: bool) -> None:
    x = torch.full((16, 8), value).log()
    assert ("not_finite" in wrong(Learner(nn.Linear(8, 1), x, lambda answer: answer.square().mean()))) == found


@pytest.mark.parametrize("shuffle", [False, True])
def test_data_in_the_order_of_its_classes(shuffle: bool) -> None:
    kinds = torch.arange(6).repeat_interleave(48)
    loader = DataLoader(TensorDataset(torch.randn(288, 8), kinds), batch_size=16, shuffle=shuffle)
    model = nn.Linear(8, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    with fo.doctor.watch(steps=WATCHED, tell=io.StringIO()) as watched:
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert watched.diagnosis is not None
    assert ("sorted_data" in {one.id for one in watched.diagnosis.findings}) != shuffle


@pytest.mark.parametrize("every", [1, 20])
def test_a_schedule_for_epochs_that_is_called_for_each_batch(every: int) -> None:
    step = Learner(nn.Linear(8, 1), X, lambda answer: answer.square().mean())
    schedule = torch.optim.lr_scheduler.StepLR(step.optimizer, 1, gamma=0.5)
    done: list[int] = []

    def one() -> None:
        step()
        done.append(1)
        if len(done) % every == 0:
            schedule.step()

    assert ("vanished_learning_rate" in wrong(lambda: [one() for _ in range(6)])) == (every == 1)


def test_a_loss_under_vmap_is_computed_as_ever() -> None:
    model = nn.Linear(8, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    kinds = torch.zeros(3, 16, dtype=torch.long)

    def step() -> None:
        losses = torch.func.vmap(lambda x, y: F.cross_entropy(model(x), y))(torch.randn(3, 16, 8), kinds)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()

    assert not wrong(step)
