"""What waits in host memory comes back as it was: the host's update is the device's, bit for bit, and so is a gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from flatout.base.errors import UsageError
from flatout.base.specs import Spec
from flatout.engine.ema import Average
from flatout.engine.offload import ActivationOffload, HostOptimizer
from flatout.engine.optimizers import build_optimizer, decay_groups
from flatout.engine.progress import Progress
from flatout.engine.settings import Settings
from flatout.engine.state import TrainState
from flatout.engine.step import Step

CPU = torch.device("cpu")
NAN = float("nan")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(8, 6, max_norm=1.0)  # changes its weights in the forward
        self.body = nn.Linear(6, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.body(self.tokens(x)))))


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, float]:
    found = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum") * batch["scale"].mean()
    return found, len(batch["y"])


def batches(count: int, bad: tuple[int, ...] = ()) -> list[dict[str, Tensor]]:
    numbers = torch.Generator().manual_seed(0)
    return [
        {
            "x": torch.randint(8, (16,), generator=numbers),
            "y": torch.randint(3, (16,), generator=numbers),
            "scale": torch.full((16,), NAN if place in bad else 1.0),
        }
        for place in range(count)
    ]


class Training:
    """A step with all that a run has around it, its optimizer on the device or on the host."""

    def __init__(self, model: nn.Module, optimizer: Any, *, on_host: bool, fused: bool = True, **options: Any) -> None:
        self.model = copy.deepcopy(model)
        groups = decay_groups(self.model, 0.1, {"head.weight": 0.5})

        def build(groups: list[dict[str, Any]]) -> Optimizer:
            return build_optimizer(optimizer, groups, 0.02, fused=fused, graph=False, device=CPU)

        self.optimizer = HostOptimizer(groups, build) if on_host else build(groups)
        self.average = Average(self.model, 0.9)
        settings = Settings(fused_optimizer=fused)
        self.step = Step(self.model, loss, self.optimizer, settings, average=self.average, **options)
        self.state = TrainState(self.model, self.optimizer, self.average, None, CPU)

    def train(self, given: list[dict[str, Tensor]], rate: float = 0.02) -> None:
        for place, batch in enumerate(given):
            self.step.update.set_rate(rate / (1 + place))
            self.step(batch)

    def tree(self) -> dict[str, Any]:
        return copy.deepcopy(self.state.tree(Progress()))

    def restore(self, tree: dict[str, Any]) -> None:
        self.state.restore(tree)
        self.step.update.state_loaded()

    def tensors(self) -> list[Tensor]:
        kept = self.optimizer.state_dict()["state"]
        state = [kept[place][name] for place in sorted(kept) for name in sorted(kept[place])]
        return [*self.model.state_dict().values(), *self.average.average, *(value for value in state if value is not None)]


def model() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def assert_equal(one: Training, other: Training) -> None:
    ours, theirs = one.tensors(), other.tensors()
    assert len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


OPTIMIZERS = [Spec("adamw", {}), Spec("adam", {}), Spec("sgd", {}), Spec("sgd", {"momentum": 0.0})]


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_the_host_updates_as_the_device_does(optimizer: Spec, clip: float | None) -> None:
    """Groups with other rates and decay, a part without gradients, weights that the model changes, two steps to skip."""
    start = model()
    host, plain = (Training(start, optimizer, on_host=on_host, clip=clip) for on_host in (True, False))
    given = batches(20, bad=(0, 7))
    host.train(given), plain.train(given)
    assert_equal(host, plain)
    assert not torch.equal(host.model.state_dict()["body.weight"], start.state_dict()["body.weight"])
    assert torch.equal(host.model.state_dict()["unused.weight"], start.state_dict()["unused.weight"])


@pytest.mark.parametrize("optimizer", [Spec("adamw", {}), lambda groups, lr: AdamW(groups, lr=lr, amsgrad=True)])
def test_any_optimizer_skips_a_bad_step_and_else_does_what_it_does(optimizer: Any) -> None:
    host, plain = (Training(model(), optimizer, on_host=on_host, fused=False) for on_host in (True, False))
    good = batches(6)
    host.train(good), plain.train(good)
    assert_equal(host, plain)
    before = [tensor.clone() for tensor in host.optimizer.param_groups[0]["params"]]
    host.train(batches(1, bad=(0,)))
    assert all(map(torch.equal, before, host.optimizer.param_groups[0]["params"]))
    assert all(tensor.isfinite().all() for tensor in host.tensors())


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True)])
def test_a_checkpoint_goes_from_either_to_either(before: bool, after: bool, fused: bool) -> None:
    given = batches(12)
    straight = Training(model(), Spec("adamw", {}), on_host=False, fused=fused)
    straight.train(given[:6]), straight.train(given[6:])
    first = Training(model(), Spec("adamw", {}), on_host=before, fused=fused)
    first.train(given[:6])
    second = Training(model(), Spec("adamw", {}), on_host=after, fused=fused)
    second.train(given[3:5])  # whatever was there is gone
    second.restore(first.tree())
    second.train(given[6:])
    assert_equal(second, straight)


def test_a_checkpoint_of_another_form_leaves_the_host_its_own() -> None:
    """One of a graph says `capturable` and `fused`, which no loop over tensors of the host can be."""
    first, second = (Training(model(), Spec("adamw", {}), on_host=True, fused=False) for _ in range(2))
    given = batches(6)
    first.train(given[:3])
    tree = first.tree()
    for group in tree["optimizer"]["param_groups"]:
        group.update(fused=True, foreach=None, capturable=True)
    second.restore(tree)
    first.train(given[3:]), second.train(given[3:])
    assert_equal(first, second)


def test_fp16_is_refused_beside_an_optimizer_on_the_host() -> None:
    net = model()
    host = HostOptimizer(
        decay_groups(net, 0.0, {}),
        lambda groups: build_optimizer(Spec("sgd", {}), groups, 0.1, fused=True, graph=False, device=CPU),
    )
    with pytest.raises(UsageError, match=r"fp16.*--off optimizer_offload"):
        Step(net, loss, host, Settings(precision="fp16"))


# ---- activations ----


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 48)
        self.second = nn.Linear(48, 16)
        self.again = False

    def block(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))

    def forward(self, x: Tensor) -> Tensor:
        part = checkpoint(self.block, x, use_reentrant=False) if self.again else self.block(x)
        query, key, _ = self.first(part).chunk(3, dim=-1)  # views with gaps
        mixed = (query @ key.transpose(-1, -2)).softmax(-1) * torch.ones(1, 1).expand(8, 8)
        return (mixed @ x).mean(0, keepdim=True).expand(4, 8, 16).square().sum()


def gradients(net: nn.Module, compute: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    net.zero_grad()
    compute(x).backward()
    return [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]


class Watched(ActivationOffload):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.parked: list[Any] = []

    def _park(self, tensor: Tensor) -> Any:
        packed = super()._park(tensor)
        self.parked.append((tensor, packed))
        return packed


@pytest.mark.parametrize("how", ["eager", "recomputed", "compiled"])
def test_gradients_are_the_same_and_weights_stay(how: str) -> None:
    torch.manual_seed(0)
    net, x = Deep(), torch.randn(4, 8, 16)
    net.again = how == "recomputed"
    compute: Any = torch.compile(net, backend="aot_eager") if how == "compiled" else net
    plain = gradients(net, compute, x)
    offload = Watched(net, CPU, 64)

    def under(x: Tensor) -> Tensor:
        with offload():
            return compute(x)

    assert all(map(torch.equal, plain, gradients(net, under, x)))
    parked = [(tensor, packed) for tensor, packed in offload.parked if not isinstance(packed, Tensor)]
    assert all(offload._bring_back(packed).stride() == tensor.stride() for tensor, packed in parked)
    left = [tensor for tensor, _ in parked]
    weights = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    assert left and not weights & {tensor.untyped_storage().data_ptr() for tensor in left}
    assert all(tensor.nbytes >= 64 for tensor in left)


def test_nothing_is_offloaded_outside_of_the_context_and_after_an_error_in_it() -> None:
    net, x = Deep(), torch.randn(4, 8, 16)
    offload = Watched(net, CPU, 64)
    with pytest.raises(ZeroDivisionError), offload():
        net(x)
        _ = 1 / 0
    seen = len(offload.parked)
    net(x).backward()
    assert seen and len(offload.parked) == seen


def test_a_step_offloads_where_it_is_asked_to_and_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Watched] = []

    def watched(net: nn.Module, device: torch.device) -> Watched:
        made.append(Watched(net, device, 64))
        return made[-1]

    monkeypatch.setattr("flatout.engine.passes.ActivationOffload", watched)
    found = []
    for settings in (Settings(), Settings(activation_offload=True), Settings(activation_offload=True, micro_batch=16)):
        net = model()
        groups = decay_groups(net, 0.1, {})
        optimizer = build_optimizer(Spec("adamw", {}), groups, 0.02, fused=True, graph=False, device=CPU)
        step = Step(net, loss, optimizer, settings)
        step.update.set_rate(0.02)
        for batch in batches(3):
            step(batch)
        found.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert len(made) == 2 and all(any(not isinstance(packed, Tensor) for _, packed in one.parked) for one in made)
