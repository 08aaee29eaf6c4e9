"""Remedies that only a GPU can take: whatever a script does with its model, the numbers are those of the plain one."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, Dataset, Sampler

import flatout as fo
from flatout.boost.hooks import Hooks
from flatout.boost.remedies.all import REMEDIES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@contextmanager
def remedied(*names: str) -> Iterator[None]:
    hooks = Hooks()
    for name in names:
        REMEDIES[name].apply("on" if name != "aligned_products" else 64, hooks)
    hooks.install()
    try:
        yield
    finally:
        hooks.patches.restore()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[torch.cuda.CUDAGraph]:
    """Each graph, as often as it was replayed."""
    seen: list[torch.cuda.CUDAGraph] = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: seen.append(graph) or replay(graph))
    return seen


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.0), nn.Linear(8 * 36, 10)
    ).cuda()


def batch(number: int, rows: int = 16) -> tuple[Tensor, Tensor]:
    draw = torch.Generator("cuda").manual_seed(number)
    x = torch.randn(rows, 1, 8, 8, device="cuda", generator=draw)
    return x, torch.randint(0, 10, (rows,), device="cuda", generator=draw)


def in_the_usual_way(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    losses = []
    for step in range(6):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def with_accumulation(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    losses = []
    for step in range(6):
        optimizer.zero_grad()
        for part in range(3):
            x, y = batch(10 * step + part)
            loss = F.cross_entropy(model(x), y) / 3
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    return losses


def with_gradients_set_to_zero(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    losses = []
    for step in range(6):
        x, y = batch(step)
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def twice_before_going_back(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    losses = []
    for step in range(6):
        (x, y), (u, v) = batch(step), batch(100 + step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + F.cross_entropy(model(u), v)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def keeping_its_outputs(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    kept = []
    for step in range(6):
        x, y = batch(step)
        optimizer.zero_grad()
        output = model(x)
        F.cross_entropy(output, y).backward()
        optimizer.step()
        kept.append(output)
    return [output.detach() for output in kept]


def with_evaluations_and_a_short_batch(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    losses = []
    for step in range(8):
        x, y = batch(step, rows=16 if step % 3 else 7)
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            losses += [loss.detach(), model(x).sum()]
    return losses


def freezing_a_layer(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    losses = in_the_usual_way(model, optimizer)
    assert isinstance(model, nn.Sequential)
    model[0].requires_grad_(False)
    model[1].eval()
    return losses + in_the_usual_way(model, optimizer)


def under_autocast(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    losses = []
    for step in range(6):
        x, y = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def keeping_gradients(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    kept = []
    for step in range(6):
        x, y = batch(step)
        kept += torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    return kept


def going_back_twice(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    losses = []
    for step in range(6):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def with_another_layer(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    losses = in_the_usual_way(model, optimizer)
    assert isinstance(model, nn.Sequential)
    torch.manual_seed(1)
    model[5] = nn.Linear(8 * 36, 10).cuda()
    return losses + in_the_usual_way(model, torch.optim.SGD(model.parameters(), lr=0.05))


def all_of_it_frozen(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    losses = in_the_usual_way(model, optimizer)
    model.requires_grad_(False)
    return [*losses, model(batch(9)[0])]


WAYS = [
    in_the_usual_way, with_accumulation, with_gradients_set_to_zero, twice_before_going_back, keeping_its_outputs,
    with_evaluations_and_a_short_batch, freezing_a_layer, under_autocast, keeping_gradients, going_back_twice,
    with_another_layer, all_of_it_frozen,
]  # fmt: skip


def trained(way: Callable[[nn.Module, torch.optim.Optimizer], list[Tensor]]) -> tuple[list[Tensor], dict[str, Tensor]]:
    model = network()
    return way(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)), model.state_dict()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_graph_gives_the_numbers_of_the_plain_call(way: Callable[..., Any]) -> None:
    torch.backends.cudnn.deterministic = True
    try:
        losses, weights = trained(way)
        with remedied("cuda_graphs"):
            graphed, also = trained(way)
    finally:
        torch.backends.cudnn.deterministic = False
    close = 2e-2 if way is under_autocast else 1e-4
    for a, b in zip(losses, graphed, strict=True):
        torch.testing.assert_close(a, b, rtol=close, atol=close)
    for name in weights:
        torch.testing.assert_close(weights[name], also[name], rtol=close, atol=close, msg=name)


class Recurrent(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.layers = nn.LSTM(32, 32, num_layers=2, dropout=dropout)

    def forward(self, x: Tensor, hidden: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, hidden = self.layers(self.embedding(x), hidden)
        return self.out(output), hidden


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(50, 32), nn.Linear(32, 50)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.out(self.layers(self.embedding(x), mask=mask))


class MaskedFromTheHost(Masked):
    """Makes one mask at its first call and one at each, and numbers too, all on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1]
        if self.kept is None:
            self.kept = torch.ones(size, size).triu(1).to(x.device)
        mask = torch.ones(size, size).triu(1).to(x.device)
        mask += self.kept
        scale = torch.tensor([0.5, 1.5], device=x.device).sum() * torch.tensor(0.5)
        return self.out(self.layers(self.embedding(x) * scale, mask=mask.masked_fill_(mask > 0, float("-inf"))))


