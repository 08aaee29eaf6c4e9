"""The built-in models, and how any model is built, described and recognised again."""

from __future__ import annotations

import copy
import functools
import importlib
import math
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flatout.base.errors import ModelError, UsageError
from flatout.base.shapes import Shapes
from flatout.models.build import BUILDERS, build, describe, source_hash
from flatout.models.convnet import convnet
from flatout.models.facts import has_batch_norm, has_convolution, has_dropout, parameter_count
from flatout.models.gpt import gelu, gpt
from flatout.models.head import OutputHead, pad_vocabulary
from flatout.models.mlp import mlp

ROWS = Shapes(input_shape=(8, 8), outputs=10)
TEXT = Shapes(input_shape=(16,), outputs=65, vocabulary=65, window=16)


def small_gpt(**options: object) -> nn.Module:
    torch.manual_seed(0)
    return gpt(**{"vocabulary": 65, "window": 16, "layers": 2, "heads": 2, "width": 32, **options})


def tokens(rows: int = 4, length: int = 16, vocabulary: int = 65) -> torch.Tensor:
    return torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(1))


# gpt


def test_gpt_has_the_size_of_gpt2() -> None:
    with torch.device("meta"):
        model = gpt(50257, 1024, layers=12, heads=12, width=768, bias=True)
    assert parameter_count(model) == 124_439_808
    assert len(model.blocks) == 12


def test_gpt_does_not_look_ahead() -> None:
    model, text = small_gpt().eval(), tokens()
    changed = text.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 65
    before, after = model(text), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_gpt_sees_the_order_of_what_came_before() -> None:
    model = small_gpt().eval()
    assert not torch.allclose(model(torch.tensor([[1, 2, 3]]))[:, -1], model(torch.tensor([[2, 1, 3]]))[:, -1], atol=1e-4)


def test_tied_head_is_one_tensor_and_stays_one_in_a_copy() -> None:
    model = build({"gpt": {"layers": 1, "heads": 2, "width": 32}}, TEXT, seed=0)
    for tied in (model, build(model, TEXT, seed=0)):
        with torch.no_grad():
            tied.tokens.weight.add_(1)
        assert tied.head.weight is tied.tokens.weight
    untied = small_gpt(tied=False)
    assert parameter_count(untied) - parameter_count(small_gpt()) == 65 * 32


@pytest.mark.parametrize("pad", [0, 64])
def test_an_untrained_gpt_knows_nothing(pad: int) -> None:
    model = small_gpt(width=96, layers=4)
    pad_vocabulary(model, pad)
    text, target = tokens(8), tokens(9)[1:]
    loss = F.cross_entropy(model(text).flatten(0, 1), target.flatten())
    assert loss.item() == pytest.approx(math.log(65), abs=0.15)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_padding_the_vocabulary_changes_neither_loss_nor_gradient(tied: bool, autocast: bool, compiled: bool) -> None:
    plain, padded = small_gpt(tied=tied), small_gpt(tied=tied)
    pad_vocabulary(padded, 64)
    assert padded(tokens()).shape == (4, 16, 128)
    losses = []
    for model in (plain, padded):
        call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            losses.append(F.cross_entropy(call(tokens()).float().flatten(0, 1), tokens().flatten()))
        losses[-1].backward()
    torch.testing.assert_close(*losses)
    for (name, parameter), other in zip(plain.named_parameters(), padded.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, msg=lambda said, name=name: f"{name}: {said}")
    assert padded(tokens()).argmax(-1).max() < 65


def test_padding_is_no_part_of_what_is_kept() -> None:
    plain, padded = small_gpt(), small_gpt()
    pad_vocabulary(padded, 64)
    plain.load_state_dict(padded.state_dict())
    assert {name: value.shape for name, value in plain.state_dict().items()} == {
        name: value.shape for name, value in padded.state_dict().items()
    }
    assert plain.head.weight.shape == (65, 32)
    assert not list(padded.buffers())


def test_a_head_with_a_bias_can_be_padded_too() -> None:
    plain = OutputHead(8, 70, bias=True)
    padded = copy.deepcopy(plain)
    pad_vocabulary(padded, 32)
    x = torch.randn(5, 8)
    torch.testing.assert_close(padded(x)[:, :70], plain(x))
    assert padded(x).shape == (5, 96)
    assert (padded(x).softmax(-1)[:, 70:] == 0).all()


def test_the_hidden_states_of_gpt_are_what_its_head_takes() -> None:
    model = small_gpt().eval()
    assert torch.equal(model.head(model.hidden(tokens())), model(tokens()))


