"""The first hour on a GPU: metrics, weighted losses, rates, derived columns and text are those of the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import flatout as fo
from flatout.objectives.build import build
from flatout.objectives.joining import adder
from flatout.objectives.named.measured import measured
from flatout.objectives.named.parse import named_metrics_of

CLASSES = ["accuracy", "f1", "precision", "recall", "auroc", "average_precision", "log_loss", "calibration_error", "mcc"]
VALUES = ["mae", "rmse", "r2", "mape"]


def batches(objective: str, device: torch.device) -> list[dict[str, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(0)
    found = []
    for _ in range(5):
        x = torch.randn(256, 8, generator=drawn)
        y = torch.randint(0, 4, (256,), generator=drawn) if objective == "classify" else x[:, :1] * 3 + 1
        found.append({"x": x.to(device), "y": y.to(device)})
    return found


def network(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, outputs))


@pytest.mark.parametrize(("objective", "names"), [("classify", CLASSES), ("regress", VALUES)])
def test_metrics_are_those_of_the_cpu_and_wait_for_nothing(objective: str, names: list[str], device: torch.device) -> None:
    found = {}
    for place in (torch.device("cpu"), device):
        plain = build(objective, ["x"])
        asked = measured(plain, named_metrics_of(names, plain), None)
        model, meter = network(4 if objective == "classify" else 1).to(place).eval(), asked.meter(place)
        add = adder(asked, meter)
        rows = batches(objective, place)
        with torch.no_grad():
            for number, batch in enumerate(rows):
                if number == 1 and place.type == "cuda":  # the first one may set things up
                    torch.cuda.set_sync_debug_mode("error")
                add(asked.forward(model, batch), batch)
        torch.cuda.set_sync_debug_mode("default")
        found[place.type] = meter.result()
    assert found["cuda"].keys() == found["cpu"].keys() and len(found["cpu"]) > len(names)
    for name, value in found["cpu"].items():
        assert found["cuda"][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize(
    "objective",
    [
        {"classify": {"class_weights": [1.0, 3.0, 0.5, 2.0]}},
        {"classify": {"focal": 2.0}},
        {"classify": {"class_weights": [1.0, 3.0, 0.5, 2.0], "focal": 1.5, "label_smoothing": 0.1}},
    ],
)
def test_weighted_losses_train_as_on_the_cpu(objective: Any, tmp_path: Path) -> None:
    drawn = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (1024,), generator=drawn)
    x = torch.randn(1024, 8, generator=drawn) + 2 * nn.functional.one_hot(y, 8)
    losses = {}
    for device in ("cpu", "cuda"):
        recipe = fo.Recipe(
            data=fo.data.arrays(x, y, holdout=0.25), model=network(4), objective=objective, batch=128, lr=1e-2,
            budget="40 steps", metrics=["f1", "recall"], name=device,
            settings={"device": device, "precision": "fp32", "deterministic": True},
        )  # fmt: skip
        run = fo.run(recipe, runs=tmp_path, fresh=True, cache=tmp_path / "cache", quiet=True)
        losses[device] = run.result["metrics"]
    for name, value in losses["cpu"].items():
        assert losses["cuda"][name] == pytest.approx(value, rel=2e-3, abs=2e-3), name


def classified(**given: Any) -> fo.Recipe:
    drawn = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (4096,), generator=drawn)
    x = torch.randn(4096, 8, generator=drawn) + 2 * nn.functional.one_hot(y, 8)
    base = {"data": fo.data.arrays(x, y, holdout=0.25), "model": {"mlp": {"hidden": [64]}}, "batch": 128, "budget": "3 epochs"}
    return fo.Recipe(**{**base, "settings": {"device": "cuda"}, **given})


def test_a_rate_is_found_on_the_device(tmp_path: Path) -> None:
    found = fo.find_lr(classified(lr="auto"), limit="30 s", cache=tmp_path / "cache")
    assert found.low <= found.lr <= found.high and found.why

    def loss(lr: float, name: str) -> float:
        run = fo.run(classified(lr=lr, name=name), runs=tmp_path, cache=tmp_path / "cache", planning="off", quiet=True)
        return float(run.result["metrics"]["loss"])

    assert loss(found.lr, "found") < 0.9 * loss(found.lr / 100, "lower")


def test_one_batch_is_learned_on_the_device(tmp_path: Path) -> None:
    found = fo.overfit(classified(lr=1e-2), cache=tmp_path / "cache")
    assert found.learned and found.loss < found.first_loss


def test_derived_columns_are_those_of_the_cpu(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    km, minutes = drawn.gamma(2, 3, 2000).round(2), drawn.integers(2, 90, 2000)
    start = np.datetime64("2024-03-01T00:00") + drawn.integers(0, 50_000, 2000).astype("timedelta64[m]")
    zone = drawn.choice(["A", "B", "C"], 2000)
    rows = zip(km, start, start + minutes.astype("timedelta64[m]"), zone, (2 + km + minutes / 3).round(2), strict=True)
    lines = "".join(",".join(map(str, row)) + "\n" for row in rows)
    (tmp_path / "trips.csv").write_text("km,start,end,zone,fare\n" + lines)
    predicted = {}
    for device in ("cpu", "cuda"):
        (tmp_path / f"{device}.yaml").write_text(
            "data:\n  table: trips.csv\n  label: fare\n  drop: [start, end]\n  holdout: 0.25\n  where: [km > 0.5]\n  derive:\n"
            "    minutes: minutes_between(start, end)\n    speed: 60 * km / minutes\n    usual: mean(speed) by zone\n"
            "    night: hour(start) < 6 or hour(start) >= 22\n"
            "model: {mlp: {hidden: [16]}}\nobjective: regress\nbatch: 64\nlr: 1e-2\nbudget: 5 epochs\n"
            f"settings: {{device: {device}, precision: fp32}}\n"
        )
        run = fo.run(tmp_path / f"{device}.yaml", runs=tmp_path / "runs", cache=tmp_path / "cache", planning="off", quiet=True)
        predicted[device] = torch.as_tensor(fo.predict(run, tmp_path / "trips.csv", device=device)["prediction"])
    apart = (predicted["cuda"] - predicted["cpu"]).abs().mean() / predicted["cpu"].std()
    assert apart < 0.02


def test_a_text_model_writes_on_the_device(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("to be or not to be, that is the question. " * 200)
    recipe = fo.Recipe(
        data={"text": str(tmp_path / "words.txt"), "window": 32, "holdout": 0.1}, objective="next_token", batch=32, lr=3e-3,
        model={"gpt": {"layers": 2, "heads": 2, "width": 64}}, budget="150 steps", settings={"device": "cuda"},
    )  # fmt: skip
    run = fo.run(recipe, runs=tmp_path / "runs", fresh=True, cache=tmp_path / "cache", quiet=True)
    texts = run.generate(["to be or", "that is"], tokens=24, greedy=True)
    assert texts == run.generate(["to be or", "that is"], tokens=24, greedy=True)
    assert "to be" in texts[0] and all(len(text) > 20 for text in texts)
