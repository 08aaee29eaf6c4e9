"""Frozen parts, gradual unfreezing and LoRA: what trains, what stands still, and the same bits after a kill."""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreters import run_forked
from test_engine_kit import equal, kinds, only_run, quick, train, weights
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import ModelError, RecipeError, Stopped, UsageError
from flatout.drill.difference import differing_bits
from flatout.engine.optimizers import decay_groups
from flatout.models.adapters import merged
from flatout.store.tensors import read_tensors

_disturb: list[Any] = []


class Photo(nn.Module):
    """A convolution, a batch norm, a layer, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.middle, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for disturb in _disturb:
            disturb(self)
        return self.head(torch.relu(self.middle(torch.relu(self.norm(self.conv(x))).mean((2, 3)))))


def photo() -> nn.Module:
    return Photo()


def pixels(rows: int = 48) -> Any:
    drawn = torch.Generator().manual_seed(0)
    return fo.data.arrays(torch.randn(rows, 3, 6, 6, generator=drawn), torch.arange(rows) % 3)


def asked(**given: Any) -> fo.Recipe:
    known = {
        "data": pixels(),
        "model": photo,
        "batch": 16,
        "lr": 0.02,
        "budget": "9 steps",
        "schedule": "constant",
        "name": "p",
    }
    settings = {"device": "cpu", "log_every": 2, **given.pop("settings", {})}
    return fo.Recipe(**{**known, **given}, settings=settings)


def changed(run: Any, before: nn.Module) -> set[str]:
    return {name for name, value in weights(run).items() if not torch.equal(value, before.state_dict()[name])}


def test_a_frozen_backbone_has_no_gradient_no_state_and_still_statistics(tmp_path: Path) -> None:
    model = Photo()
    seen: list[Any] = []
    _disturb.append(lambda net: seen.append((net.training, net.norm.training, net.conv.weight.grad)))
    try:
        run = train(tmp_path, asked(model=model, freeze=["backbone"], weight_decay=0.5, ema=0.5))
    finally:
        _disturb.clear()
    assert changed(run, model) == {"head.weight", "head.bias"}, "no decay, and no running statistics of the batch norm"
    assert any(training for training, _, _ in seen) and not any(norm for _, norm, _ in seen)
    assert all(gradient is None for _, _, gradient in seen)
    state = run.folder.checkpoints().load(9)
    assert set(state["optimizer"]["by_name"]) == {"head.weight", "head.bias"}
    assert "frozen: 230 of 257 weights" in run.explain()
    partly = train(tmp_path, asked(model=model, freeze=["conv", "head.b*"]))
    assert changed(partly, model) >= {"norm.weight", "norm.running_mean", "head.weight"}
    assert not changed(partly, model) & {"conv.weight", "head.bias"}


@pytest.mark.parametrize("optimizer", ["adamw", {"sgd": {"momentum": 0.9}}, torch.optim.NAdam], ids=["adamw", "sgd", "own"])
def test_unfreezing_is_that_of_bare_torch(tmp_path: Path, optimizer: Any) -> None:
    model = Photo()
    made = {"unfreeze": {"backbone": "2 epochs", "middle": "2 steps"}, "rates": {"backbone": 0.1}}
    recipe = asked(model=model, optimizer=optimizer, freeze=["backbone"], **made)
    run = train(tmp_path, recipe)
    own, order = copy.deepcopy(model).train(), recipe.load_data().sampler(0)
    source = recipe.load_data().train
    own.requires_grad_(False)
    own.head.requires_grad_(True)
    kind = {"adamw": torch.optim.AdamW}.get(optimizer if isinstance(optimizer, str) else "")
    kind = kind or (torch.optim.NAdam if callable(optimizer) else torch.optim.SGD)
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}

    def groups() -> list[dict[str, Any]]:
        known = {id(one) for group in (torch_optimizer.param_groups if torch_optimizer else []) for one in group["params"]}
        rates = {name: 1.0 if name.startswith("head") else 0.1 for name, _ in own.named_parameters()}
        found = decay_groups(own, 0.01, rates)
        for group in found:
            group["params"] = [one for one in group["params"] if id(one) not in known]
            group["lr"] = 0.02 * group.pop("factor")
        return [group for group in found if group["params"]]

    torch_optimizer: Any = None
    torch_optimizer = kind(groups(), lr=0.02, **options)
    for step in range(9):
        if step in (2, 6):
            (own.middle if step == 2 else own).requires_grad_(True)
            for group in groups():
                torch_optimizer.add_param_group(group)
        own.train()
        own.norm.train(step >= 6)
        batch = source.read(order.rows(step * 16, step * 16 + 16))
        torch_optimizer.zero_grad()
        nn.functional.cross_entropy(own(batch["x"]), batch["y"]).backward()
        torch_optimizer.step()
    for name, value in weights(run).items():
        assert torch.allclose(value, own.state_dict()[name], atol=2e-6), name
    assert [(event["step"], event["tensors"], event["weights"]) for event in kinds(run, "unfroze")] == [(2, 2, 56), (6, 3, 174)]


@pytest.mark.parametrize("at", [1, 3, 4, 7])
def test_a_kill_across_an_unfreezing_changes_no_bit(tmp_path: Path, at: int) -> None:
    given = {"freeze": ["backbone"], "unfreeze": {"middle": "3 steps", "backbone": "6 steps"}, "ema": 0.9, "clip": 1.0}
    given["settings"] = {"checkpoint_every": "1 step"}
    calm = train(tmp_path / "calm", asked(**given))

    class Killed(BaseException):
        pass

    steps = iter(range(100))

    def kill(net: nn.Module) -> None:
        if net.training and next(steps) == at:
            raise Killed

    _disturb.append(kill)
    try:
        with pytest.raises(Killed):
            train(tmp_path / "cut", asked(**given))
    finally:
        _disturb.clear()
    cut = only_run(tmp_path / "cut")
    run = train(tmp_path / "cut", asked(**given))
    assert run.name == cut.name and kinds(run, "resumed"), "the same run went on"
    assert differing_bits(calm.folder, run.folder)[0] == 0


def test_a_rollback_to_before_an_unfreezing_freezes_again(tmp_path: Path) -> None:
    """The loss is not a number right after the unfreezing: the run goes back, and unfreezes a second time."""
    calls = iter(range(100))
    data, model = pixels(), Photo()

    def spoil(net: nn.Module) -> None:
        if net.training and next(calls) == 5:
            with torch.no_grad():
                net.head.weight.fill_(float("nan"))

    _disturb.append(spoil)
    given = {"freeze": ["backbone"], "unfreeze": {"middle": "4 steps"}, "budget": "12 steps"}
    settings = {"checkpoint_every": "3 steps", "nonfinite_limit": 2, "log_every": 1}
    try:
        run = train(tmp_path, asked(data=data, model=model, settings=settings, **given))
    finally:
        _disturb.clear()
    assert kinds(run, "rolled_back") and [event["step"] for event in kinds(run, "unfroze")] == [4, 4]
    assert torch.isfinite(weights(run)["head.weight"]).all() and "middle.weight" in changed(run, model)
    assert not changed(run, model) & {"conv.weight", "norm.running_mean"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"freeze": ["layer4"]}, r"parts, with their number of weights: backbone \(230\), head \(27\), conv \(162\)"),
        ({"freeze": ["midle"]}, "did you mean 'middle'"),
        ({"rates": {"bakbone": 0.1}}, "did you mean 'backbone'"),
        ({"freeze": ["backbone"], "unfreeze": {"head": "1 epoch"}}, "'head' is not frozen"),
        ({"freeze": ["backbone"], "unfreeze": {"nothing": "1 epoch"}}, "unfreeze: no parameter or module"),
        ({"freeze": ["*"]}, "leaves no parameter to train"),
    ],
)
def test_names_that_no_part_has(tmp_path: Path, given: Any, words: str) -> None:
    with pytest.raises((ModelError, UsageError), match=words):
        train(tmp_path, asked(**given))
    assert not list(tmp_path.iterdir())


def test_an_unfreezing_that_is_written_wrongly() -> None:
    with pytest.raises(RecipeError, match="nothing is frozen: write freeze"):
        asked(unfreeze={"conv": "1 epoch"})
    with pytest.raises(RecipeError, match=r"unfreeze: conv: expected epochs, steps, samples or tokens, got '5 min'"):
        asked(freeze=["conv"], unfreeze={"conv": "5 min"})
    with pytest.raises(RecipeError, match="unfreeze"):
        asked(freeze=["conv"], unfreeze={"conv": 1})


def lora(folder: Path, **given: Any) -> fo.Recipe:
    rows = [[1 + number % 7] * (2 + number % 3) for number in range(24)]
    data = fo.data.sequences(rows, [number % 2 for number in range(24)], vocabulary=20)
    model = {
        "transformers": str(folder),
        "pretrained": True,
        "lora": {"rank": 2, "targets": ["query", "value"], "dropout": 0.1},
    }
    settings = {"device": "cpu", "checkpoint_every": "1 step", "log_every": 1}
    return fo.Recipe(
        **{"data": data, "model": model, "batch": 8, "lr": 0.01, "budget": "6 steps", "ema": 0.9, "settings": settings, **given}
    )


@pytest.fixture(scope="module")
def trained_lora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, fo.Run]:
    """The folder of a small BERT, that model, and a run that was not interrupted."""
    transformers, _ = pytest.importorskip("transformers"), pytest.importorskip("peft")
    folder = tmp_path_factory.mktemp("lora")
    small = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    base = transformers.BertModel(transformers.BertConfig(**small))
    base.save_pretrained(folder / "bert")
    return folder / "bert", base, train(folder / "runs", lora(folder / "bert"))


def killed_by(number: signal.Signals, step: int, runs: Path) -> Any:
    """Sends it to this process after a step, once a checkpoint with something in it is on the disk."""

    def kill(event: Any) -> None:
        if event["kind"] == "step" and event["step"] == step:
            while not list(runs.glob("*/checkpoints/step-*[1-9]")):
                time.sleep(0.01)
            os.kill(os.getpid(), number)

    return kill


def lora_until_killed(folder: Path, runs: Path) -> None:
    """For a process of its own."""
    train(runs, lora(folder), observers=[killed_by(signal.SIGKILL, 3, runs)])


_LORA = "import sys, pathlib, test_freezing as tests; tests.lora_until_killed(*map(pathlib.Path, sys.argv[1:]))"


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
def test_lora_goes_on_after_sigkill_and_sigterm_to_the_same_bits(trained_lora: Any, tmp_path: Path) -> None:
    folder, _, calm = trained_lora
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    killed = run_forked(["-c", _LORA, str(folder), str(tmp_path)], env={**os.environ, "PYTHONPATH": path})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(Stopped):
        train(tmp_path, lora(folder), observers=[killed_by(signal.SIGTERM, 5, tmp_path)])
    run = train(tmp_path, lora(folder))
    first, second = (event["step"] for event in kinds(run, "resumed"))
    assert 1 <= first <= 3 and second == 5
    bits, tensors = differing_bits(calm.folder, run.folder)
    assert bits == 0 and tensors > 30, "weights, average, optimizer and random state"
    adapters = [read_tensors(one.path / "adapter" / "adapter_model.safetensors") for one in (calm, run)]
    assert equal(*adapters) and any("lora_B" in name and value.any() for name, value in adapters[0].items())


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
def test_lora_trains_adapters_alone_and_peft_reads_them(trained_lora: Any, tmp_path: Path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    folder, base, run = trained_lora
    kept = weights(run)
    assert all(torch.equal(kept[f"base_model.model.bert.{name}"], value) for name, value in base.state_dict().items()
               if f"base_model.model.bert.{name}" in kept)  # fmt: skip
    state = run.folder.checkpoints().load(6)["optimizer"]["by_name"]
    assert state and all("lora_" in name or "classifier" in name for name in state)
    mine = run.model(bare=True)
    # PEFT's own way, from the folder that the run wrote
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    theirs = peft.PeftModel.from_pretrained(plain, str(run.path / "adapter")).eval()
    ids = torch.randint(0, 20, (3, 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits
        assert torch.equal(mine(input_ids=ids).logits, expected)
        alone = merged(mine)
        assert type(alone).__name__ == "BertForSequenceClassification" and "lora" not in str(alone).lower()
        assert torch.allclose(alone(input_ids=ids).logits, expected, atol=1e-6)
    package = fo.export(run, tmp_path / "package")
    assert not any("lora" in name for name in package.weights)
    with quick(), pytest.raises(ModelError, match=r"no layer 'nothing'; known: classifier, dense, key, query, value"):
        model = {"transformers": str(folder), "pretrained": True, "lora": {"targets": ["nothing"]}}
        fo.run(lora(folder, model=model), runs=tmp_path / "runs", cache=None)
