"""Loading weights, freezing, and rates by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from flatout.base.errors import ModelError
from flatout.models.finetune import freeze, load_weights, rates
from flatout.models.gpt import gpt
from flatout.models.mlp import mlp


def tiny_gpt(**options: object) -> nn.Module:
    return gpt(**{"vocabulary": 60, "window": 8, "layers": 2, "heads": 2, "width": 16, **options})


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_weights_come_back_from_a_run_folder_and_from_a_file(tmp_path: Path) -> None:
    trained = tiny_gpt()
    save_model(trained, str(tmp_path / "model.safetensors"))  # writes the tied weight once
    for place in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        fresh = tiny_gpt()
        names = load_weights(fresh, place)
        assert same(fresh, trained)
        assert fresh.head.weight is fresh.tokens.weight
        assert "blocks.1.attention.qkv.weight" in names


def test_half_precision_weights_load_into_a_full_one(tmp_path: Path) -> None:
    save_file({name: value.bfloat16() for name, value in mlp((3,), 2).state_dict().items()}, tmp_path / "half.safetensors")
    model = mlp((3,), 2)
    load_weights(model, tmp_path / "half.safetensors")
    assert model.head.weight.dtype == torch.float32


def test_every_mismatch_is_listed_at_once_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "other.safetensors"
    stored = mlp((3,), 5, hidden=(4,)).state_dict()
    stored["extra.weight"] = torch.zeros(2)
    del stored["body.0.bias"]
    save_file(stored, file)
    model = mlp((3,), 2, hidden=(4,))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModelError) as caught:
        load_weights(model, file)
    words = str(caught.value)
    assert "in the model but not in the file: body.0.bias" in words
    assert "in the file but not in the model: extra.weight" in words
    assert "head.bias (model (2,), file (5,)), head.weight (model (2, 4), file (5, 4))" in words
    assert "skip: ['body.0.bias', 'extra.weight', 'head.bias', 'head.weight']" in words
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "nothing may be half loaded"
    assert load_weights(model, file, skip=["head.*", "extra.weight", "body.0.bias"]) == ("body.0.weight",)
    assert torch.equal(model.body[0].weight, stored["body.0.weight"])
    assert torch.equal(model.head.weight, before["head.weight"])


def test_weights_of_quite_another_model_make_a_short_message(tmp_path: Path) -> None:
    save_model(tiny_gpt(), str(tmp_path / "gpt.safetensors"))
    with pytest.raises(ModelError, match=r"and 6 more\n(.*\n)*.*is it the same model"):
        load_weights(mlp((3,), 2), tmp_path / "gpt.safetensors")


def test_untied_weights_do_not_slip_into_a_tied_model(tmp_path: Path) -> None:
    save_file(tiny_gpt(tied=False).state_dict(), tmp_path / "untied.safetensors")
    with pytest.raises(ModelError, match=r"one tensor in the model, several in the file: tokens.weight, head.weight"):
        load_weights(tiny_gpt(), tmp_path / "untied.safetensors")


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "pytorch_model.bin", "last.ckpt"])
def test_a_pickle_is_refused_with_the_remedy(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02")
    with pytest.raises(ModelError, match=r"is a pickle.*save_model"):
        load_weights(mlp((3,), 2), tmp_path / name)


def test_what_is_not_there_or_damaged_is_said(tmp_path: Path) -> None:
    model = mlp((3,), 2)
    with pytest.raises(ModelError, match=r"a run folder with model\.safetensors"):
        load_weights(model, tmp_path)
    with pytest.raises(ModelError, match=r"expected a \.safetensors file"):
        load_weights(model, tmp_path / "none.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="can't be read as safetensors"):
        load_weights(model, tmp_path / "torn.safetensors")


def test_freeze_by_glob() -> None:
    model = tiny_gpt()
    names = freeze(model, ["tokens.*", "blocks.0.*"])
    held = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert held == set(names) == {n for n, _ in model.named_parameters() if n.startswith(("tokens.", "blocks.0."))}
    assert freeze(model, []) == ()


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (["token.weight"], "freeze: no parameter or module matches 'token.weight'; did you mean 'tokens.weight'"),
        (["layer4"], r"its parts, with their number of weights: backbone \([\d,]+\), tokens \(960\), positions"),
        (["backbone"], "leaves no parameter to train"),  # the head is tied to the first layer
        (["*"], "leaves no parameter to train"),
    ],
)
def test_freeze_says_what_is_wrong(patterns: list[str], words: str) -> None:
    model = tiny_gpt()
    with pytest.raises(ModelError, match=words):
        freeze(model, patterns)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_rates_name_every_parameter_and_the_last_pattern_wins() -> None:
    model = mlp((3,), 2, hidden=(4,))
    assert rates(model, {"*": 0.1, "head.*": 1}) == {
        "body.0.weight": 0.1,
        "body.0.bias": 0.1,
        "head.weight": 1.0,
        "head.bias": 1.0,
    }
    assert set(rates(model, {}).values()) == {1.0}
    with pytest.raises(ModelError, match=r"rates: no parameter or module matches 'heads\.weight'; did you mean 'head\.weight'"):
        rates(model, {"heads.weight": 2.0})
    with pytest.raises(ModelError, match="greater than 0, got 0; or freeze it"):
        rates(model, {"head.*": 0})


@pytest.mark.parametrize("name", ["a" * 300, "a\0b"])
def test_a_name_that_no_file_can_have(name: str) -> None:
    with pytest.raises(ModelError, match="no weights at"):
        load_weights(nn.Linear(1, 1), name)
