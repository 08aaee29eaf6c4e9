"""Models of other libraries and of former runs as a start: their weights, what their inputs look like, a new head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_engine_kit import quick

import flatout as fo
from flatout.base.errors import MissingExtra, ModelError, RecipeError, UsageError
from flatout.base.shapes import Shapes
from flatout.data.attention_mask import AttentionMask
from flatout.data.augment.crops import CenterCrop
from flatout.data.normalize import Normalize
from flatout.models.build import build
from flatout.models.libraries.build import Start
from flatout.models.model_spec import ModelSpec
from flatout.models.parts import head_modules, part_parameters
from flatout.recipe.load import recipe_from

transformers = pytest.importorskip("transformers")
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
MEAN, STD = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bert, vit and gpt2, as transformers saves them."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=40, pad_token_id=3, **SMALL))
    bert.save_pretrained(folder / "bert")
    vit = transformers.ViTConfig(image_size=16, patch_size=8, num_labels=2, **SMALL)
    transformers.ViTForImageClassification(vit).save_pretrained(folder / "vit")
    processor = {"size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}, "do_center_crop": True}
    processor |= {"resample": 3, "image_mean": MEAN, "image_std": STD, "do_normalize": True}
    (folder / "vit" / "preprocessor_config.json").write_text(json.dumps(processor))
    gpt2 = transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=63
    )
    transformers.GPT2LMHeadModel(gpt2).save_pretrained(folder / "gpt2")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for number in range(12):
        place = tmp_path / "photos" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(draw.integers(0, 255, (6, 8, 3), dtype=np.uint8))
        small.resize((40, 30), Image.Resampling.BICUBIC).save(place / f"{number}.png")
    return tmp_path / "photos"


def train(tmp_path: Path, **given: Any) -> Any:
    asked = {"batch": 4, "lr": 1e-2, "budget": "2 steps", "evaluate": None, "settings": {"device": "cpu"}, **given}
    with quick():
        return fo.run(fo.Recipe(**asked), runs=tmp_path / "runs", fresh=True, cache=None)


def test_photos_are_prepared_as_the_models_own_configuration_says(saved: Path, photos: Path, tmp_path: Path) -> None:
    run = train(tmp_path, data={"images": str(photos)}, model={"transformers": str(saved / "vit"), "pretrained": True},
                freeze=["backbone"])  # fmt: skip
    steps = json.loads((run.folder.path / "data.json").read_text())["fitted"]["device"]
    assert steps[0] == {"center_crop": {"size": 16, "resize": 20, "interpolation": "bicubic"}}
    assert steps[1] == {"normalize": {"scale": 1 / 255, "mean": MEAN, "std": STD}}
    kept = transformers.ViTForImageClassification.from_pretrained(saved / "vit").eval()
    mine = run.model(bare=True)
    assert all(torch.equal(value, mine.vit.state_dict()[name]) for name, value in kept.vit.state_dict().items())
    assert not torch.equal(mine.classifier.weight, kept.classifier.weight), "a new head, though it has as many classes"
    # Pillow and the library's own numbers, from the file to the logits
    file = photos / "a" / "0.png"
    scaled = Image.open(file).convert("RGB").resize((26, 20), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(scaled))[2:18, 5:21].permute(2, 0, 1) / 255
    by_hand = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    with torch.no_grad():
        expected = mine(pixel_values=by_hand[None]).logits
    assert torch.allclose(run.model()([file.read_bytes()]), expected, atol=2e-2)
    assert set(fo.predict(run, str(photos))["class"]) <= {"a", "b"}
    assert fo.evaluate(run, str(photos))["accuracy"] >= 0


def test_sizes_and_normalization_that_the_recipe_gives_stay(saved: Path, photos: Path) -> None:
    data = {"images": str(photos), "size": 8, "normalize": None, "interpolation": "bilinear"}
    model = {"transformers": {str(saved / "vit"): {"image_size": 8}}}
    asked = fo.Recipe(data=data, model={**model, "pretrained": False}, batch=2, lr=1, budget="1 steps").load_data()
    assert [step.written() for step in asked.prepare] == [{"center_crop": {"size": 8, "resize": 8}}]
    pretrained = fo.Recipe(data=data, model={**model, "pretrained": True}, batch=2, lr=1, budget="1 steps").load_data()
    assert [step.written() for step in pretrained.prepare] == [{"center_crop": {"size": 8, "resize": 10}}]
    none = {"data": {"images": str(photos)}, "model": "convnet", "batch": 2, "lr": 1, "budget": "1 steps"}
    with pytest.raises(RecipeError, match="size"):
        fo.Recipe(**none)


def test_rows_of_tokens_come_with_their_mask(saved: Path, tmp_path: Path) -> None:
    rows = [[4 + number % 30] * (2 + number % 5) for number in range(12)]
    data = fo.data.sequences(rows, [number % 3 for number in range(12)], vocabulary=40, pad=3)
    run = train(tmp_path, data=data, model={"transformers": str(saved / "bert"), "pretrained": True}, lr=1e-3)
    mine = run.model(bare=True)
    assert mine.num_labels == 3 and head_modules(mine) == ("classifier",)
    for row in rows[:3]:
        with torch.no_grad():
            alone = mine(input_ids=torch.tensor([row])).logits  # without padding
        assert torch.allclose(run.model()([row, rows[4]])[0], alone[0], atol=1e-5)
    mask = AttentionMask(pad=3)({"x": torch.tensor([[5, 3, 6], [7, 3, 3]])}, None)["mask"]  # type: ignore[arg-type]
    assert mask.tolist() == [[1, 0, 1], [1, 0, 0]]


def test_a_tokenizer_of_the_model_encodes_the_text(saved: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[CLS]": 0, "[SEP]": 1, "no": 2, "[PAD]": 3, "yes": 4}, unk_token="no")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    words.save(str(saved / "bert" / "tokenizer.json"))
    try:
        lines = [{"text": "yes yes" if number % 2 else "no", "label": number % 2} for number in range(8)]
        (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        written = {"sequences": "rows.jsonl", "label": "label"}
        model = {"transformers": str(saved / "bert"), "pretrained": True}
        asked = {"data": written, "model": model, "batch": 2, "lr": 1e-3, "budget": "1 steps"}
        recipe = recipe_from(asked, tmp_path)
        data = recipe.load_data()
        assert data.train.read(torch.tensor([0, 1]))["x"].tolist() == [[0, 2, 1, 3], [0, 4, 4, 1]]
        assert recipe.written()["data"]["special_tokens"] is True and recipe.written()["data"]["pad"] == 3
        assert data.fitted.from_json(data.fitted.to_json()).rows(["yes"])["x"].tolist() == [[0, 4, 1, 3]]
    finally:
        (saved / "bert" / "tokenizer.json").unlink()


def test_a_language_model_writes_what_the_library_writes(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be " * 20)
    run = train(tmp_path, data={"text": str(tmp_path / "text.txt"), "window": 8}, objective="next_token",
                model={"transformers": str(saved / "gpt2"), "pretrained": True})  # fmt: skip
    mine = run.model(bare=True)
    alphabet = sorted(set("to be or not to be "))
    ids = [alphabet.index(letter) for letter in "to be"]
    spare = list(range(len(alphabet), 64))
    how = {"max_new_tokens": 10, "do_sample": False, "suppress_tokens": spare, "pad_token_id": 0}
    theirs = mine.generate(torch.tensor([ids]), **how)[0, len(ids) :].tolist()
    expected = "".join(alphabet[token] for token in theirs)
    assert run.generate("to be", tokens=10, greedy=True) == expected
    assert "".join(run.generate("to be", tokens=10, greedy=True, stream=True)) == expected
    assert run.generate(["or", "to be"], tokens=10, greedy=True)[1] == expected, "padded on the left"
    assert set(run.generate("or", tokens=20, temperature=5.0)) <= set(alphabet)


def test_a_former_run_gives_its_backbone_and_its_normalization(tmp_path: Path, photos: Path) -> None:
    draw = np.random.default_rng(0)
    model = {"convnet": {"channels": [4, 4], "hidden": 8}}
    x, y = draw.integers(0, 255, (16, 3, 12, 12), dtype=np.uint8), np.arange(16) % 5
    first = train(tmp_path, data=fo.data.arrays(x, y, normalize="auto"), model=model, name="first")
    kept = first.model(bare=True)
    given = {"data": {"images": "photos"}, "model": {**model, "pretrained": "runs/first-1"}, "batch": 4, "lr": 1e-2,
             "budget": "1 steps", "evaluate": None, "freeze": ["backbone"], "settings": {"device": "cpu"}}  # fmt: skip
    recipe = recipe_from(given, tmp_path)
    data = recipe.load_data()
    crop, normalize = data.prepare
    assert isinstance(crop, CenterCrop) and crop.size == 12
    mine = next(step for step in first.recipe.load_data().prepare if isinstance(step, Normalize))
    assert normalize == mine and recipe.written()["data"]["size"] == 12
    with quick():
        run = fo.run(recipe, runs=tmp_path / "runs", cache=None)
    assert run.name == "convnet-1"
    for name, value in run.model(bare=True).state_dict().items():
        assert name.startswith("head.") or torch.equal(value, kept.state_dict()[name]), name
    (first.folder.path / "model.safetensors").unlink()
    assert len(fo.predict(run, str(photos))["prediction"]) == 12, "a trained run needs the first one no more"
    other = {**given, "model": {"convnet": {"channels": [4, 8]}, "pretrained": "runs/convnet-1"}}
    with pytest.raises(ModelError, match=r"different shape: features\.3\.(.|\n)*was trained with model: .*\[4, 4\]"):
        fo.run(recipe_from(other, tmp_path), runs=tmp_path / "runs", cache=None)


def test_arrays_of_bytes_get_the_normalization_of_the_model(saved: Path) -> None:
    x = np.zeros((8, 3, 16, 16), np.uint8)
    np_file = saved / "bytes.npz"
    np.savez(np_file, x=x, y=np.arange(8) % 2)
    asked = {"model": {"transformers": str(saved / "vit"), "pretrained": True}, "batch": 2, "lr": 1, "budget": "1 steps"}
    recipe = fo.Recipe(data={"arrays": str(np_file)}, **asked)
    assert recipe.load_data().prepare == (Normalize(1 / 255, tuple(MEAN), tuple(STD)),)
    assert recipe.written()["data"]["normalize"]["mean"] == MEAN
    np.savez(np_file, x=x.astype(np.float32), y=np.arange(8) % 2)
    data = fo.Recipe(data={"arrays": str(np_file)}, **asked).load_data()
    assert not data.prepare and any("was trained on mean 0.1" in note for note in data.notes)


def test_weights_of_something_else_are_refused_with_what_to_do(saved: Path, tmp_path: Path) -> None:
    shapes, start = Shapes((3, 16, 16), 2), Start("classify", saved)
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "weights.pth")
    for model, words in (
        ({"transformers": "bert", "pretrained": True}, "can't load|not those of"),  # no model of photos
        ({"transformers": "vit", "pretrained": "bert"}, r"not those of a ViTForImageClassification.*tensors"),
        ({"transformers": "vit", "pretrained": str(tmp_path / "weights.pth")}, "pickle.*convert it"),
        ({"transformers": "vit", "pretrained": str(tmp_path / "none.safetensors")}, "no weights at"),
        ({"transformers": "./none", "pretrained": True}, "there is no folder"),
        ({"convnet": {}, "pretrained": str(tmp_path)}, "a run folder with"),
    ):
        with pytest.raises(ModelError, match=words):
            build(model, shapes, 0, start=start)
    with pytest.raises(ModelError, match="knows 40 tokens, and the data has 50"):
        build({"transformers": "bert", "pretrained": True}, Shapes((8,), 2, vocabulary=50), 0, start=start)
    with pytest.raises(UsageError, match="learns from photos or tokens"):
        build({"transformers": "bert"}, Shapes((8,), 2), 0, start=start)


def test_without_a_network_the_error_says_what_to_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"transformers can't load 'nobody/none'.*a folder that save_pretrained wrote"):
        build({"transformers": "nobody/none", "pretrained": True}, Shapes((8,), 2, vocabulary=5), 0, start=Start("classify"))


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_library_that_is_not_here_is_named(library: str) -> None:
    try:
        __import__(library)
    except ImportError:
        pass
    else:
        pytest.skip(f"{library} is installed")
    with pytest.raises(MissingExtra, match=rf"needs {library}.*pip install 'flatout\[models\]'"):
        build({library: "resnet18", "pretrained": True}, Shapes((3, 8, 8), 2), 0)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"convnet": {}, "pretrained": True}, "pretrained: runs/NAME"),
        ({"timm": "resnet18", "pretraind": True}, "expected a name"),
        ({"timm": "resnet18", "torchvision": "resnet18", "pretrained": True}, "one model next to"),
        ({"pretrained": True}, "no model"),
        ({"timm": None, "pretrained": True}, "needs the name of a model"),
        ({"timm": {"resnet18": {}, "other": {}}, "head": "new"}, "options of the model belong under its name"),
        ({"timm": "resnet18", "pretrained": 3}, "pretrained is true, or the path"),
        ({"timm": "resnet18", "head": "old"}, "head is new or keep"),
        ({"timm": "resnet18", "lora": {}}, "lora needs a model of transformers"),
        ({"transformers": "x", "lora": {"rnk": 8}}, "did you mean 'rank'"),
        ({"transformers": "x", "lora": {"rank": 0}}, "1 or more"),
        ({"transformers": "x", "lora": {"targets": 3}}, "list of names"),
        ({"transformers": "x", "lora": True}, "lora is written"),
        ({"trnsformers": "x", "pretrained": "x"}, "did you mean 'transformers'"),
    ],
)
def test_a_model_that_is_written_wrongly(written: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        fo.Recipe(data="digits", model=written, batch=2, lr=1, budget="1 steps")


def test_a_model_reads_back_as_it_was_written(tmp_path: Path) -> None:
    for written in (
        {"timm": "resnet50", "pretrained": True},
        {"timm": {"resnet50": {"drop_rate": 0.1}}, "pretrained": "runs/a", "head": "keep"},
        {"convnet": {"channels": [4]}, "pretrained": "weights.safetensors"},
        {"mlp": None, "pretrained": "runs/a"},
        {"transformers": "x", "lora": {"rank": 4, "alpha": 8.0, "dropout": 0.1, "targets": ["q", "v"]}},
        {"convnet": {"channels": [4]}},
        "mlp",
    ):
        assert ModelSpec.parse(written).written() == written
    given = {"data": "digits", "model": "mlp", "batch": 2, "lr": 1, "budget": "1 steps"}
    recipe = recipe_from(given, tmp_path, ["model={timm: resnet50}", "model.pretrained=true", "freeze=[backbone]"])
    assert recipe.model == {"timm": "resnet50", "pretrained": True} and recipe.stem == "resnet50"
    recipe = recipe_from(given, tmp_path, ["model.pretrained=runs/a", "model.hidden=8"])
    assert recipe.model == {"mlp": {"hidden": 8}, "pretrained": "runs/a"}


def test_the_head_is_found_where_nobody_names_it() -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    assert head_modules(plain) == ("2",)
    assert part_parameters(plain)["backbone"] == ("0.weight", "0.bias")