def of_words(model: nn.Module) -> list[Tensor]:
    """Updated by hand, with a hidden state that goes from batch to batch where the model has one."""
    losses = []
    hidden = (torch.zeros(2, 8, 32, device="cuda"), torch.zeros(2, 8, 32, device="cuda"))
    for step in range(20):
        draw = torch.Generator("cuda").manual_seed(step)
        words = torch.randint(0, 50, (12, 8), device="cuda", generator=draw)
        model.zero_grad()
        if isinstance(model, Recurrent):
            output, (h, c) = model(words, hidden)
            hidden = (h.detach(), c.detach())
        else:
            output = model(words)
        loss = F.cross_entropy(output.view(-1, 50), words.roll(1).view(-1))
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                assert weight.grad is not None
                weight.add_(weight.grad, alpha=-2.0)
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("kind", [Recurrent, Masked, MaskedFromTheHost])
def test_a_graph_takes_recurrent_layers_and_layers_that_look_at_their_mask(kind: type[nn.Module]) -> None:
    def trained() -> tuple[list[Tensor], int]:
        torch.manual_seed(0)
        model = kind().cuda()
        calls = []
        model.out.forward = lambda x, forward=model.out.forward: calls.append(1) or forward(x)  # type: ignore[method-assign]
        return [*of_words(model), *model.state_dict().values()], len(calls)

    plain, _ = trained()
    with remedied("cuda_graphs"):
        graphed, calls = trained()
    assert calls < 10  # the layers themselves are called to warm up and to capture, not for every step
    for a, b in zip(plain, graphed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # a large library has its own
@pytest.mark.parametrize("padded", [False, True])
def test_a_graph_takes_models_of_transformers(padded: bool, replays: list[torch.cuda.CUDAGraph]) -> None:
    transformers = pytest.importorskip("transformers")

    def trained() -> list[Tensor]:
        torch.manual_seed(0)
        size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **size, **still)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(12):
            draw = torch.Generator("cuda").manual_seed(step)
            words = torch.randint(0, 50, (8, 12), device="cuda", generator=draw)
            mask = torch.ones_like(words)
            mask[:, 12 - step % 3 :] = 0 if padded else 1
            optimizer.zero_grad()
            loss = model(input_ids=words, attention_mask=mask, labels=words[:, 0] % 2).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    plain = trained()
    with remedied("cuda_graphs"):
        graphed = trained()
    assert len(replays) > 10
    torch.testing.assert_close(graphed, plain, rtol=1e-3, atol=1e-3)


