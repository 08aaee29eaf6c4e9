"""Models of timm and torchvision through their own loaders, frozen and unfrozen; photos scaled with a cubic filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import flatout as fo
from flatout.data.augment.resample import resample, resample_plainly
from flatout.data.augment.windows import CropWindow, Flat


def photos(rows: int = 32) -> Any:
    drawn = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (rows, 3, 64, 64), generator=drawn, dtype=torch.uint8)
    return fo.data.arrays(x, torch.arange(rows) % 3, normalize={"scale": 1 / 255, "mean": [0.5] * 3, "std": [0.25] * 3})


def train(tmp_path: Path, model: Any, **given: Any) -> Any:
    asked = {"data": photos(), "model": model, "batch": 8, "lr": 1e-3, "budget": "6 steps", "evaluate": None, **given}
    return fo.run(fo.Recipe(**asked), runs=tmp_path / "runs", planning="off", cache=tmp_path / "cache", fresh=True)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_backbone_in_a_file_trains_with_a_new_head(library: str, tmp_path: Path, device: torch.device) -> None:
    pytest.importorskip(library)
    torch.manual_seed(0)
    if library == "timm":
        import timm

        saved = timm.create_model("resnet18", num_classes=10)
    else:
        from torchvision.models import get_model

        saved = get_model("resnet18", num_classes=10)
    save_file({name: value.contiguous() for name, value in saved.state_dict().items()}, tmp_path / "weights.safetensors")
    model = {library: "resnet18", "pretrained": str(tmp_path / "weights.safetensors")}
    still = train(tmp_path, model, freeze=["backbone"]).model(bare=True)
    assert still.fc.out_features == 3
    for name, value in saved.state_dict().items():
        assert name.startswith("fc.") or torch.equal(value, still.state_dict()[name]), name
    moved = train(tmp_path, model, freeze=["backbone"], unfreeze={"layer4": "3 steps"}).model(bare=True)
    assert not torch.equal(moved.layer4[0].conv1.weight, saved.layer4[0].conv1.weight)
    assert torch.equal(moved.layer3[0].bn1.running_mean, saved.layer3[0].bn1.running_mean)


@pytest.mark.parametrize("settings", [{"graph": True}, {"compile": "on"}], ids=["graph", "compile"])
def test_an_unfreezing_makes_the_captured_step_again(settings: dict[str, Any], tmp_path: Path, device: torch.device) -> None:
    """The losses are those of the plain step."""
    pytest.importorskip("torchvision")
    how: Any = {"model": {"torchvision": "resnet18"}, "freeze": ["backbone"], "unfreeze": {"layer4": "2 steps"}}
    plain = train(tmp_path, settings={"precision": "fp32", "graph": False, "compile": "off", "log_every": 1}, **how)
    other = train(tmp_path, settings={"precision": "fp32", "log_every": 1, **settings}, **how)
    steps = [[event["loss"] for event in run.events() if event["kind"] == "step"] for run in (plain, other)]
    assert steps[0] == pytest.approx(steps[1], rel=1e-3)
    assert [event["step"] for event in other.events() if event["kind"] == "unfroze"] == [2]


@pytest.mark.parametrize("model", [{"timm": "resnet18", "pretrained": True}, {"torchvision": "resnet18", "pretrained": True}])
def test_the_librarys_own_configuration_is_read(model: dict[str, Any]) -> None:
    """Without a network: only what prepares photos is asked for."""
    pytest.importorskip(next(iter(model)))
    from flatout.models.libraries.build import input_of
    from flatout.models.model_spec import ModelSpec

    found = input_of(ModelSpec.parse(model), Path())
    assert found is not None and found.size == 224 and found.resize is not None and found.resize >= 224
    assert found.mean == pytest.approx((0.485, 0.456, 0.406)) and found.interpolation in ("bilinear", "bicubic")


@pytest.mark.parametrize(("height", "width", "size", "resize"), [(90, 120, 32, 40), (30, 40, 64, 70)])
def test_a_cubic_crop_is_that_of_the_plain_sums(height: int, width: int, size: int, resize: int, device: torch.device) -> None:
    from flatout.data.augment.crops import center_window

    drawn = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (height * width * 3,), generator=drawn, dtype=torch.uint8)
    flat = Flat(pixels, torch.tensor([0]), torch.tensor([width]))
    window = center_window(torch.tensor([height]), torch.tensor([width]), size, resize)
    expected = resample_plainly(flat, window, size, "bicubic").int()
    there = Flat(*(column.to(device) for column in flat)), CropWindow(*(column.to(device) for column in window))
    made = resample(*there, size, "bicubic").cpu().int()
    assert (made - expected).abs().max() <= 1
