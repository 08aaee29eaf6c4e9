"""A recipe in Python: checked when it is made, frozen, written down as JSON, read back from its file."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from torch import nn, optim

import flatout as fo
from flatout.base.errors import RecipeError, UsageError
from flatout.recipe.build import build_job, check_job, identity
from flatout.recipe.load import read_recipe, recipe_from


def make(**given: Any) -> fo.Recipe:
    return fo.Recipe(**{"data": "digits", "model": "mlp", "batch": 32, "lr": 1e-3, "budget": "1 epoch", **given})


def key(**given: Any) -> str:
    recipe = make(**given)
    return identity(recipe, build_job(recipe))


class Tiny(nn.Sequential):
    def __init__(self, wide: int = 10) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, wide))


def test_defaults_are_said_once() -> None:
    recipe = make()
    assert (recipe.objective, recipe.optimizer, recipe.schedule, recipe.inputs) == ("classify", "adamw", "cosine", "x")
    assert (recipe.weight_decay, recipe.evaluate, recipe.clip, recipe.seed) == (0.01, "1 epoch", None, 0)


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        make().lr = 3.0  # type: ignore[misc]


def test_all_mistakes_come_together() -> None:
    with pytest.raises(RecipeError) as error:
        fo.Recipe(data="digts", model={"mlp": {"hiden": [3]}}, lr="x", budget="1 epoch", seeed=1)
    assert [problem.partition(":")[0] for problem in error.value.problems] == ["model", "batch", "lr", "seeed", "data"]
    assert "data: unknown data 'digts'; did you mean 'digits'?" in error.value.problems
    assert str(error.value).startswith("5 mistakes in recipe:\n  - ")
    assert error.value.exit_code == 2


def test_a_run_is_the_same_on_any_mesh() -> None:
    assert key(settings={"mesh": "shard=2"}) == key(settings={"mesh": "pipeline=2,data=2"}) == key()
    assert key(settings={"mesh": "shard=2", "precision": "fp32"}) != key()


def test_written_is_json_and_makes_the_same_recipe() -> None:
    recipe = make(optimizer={"sgd": {"momentum": 0.9}}, early_stop=3, rates={"*.bias": 0.1}, settings={"precision": "fp32"})
    written = json.loads(json.dumps(recipe.written()))
    assert recipe_from(written, Path()).written() == recipe.written()


@pytest.mark.parametrize(
    ("given", "stem"),
    [
        ({}, "mlp"),
        ({"model": {"convnet": {"hidden": 8}}}, "convnet"),
        ({"model": Tiny}, "Tiny"),
        ({"name": "mine"}, "mine"),
    ],
)
def test_runs_are_called_after_their_model(given: dict[str, Any], stem: str) -> None:
    assert make(**given).stem == stem


def test_data_is_read_once() -> None:
    recipe = make()
    assert recipe.load_data() is recipe.load_data()


def test_python_objects_are_parts_too() -> None:
    x = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
    data = fo.data.arrays(x, np.arange(64) % 10, holdout=0.25)
    recipe = make(data=data, model=functools.partial(Tiny, 10), optimizer=functools.partial(optim.SGD, lr=0.1), batch=8)
    job = build_job(recipe)
    assert job.data is data
    assert isinstance(job.model, Tiny)
    json.dumps(recipe.written())


@pytest.mark.parametrize("stop", [3, {"patience": 3}, {"metric": "accuracy", "patience": 3}])
def test_early_stop(stop: Any) -> None:
    stopping = make(early_stop=stop).early_stopping("accuracy")
    assert stopping is not None
    assert (stopping.metric, stopping.patience) == ("accuracy", 3)


def test_init_from(tmp_path: Path) -> None:
    assert make().init_weights() is None
    assert make(init_from="w.safetensors").init_weights() == (Path("w.safetensors"), ())
    assert make(init_from={"path": "w.safetensors", "skip": ["head.*"]}).init_weights() == (Path("w.safetensors"), ("head.*",))
    for wrong in (3, {"skip": []}, {"path": "a", "strip": []}):
        with pytest.raises(RecipeError, match="init_from is a path"):
            make(init_from=wrong)


def test_what_makes_a_run_the_same() -> None:
    same = key()
    assert key() == same
    assert key(objective="classify", lr="1e-3") == same, "said or left out"
    for change in (
        {"lr": 2e-3},
        {"seed": 1},
        {"model": "convnet"},
        {"data": {"digits": None, "holdout": 0.3}},
        {"model": Tiny},
    ):
        assert key(**change) != same


def test_a_model_instance_is_told_by_its_weights() -> None:
    tiny = Tiny()
    assert key(model=tiny) == key(model=tiny)
    assert key(model=tiny) != key(model=Tiny())


def test_checking_leaves_the_model_as_it_was() -> None:
    import torch

    job = build_job(make(model=Tiny))
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    check_job(job, torch.device("cpu"))
    assert job.model.training
    assert all(torch.equal(value, before[name]) for name, value in job.model.state_dict().items())


# ---- files ----


def test_paths_are_from_the_folder_of_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    np.savez(folder / "t.npz", x=np.zeros((8, 3), "float32"), y=np.arange(8) % 2)
    common = {"model": "mlp", "batch": 4, "lr": 1, "budget": "1 epoch"}
    (folder / "r.yaml").write_text(json.dumps({"data": {"arrays": "t.npz"}, **common}))
    (folder / "r.py").write_text(f"import flatout as fo\nrecipe = fo.Recipe(data={{'arrays': 't.npz'}}, **{common})")
    for name in ("r.yaml", "r.py"):
        recipe = read_recipe(folder / name)
        assert len(recipe.load_data().train) == 8
        assert recipe.stem == "r"
        assert recipe.folder == folder


def test_overrides_do_not_touch_what_was_written() -> None:
    written = {"data": {"digits": None}, "model": {"mlp": {"hidden": [4]}}, "batch": 4, "lr": 1, "budget": "1 epoch"}
    before = json.dumps(written)
    recipe = recipe_from(written, Path(), ["model.mlp.hidden=[8]", "data.holdout=0.5", "clip=1", "evaluate="], {"graph": False})
    assert json.dumps(written) == before
    assert recipe.model == {"mlp": {"hidden": [8]}}
    assert recipe.data == {"digits": None, "holdout": 0.5}
    assert (recipe.clip, recipe.evaluate, recipe.settings) == (1.0, None, {"graph": False})
    assert recipe.given == (("model.mlp.hidden=[8]", "data.holdout=0.5", "clip=1", "evaluate="), {"graph": False})


def test_an_override_makes_the_parts_above_it() -> None:
    written = {"data": "digits", "model": "mlp", "batch": 4, "lr": 1, "budget": "1 epoch"}
    recipe = recipe_from(
        written, Path(), ["data.holdout=0.5", "model.hidden=[8]", "early_stop.patience=2", "settings.tier=pinned"]
    )
    assert recipe.data == {"digits": None, "holdout": 0.5}
    assert recipe.model == {"mlp": {"hidden": [8]}}
    assert recipe.early_stop == {"patience": 2}
    assert recipe.settings == {"tier": "pinned"}


def test_a_python_object_can_only_be_overridden_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.py"
    path.write_text(
        "import flatout as fo\nrecipe = fo.Recipe(data=fo.data.digits(), model='mlp', batch=4, lr=1, budget='1 epoch')"
    )
    with pytest.raises(UsageError, match="data is a Data, which has no keys to set"):
        read_recipe(path, ["data.holdout=0.3"])
    assert read_recipe(path, ["data=digits"]).data == "digits"


def test_the_examples_are_recipes() -> None:
    folder = Path(__file__).parent.parent.parent / "examples"
    for path in sorted(set(folder.glob("*.yaml")) - {folder / "pipeline.yaml"}):
        try:
            read_recipe(path)
        except RecipeError as error:  # a data set that is not on this machine is all that may be missing
            assert all(problem.startswith("data: ") for problem in error.problems), error
    packaged = Path(fo.__file__).parent / "cli" / "digits.yaml"
    assert read_recipe(packaged).written() == read_recipe(folder / "digits.yaml").written()