def test_dropout_between_recurrent_layers_is_drawn_anew_in_each_replay() -> None:
    torch.manual_seed(0)
    model = Recurrent(dropout=0.5).cuda()
    words = torch.randint(0, 50, (12, 8), device="cuda")
    hidden = (torch.zeros(2, 8, 32, device="cuda"), torch.zeros(2, 8, 32, device="cuda"))
    outputs = []
    with remedied("cuda_graphs"):
        for _ in range(8):
            output = model(words, hidden)[0]
            output.sum().backward()
            outputs.append(output.detach())
    assert len({round(float(output.double().sum()), 6) for output in outputs}) > 6


def test_a_graph_is_what_runs(replays: list[torch.cuda.CUDAGraph]) -> None:
    model = nn.Linear(8, 2).cuda()
    with remedied("cuda_graphs"):
        for step in range(30):
            model(torch.full((4, 8), float(step), device="cuda")).sum().backward()
    assert len(replays) == 2 * 29  # forward and backward, but for the first call, which is a plain one


def test_a_model_that_counts_its_calls_is_not_replayed() -> None:
    calls = []

    class Counted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(1)
            return super().forward(x)

    model = Counted(8, 2).cuda()
    with remedied("cuda_graphs"):
        for step in range(30):
            model(torch.full((4, 8), float(step), device="cuda")).sum().backward()
    assert len(calls) == 30