def test_gpt_starts_with_the_deviations_of_gpt2() -> None:
    model = small_gpt(width=256, layers=8)
    assert model.tokens.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks[3].attention.project.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert model.blocks[3].project.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)


def test_gpt_takes_shorter_text_and_refuses_longer() -> None:
    model = small_gpt()
    assert model(tokens(length=5)).shape[:2] == (4, 5)
    with pytest.raises(ModelError, match="window of 16 tokens but got 17"):
        model(tokens(length=17))


def test_gpt_refuses_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(ModelError, match="width 384 and heads 7"):
        build({"gpt": {"heads": 7}}, TEXT, seed=0)


# mlp and convnet


@pytest.mark.parametrize("shape", [(5,), (8, 8), (3, 8, 8)])
def test_mlp_takes_rows_of_any_shape(shape: tuple[int, ...]) -> None:
    model = mlp(shape, 4, hidden=[16], norm=True, activation="gelu")
    whole = torch.randint(0, 255, (6, *shape), dtype=torch.uint8)
    assert model(whole).shape == (6, 4)
    torch.testing.assert_close(model(whole), model(whole.float()))
    assert mlp(shape, 4, hidden=()).head.in_features == math.prod(shape)


@pytest.mark.parametrize(("shape", "channels"), [((8, 8), (32, 64)), ((1, 28, 28), (32, 64)), ((3, 5, 9), (4, 4, 4, 4))])
def test_convnet_takes_images_of_any_size(shape: tuple[int, ...], channels: tuple[int, ...]) -> None:
    model = convnet(shape, 10, channels=channels)
    assert model(torch.rand(2, *shape)).shape == (2, 10)
    assert model(torch.zeros(2, *shape, dtype=torch.uint8)).dtype == torch.float32


def test_convnet_says_what_an_image_is() -> None:
    with pytest.raises(ModelError, match=r"height, width.*got \(5,\).*mlp"):
        build("convnet", Shapes((5,), 2), seed=0)


def test_a_convnet_can_learn() -> None:
    torch.manual_seed(0)
    model, x = convnet((8, 8), 2, channels=(8,), hidden=16), torch.rand(64, 8, 8)
    y = (x[:, :4].mean((1, 2)) > x[:, 4:].mean((1, 2))).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert (model(x).argmax(1) == y).float().mean() > 0.95


# building


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_the_seed_decides_the_weights_and_the_callers_numbers_stay(name: str) -> None:
    shapes = Shapes((8, 8), 10, vocabulary=65, window=16)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, again, other = (build(name, shapes, seed=seed) for seed in (1, 1, 2))
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)


def test_a_callable_is_seeded_too() -> None:
    def make() -> nn.Module:
        return nn.Linear(3, 2)

    assert torch.equal(build(make, ROWS, 5).weight, build(make, ROWS, 5).weight)
    assert build(functools.partial(nn.Linear, 3, 2), ROWS, 5).out_features == 2


def test_an_instance_is_copied() -> None:
    model = nn.Linear(3, 2)
    built = build(model, ROWS, seed=0)
    assert built is not model
    assert torch.equal(built.weight, model.weight)
    assert built.weight.data_ptr() != model.weight.data_ptr()