def test_a_line_of_the_script_does_the_same() -> None:
    model, x = Recurrent().cuda(), torch.zeros(12, 8, dtype=torch.long, device="cuda")
    hidden = (torch.zeros(2, 8, 32, device="cuda"), torch.zeros(2, 8, 32, device="cuda"))
    calls = []
    model.out.forward = lambda x, forward=model.out.forward: calls.append(forward(x)) or calls[-1]  # type: ignore[method-assign]
    fo.boost.keep(cuda_graphs="on", autocast="bf16")
    try:
        for _ in range(20):
            model(x, hidden)[0].sum().backward()
    finally:
        fo.boost.keep(cuda_graphs="off", autocast="off")
    assert len(calls) < 10 and {one.dtype for one in calls} == {torch.bfloat16}


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_a_graph_takes_compiled_code() -> None:
    def trained(*names: str) -> list[Tensor]:
        model = network()
        with remedied(*names):
            return in_the_usual_way(model, torch.optim.SGD(model.parameters(), lr=0.1))

    plain = trained()
    torch._dynamo.reset()
    counters["frames"].clear()
    both = trained("compile", "cuda_graphs")
    assert counters["frames"]["ok"] > 0
    for a, b in zip(plain, both, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores", "ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("of_the_script", [torch.float16, torch.float32])
def test_code_that_was_compiled_for_another_autocast_is_not_run(of_the_script: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(64, 256, device="cuda"), torch.randn(32, 256, device="cuda")

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(weights.clone())

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight)

    with torch.autocast("cuda", of_the_script):
        earlier = Product()
        earlier.compile()
        earlier(x).sum().backward()  # and torch keeps its code
    torch._dynamo.reset()
    with torch.autocast("cuda", torch.bfloat16):
        expected = Product()(x).float()
    with remedied("compile", "autocast"), torch.autocast("cuda", of_the_script):
        found = Product()(x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_what_a_model_keeps_and_what_a_script_sets_is_heard() -> None:
    class Scaled(nn.Linear):
        mask: Tensor | None = None
        factor = 1.0

        def forward(self, x: Tensor) -> Tensor:
            if self.mask is None or len(self.mask) != len(x):
                self.mask = torch.ones(len(x), 1, device="cuda")
            return super().forward(x) * self.mask * self.factor

    def used() -> list[float]:
        torch.manual_seed(0)
        model = Scaled(8, 2).cuda()
        seen = []
        for step in range(12):
            model.factor = 1.0 + step // 4
            output = model(torch.full((4 if step % 5 else 3, 8), 1.0, device="cuda"))
            output.sum().backward()
            torch.randn(64, device="cuda")  # takes the memory of whatever was let go
            seen.append(output.sum().item())
        return seen

    plain = used()
    with remedied("cuda_graphs"):
        assert used() == pytest.approx(plain)


def test_a_tensor_of_the_host_that_a_script_writes_to_is_heard() -> None:
    class Scaled(nn.Linear):
        rate = torch.ones(1)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.rate.to(x.device)

    model, x = Scaled(8, 2).cuda(), torch.ones(4, 8, device="cuda")
    with remedied("cuda_graphs"):
        for step in range(8):
            Scaled.rate.fill_(float(step))
            output = model(x)
            output.sum().backward()
            torch.testing.assert_close(output, F.linear(x, model.weight, model.bias) * step)


def test_a_number_that_a_forward_returns_is_the_one_of_its_call() -> None:
    count = iter(range(100))

    class Numbered(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, int]:  # type: ignore[override]
            number = next(count)
            return super().forward(x), torch.tensor(number), number

    model, x = Numbered(8, 2).cuda(), torch.ones(4, 8, device="cuda")
    with remedied("cuda_graphs"):
        for _ in range(8):
            before = next(count)
            output, on_host, number = model(x)
            output.sum().backward()
            assert number > before and int(on_host) == number


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores", "ignore:The .grad attribute of a Tensor")
def test_a_function_that_is_compiled_stays_so_in_a_graph() -> None:
    compute = torch.compile(lambda x: (x * 2).relu() + 1)

    class Partly(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return compute(super().forward(x))

    model, x = Partly(8, 2).cuda(), torch.randn(4, 8, device="cuda")
    expected = (F.linear(x, model.weight, model.bias) * 2).relu() + 1
    torch._dynamo.reset()
    counters.clear()
    with remedied("cuda_graphs"):
        for _ in range(8):
            output = model(x)
            output.sum().backward()
            torch.testing.assert_close(output, expected)
    assert counters["stats"]["unique_graphs"] == 1


def test_dropout_is_drawn_anew_in_each_replay() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).cuda()
    x = torch.ones(4, 64, device="cuda")
    with remedied("cuda_graphs"):
        outputs = [model(x) for _ in range(1)]
        for _ in range(5):
            outputs[-1].sum().backward()
            outputs.append(model(x))
    assert len({tuple((output == 0).flatten().tolist()) for output in outputs}) > 4


def test_a_model_that_does_more_than_compute_is_called_plainly() -> None:
    class Lucky(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1 + (random.random() < 0.5))

    torch.manual_seed(0)
    model = Lucky(8, 1, bias=False).cuda()
    x = torch.ones(1, 8, device="cuda")
    random.seed(0)
    plain = [model(x).item() for _ in range(12)]
    random.seed(0)
    with remedied("cuda_graphs"):
        seen = []
        for _ in range(15):
            output = model(x)
            output.sum().backward()
            seen.append(output.item())
    assert len(set(seen[3:])) == 2 == len(set(plain))


def test_a_loss_that_is_read_early_is_the_loss() -> None:
    model = nn.Linear(8, 1).cuda()
    with remedied("early_reads"):
        for step in range(5):
            loss = model(torch.full((4, 8), float(step), device="cuda")).sum()
            loss.backward()
            expected = loss.detach().cpu().numpy().item()
            assert loss.item() == float(loss.detach()) == loss.detach().item() == expected
            with torch.no_grad():
                loss.detach().mul_(2)  # written to since
            assert loss.item() == pytest.approx(2 * expected)


def test_reading_under_inference_mode() -> None:
    model = nn.Linear(8, 1).cuda()
    with remedied("early_reads"):
        loss = model(torch.ones(4, 8, device="cuda")).sum()
        loss.backward()
        expected = loss.item()
        del loss
        with torch.inference_mode():
            assert model(torch.ones(4, 8, device="cuda")).sum().item() == pytest.approx(expected)


def test_reading_a_loss_does_not_wait_for_what_came_after_it() -> None:
    weight = torch.randn(4096, 4096, device="cuda", requires_grad=True)
    with remedied("early_reads"):
        for _ in range(3):
            loss = (weight * weight).mean()
            loss.backward()
            for _ in range(40):
                weight.detach() @ weight.detach()
            after = torch.cuda.Event()
            after.record()
            loss.item()
            early = not after.query()
    assert early


def test_wider_products_are_the_same_products() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 1031).cuda().bfloat16()
    x = torch.randn(3, 32, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def passed() -> list[Tensor]:
        layer.zero_grad()
        x.grad = None
        output = layer(x)
        F.cross_entropy(output.view(-1, 1031).float(), torch.arange(96, device="cuda")).backward()
        assert x.grad is not None and layer.weight.grad is not None and layer.bias.grad is not None
        return [output.detach(), x.grad, layer.weight.grad, layer.bias.grad]

    plain = passed()
    with remedied("aligned_products"):
        wide = passed()
    for a, b in zip(plain, wide, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


class Squares(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((3,), float(index * index)), index


def test_batches_that_stay_on_the_device_are_the_loaders_own() -> None:
    def passed() -> list[list[Tensor]]:
        return list(DataLoader(Squares(), batch_size=7, shuffle=True, generator=torch.Generator().manual_seed(3)))

    plain = passed()
    hooks = Hooks()
    REMEDIES["resident_data"].apply("cuda", hooks)
    try:
        kept = passed()
    finally:
        hooks.patches.restore()
    assert all(part.is_cuda and part.is_contiguous() for batch in kept for part in batch)
    for a, b in zip(plain, kept, strict=True):
        assert all(torch.equal(x, y.cpu()) for x, y in zip(a, b, strict=True))


def test_a_sampler_of_the_scripts_own_is_never_asked_early() -> None:
    class Learning(Sampler[int]):
        asked = 0

        def __iter__(self) -> Iterator[int]:
            for index in range(64):
                self.asked = index + 1
                yield index

        def __len__(self) -> int:
            return 64

    sampler, hooks = Learning(), Hooks()
    REMEDIES["resident_data"].apply("cuda", hooks)
    try:
        seen = [sampler.asked for _ in DataLoader(Squares(), batch_size=16, sampler=sampler)]
    finally:
        hooks.patches.restore()
    assert seen == [16, 32, 48, 64]


class Scaled(nn.Module):
    """Goes by a table that a script may write to, and keeps statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.table = nn.Linear(4, 4), nn.BatchNorm1d(4), {"beta": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) * self.table["beta"]  # type: ignore[no-any-return]


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.one(hidden), self.other(hidden)


class Constrained(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.1)
        return super().forward(x)


class WritesToItsInput(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(1.0))


class Bank(nn.Module):
    """Its memory is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.memory = nn.Linear(4, 4), torch.zeros(4, device="cuda")

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)
        with torch.no_grad():
            self.memory.mul_(0.9).add_(found.detach().mean(0))
        return found + self.memory  # type: ignore[no-any-return]


class ReadsAValue(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if x.sum().item() > 0 else 1.0)


class PartlyInFloat32(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.narrow(x)
        with torch.autocast("cuda", enabled=False):
            return self.wide(hidden.float())  # type: ignore[no-any-return]


class Tied(nn.Linear):
    """One weight, used twice: under autocast both get the same copy of it, and its gradient is their sum."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(super().forward(x).relu())


outer = torch.ones(4)


class ReadsAGlobal(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * outer


def squared(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return model(x).square().mean()  # type: ignore[no-any-return]


def on_a_schedule(model: nn.Module, x: Tensor, step: int) -> Tensor:
    if step == 4:
        model.table["beta"] = 0.1  # type: ignore[index, operator]
    return squared(model, x, step)


def from_one_head_later(model: nn.Module, x: Tensor, step: int) -> Tensor:
    one, other = model(x)
    return one.square().mean() + (other.square().mean() if step < 3 else 0.0)  # type: ignore[no-any-return]


def with_its_input_afterwards(model: nn.Module, x: Tensor, step: int) -> Tensor:
    return squared(model, x, step) + x.sum()


def with_another_global(model: nn.Module, x: Tensor, step: int) -> Tensor:
    globals()["outer"] = torch.full((4,), step + 1.0, device="cuda")
    return squared(model, x, step)


def going_back_twice(model: nn.Module, x: Tensor, step: int) -> Tensor:
    output = model(x)
    output.square().mean().backward(retain_graph=True)
    return (output * model(x + 1)).mean()  # type: ignore[no-any-return]


def in_bf16(model: nn.Module, x: Tensor, step: int) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        output = model(x)
    return output.float().square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "call", "is_graphed"),
    [
        (Scaled, squared, True),
        (Scaled, on_a_schedule, True),
        (Heads, from_one_head_later, True),
        (Bank, squared, True),
        (Scaled, going_back_twice, True),
        (PartlyInFloat32, in_bf16, True),
        (lambda: Tied(4, 4), in_bf16, True),
        (lambda: Constrained(4, 4), squared, False),
        (lambda: WritesToItsInput(4, 4), with_its_input_afterwards, False),
        (lambda: ReadsAValue(4, 4), squared, False),
        (lambda: ReadsAGlobal(4, 4), with_another_global, False),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_what_a_model_does_beside_computing_is_done_or_it_is_called_plainly(
    make: Callable[[], nn.Module], call: Callable[..., Tensor], is_graphed: bool, replays: list[torch.cuda.CUDAGraph]
) -> None:
    def trained() -> list[Tensor]:
        torch.manual_seed(0)
        model = make().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        losses = []
        for step in range(8):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step)).cuda()
            optimizer.zero_grad()
            loss = call(model, x, step)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [
            *losses,
            *model.parameters(),
            *model.buffers(),
            *[one for one in (getattr(model, "memory", None),) if one is not None],
        ]

    plain = trained()
    with remedied("cuda_graphs"):
        found = trained()
    assert bool(replays) == is_graphed
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other)


def test_a_capture_that_failed_leaves_the_allocator_as_it_was() -> None:
    class Waits(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            torch.cuda.synchronize()  # nothing that can be seen beforehand
            return super().forward(x)

    with remedied("cuda_graphs"):
        model = Waits(4, 4).cuda()
        for _ in range(3):
            model(torch.ones(2, 4, device="cuda")).sum().backward()
        beside = torch.cuda.Stream()
        sizes = []
        for _ in range(4):  # what another stream was told of is only freed while no capture goes on
            kept = torch.empty(1 << 20, device="cuda")
            kept.record_stream(beside)
            del kept
            torch.cuda.synchronize()
            sizes.append(torch.cuda.memory_allocated())
        assert sizes[-1] == sizes[0]
        trained = network()
        x, y = batch(0)
        for _ in range(3):  # and another model can still be captured
            F.cross_entropy(trained(x), y).backward()


def test_a_copy_is_of_what_was_there_when_it_was_asked_for() -> None:
    with remedied("async_copies"):
        host = torch.ones(1 << 20).pin_memory()
        weight = torch.randn(4096, 4096, device="cuda")
        for _ in range(40):
            weight @ weight  # the device is busy for a while
        before = torch.cuda.Event()
        before.record()
        there = host.to("cuda")
        early = not before.query()
        host.zero_()
        assert early and bool((there == 1).all())
        assert torch.equal(host.to("cuda", torch.float64, False), torch.zeros(1 << 20, device="cuda", dtype=torch.float64))


class HandWritten(nn.Module):
    """Attention and a head as many scripts write them."""

    def __init__(self, words: int = 8192, width: int = 256, heads: int = 4, places: int = 256) -> None:
        super().__init__()
        self.heads, self.words = heads, nn.Embedding(words, width)
        self.query_key_value, self.head = nn.Linear(width, 3 * width), nn.Linear(width, words)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("seen", torch.tril(torch.ones(places, places)).view(1, 1, places, places))

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        rows, places, width = x.shape
        parts = self.query_key_value(x).split(width, 2)
        q, k, v = (one.view(rows, places, self.heads, -1).transpose(1, 2) for one in parts)
        weights = (q @ k.transpose(-2, -1)) * k.size(-1) ** -0.5
        weights = weights.masked_fill(self.seen[:, :, :places, :places] == 0, float("-inf"))
        y = self.drop(F.softmax(weights, dim=-1)) @ v
        return self.head(x + y.transpose(1, 2).reshape(rows, places, width))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("beside", [(), ("cuda_graphs",)], ids=str)
def test_attention_and_a_loss_by_hand_are_learned_from_as_written(dtype: torch.dtype, beside: tuple[str, ...]) -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    text = torch.randint(0, 8192, (8, 257), device="cuda", generator=draw)

    def trained() -> tuple[list[Tensor], int]:
        torch.manual_seed(0)
        before = torch.cuda.memory_allocated()  # what an earlier training left
        model = HandWritten().cuda()
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        torch.cuda.reset_peak_memory_stats()
        for _ in range(5):
            with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
                logits = model(text[:, :-1])
                loss = F.cross_entropy(logits.view(-1, logits.size(-1)), text[:, 1:].reshape(-1), ignore_index=5)
            loss.backward()
            losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
        assert losses[0].dtype == torch.float32
        return [*losses, *(weight.detach() for weight in model.parameters())], torch.cuda.max_memory_allocated() - before

    plain, most = trained()
    with remedied("fused_attention", "fused_loss", *beside):
        found, fewer = trained()
    tolerance = {"atol": 2e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 4e-3, "rtol": 2e-2}
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, **tolerance)
    assert beside or fewer < most


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_attention_by_hand_is_one_kernel() -> None:
    def kernels() -> set[str]:
        torch.manual_seed(0)
        model, text = HandWritten().cuda(), torch.randint(0, 8192, (8, 256), device="cuda")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            model(text).float().square().mean().backward()
        return {event.key for event in seen.key_averages()}

    assert "aten::_softmax_backward_data" in kernels()
    with remedied("fused_attention"):
        found = kernels()
    assert "aten::_softmax_backward_data" not in found
    assert any("scaled_dot_product" in name and "backward" in name for name in found)


WITH_STATISTICS = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
block = lambda width: nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), *(block(32) for _ in range(8)), nn.Flatten(),
                      nn.Linear(32 * 196, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = torch.randn(2048, 3, 16, 16), torch.randint(0, 10, (2048,))
for step in range(4000):
    at = step % 32 * 64
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x[at : at + 64].cuda()), y[at : at + 64].cuda())
    loss.backward()
    optimizer.step()
"""


def test_networks_with_running_statistics_are_compared_where_rounding_changes_them(tmp_path: Path) -> None:
    """Deep, from random weights: what the limits say depends on several unmodified runs, in each precision."""
    (tmp_path / "deep.py").write_text(WITH_STATISTICS)
    (tmp_path / "run.py").write_text(
        f"""\
import json
from pathlib import Path
from flatout.boost.boosting import in_a_fork, protection_here
from flatout.boost.forks import Forks
from flatout.boost.proving import Proof
from flatout.boost.trying import Trials
from flatout.doctor.script import Script

place = Path({str(tmp_path / "trials")!r})
place.mkdir()
with Forks(in_a_fork) as forks:
    trials = Trials(forks, Script("deep.py", ()), place, 30, protection_here(forks, place).kind, device="cuda")
    proof = Proof(trials, lambda line: None)
    why = proof.begin(("bf16", "fp32", "tf32"), lambda: False)
    tried = trials.attempt((("autocast", "bf16"), ("channels_last", "on")), against=() if trials.by_turns else None)
    print(json.dumps([why, tried.failure, tried.why, tried.check]))
"""
    )
    ended = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert not ended.returncode, ended.stderr
    why, failure, because, check = json.loads(ended.stdout)
    assert not why and not failure, (why, because)
    assert check["passed"], check