def test_an_imported_name_gets_its_options_and_the_shapes_it_asks_for() -> None:
    assert build({"torch.nn:Linear": {"in_features": 3, "out_features": 2}}, ROWS, 0).in_features == 3
    assert build({"flatout.models.mlp:mlp": {"hidden": [7]}}, ROWS, 0).head.in_features == 7
    assert build({"mlp": [5, 6]}, ROWS, 0).head.in_features == 6
    assert build({"mlp": {"outputs": 3}}, ROWS, 0).head.out_features == 3


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        ("mpl", UsageError, "unknown model 'mpl'; did you mean 'mlp'"),
        ({"mlp": {"hiden": 3}}, UsageError, "no option 'hiden'; did you mean 'hidden'"),
        ({"mlp": {"activation": "rely"}}, UsageError, "did you mean 'relu'"),
        ("nowhere.at_all:Net", UsageError, "can't import 'nowhere.at_all'"),
        ("gpt", ModelError, "needs vocabulary, window.*text"),
        (lambda: 3, ModelError, "must return a torch.nn.Module, got int"),
        (nn.Linear, ModelError, r"needs in_features, out_features: pass lambda: Linear\(\.\.\.\)"),
        (lambda: nn.Linear(-1, 2), ModelError, "can't be built: RuntimeError"),
        ({"mlp": {"hidden": [0.5]}}, UsageError, r"hidden: expected a list of whole numbers or a whole number, got \[0.5\]"),
    ],
)
def test_what_can_not_be_built_is_said(model: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        build(model, ROWS, seed=0)


def test_describe_is_what_was_written() -> None:
    assert describe("mlp") == "mlp"
    assert describe({"mlp": {"hidden": [3]}}) == {"mlp": {"hidden": [3]}}
    assert describe(nn.Linear) == "torch.nn.modules.linear:Linear"
    assert describe(nn.Linear(3, 2)) == {"torch.nn.modules.linear:Linear": {"parameters": 8}}


# recognising a model again


def write_module(folder: Path, text: str) -> object:
    (folder / "users_net.py").write_text(text)
    sys.modules.pop("users_net", None)
    importlib.invalidate_caches()
    return importlib.import_module("users_net")


NET = """
from torch import nn
WIDTH = 4
def head(width): return nn.Linear(width, 2)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = head(WIDTH)
def unrelated(): return 1
"""


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("super().__init__()", "super().__init__(); self.flag = 1", False),
        ("nn.Linear(width, 2)", "nn.Linear(width, 3)", False),
        ("WIDTH = 4", "WIDTH = 5", False),
        ("return 1", "return 10", True),
    ],
)
@pytest.mark.parametrize("form", ["class", "name", "lambda", "partial", "instance"])
def test_source_hash_follows_the_code(
    form: str, before: str, after: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def hash_of(text: str) -> str:
        module = write_module(tmp_path, text)
        forms = {
            "class": module.Net,
            "name": "users_net:Net",
            "lambda": lambda: module.Net(),
            "partial": functools.partial(module.Net),
            "instance": module.Net,
        }
        model = forms[form]
        return source_hash(build(model, ROWS, seed=0) if form == "instance" else model)

    try:
        assert hash_of(NET) == hash_of(NET)
        assert (hash_of(NET) == hash_of(NET.replace(before, after))) is same
    finally:
        sys.modules.pop("users_net", None)


def test_source_hash_of_options_closures_and_weights() -> None:
    def sized(width: int) -> object:
        return lambda: nn.Linear(width, 2)

    assert source_hash("mlp") != source_hash({"mlp": {"hidden": [3]}})
    assert source_hash({"gpt": {"layers": 1, "width": 2}}) == source_hash({"gpt": {"width": 2, "layers": 1}})
    assert source_hash(sized(3)) == source_hash(sized(3)) != source_hash(sized(4))
    model = nn.Linear(3, 2).to(torch.bfloat16)
    before = source_hash(model)
    with torch.no_grad():
        model.bias[0] += 1
    assert source_hash(model) != before


# facts


def test_facts_are_read_off_the_modules() -> None:
    assert has_dropout(mlp((3,), 2, dropout=0.1)) and not has_dropout(mlp((3,), 2)) and not has_dropout(convnet((8, 8), 2))
    assert has_dropout(small_gpt(dropout=0.1)) and has_dropout(nn.LSTM(3, 3, num_layers=2, dropout=0.5))
    assert has_convolution(convnet((8, 8), 2)) and not has_convolution(mlp((3,), 2))
    assert has_batch_norm(nn.Sequential(nn.BatchNorm1d(3))) and not has_batch_norm(mlp((3,), 2, norm=True))


def test_gpt_sees_only_its_own_document() -> None:
    torch.manual_seed(0)
    model = gpt(vocabulary=20, window=8, layers=2, heads=2, width=16).eval()
    first, second = torch.randint(0, 20, (1, 3)), torch.randint(0, 20, (1, 5))
    packed = torch.cat([first, second], dim=1)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    together = model(packed, documents, positions)
    torch.testing.assert_close(together[:, :3], model(first))
    torch.testing.assert_close(together[:, 3:], model(second))


def test_mlp_embeds_categories_beside_x() -> None:
    torch.manual_seed(0)
    model = mlp((3,), 2, hidden=(8,), cardinalities=(100, 5))
    x, categories = torch.randn(4, 3), torch.tensor([[0, 0], [99, 4], [7, 1], [7, 1]])
    output = model(x, categories)
    assert output.shape == (4, 2)
    assert not torch.equal(output, model(x, categories.flip(0)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_compiler_gets_the_same_gelu(dtype: torch.dtype) -> None:
    x = torch.linspace(-12, 12, 4001, dtype=dtype).requires_grad_()
    compiled = torch.compile(gelu, backend="aot_eager", fullgraph=True)
    (by_torch,) = torch.autograd.grad(gelu(x).sum(), x)
    (by_compiler,) = torch.autograd.grad(compiled(x).sum(), x)
    torch.testing.assert_close(compiled(x), gelu(x))
    torch.testing.assert_close(by_compiler, by_torch)
