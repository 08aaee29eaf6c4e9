"""Habits from other trainers: each gets one line that says how it is written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from commands import Command
from torch import nn
from torch.nn import functional

import flatout as fo
from flatout.base.errors import DataError, RecipeError, UsageError
from flatout.engine.settings import is_setting
from flatout.recipe.schema import Recipe
from flatout.recipe.slips import ANSWERS, LOSSES, OF_A_RUN
from flatout.store.run_folder import RunFolder

WHOLE: dict[str, Any] = {"data": "digits", "model": "mlp", "batch": 64, "lr": 1e-3, "budget": "1 step"}
KEYS = [  # key, value, what the answer names; from Lightning, HF Trainer, fastai and Keras
    ("learning_rate", 1e-3, "lr"),
    ("epochs", 5, "budget"),
    ("max_epochs", 5, "budget"),
    ("num_train_epochs", 5, "budget"),
    ("max_steps", 100, "budget"),
    ("batch_size", 32, "batch"),
    ("bs", 32, "batch"),
    ("per_device_train_batch_size", 8, "batch"),
    ("gradient_accumulation_steps", 4, "micro_batch"),
    ("accumulate_grad_batches", 4, "micro_batch"),
    ("callbacks", [], "early_stop"),
    ("cbs", [], "observers"),
    ("accelerator", "gpu", "device"),
    ("devices", 2, "--devices"),
    ("strategy", "ddp", "torchrun"),
    ("precision", "bf16-mixed", "settings"),
    ("fp16", True, "precision"),
    ("compile", True, "settings"),
    ("loss", "sparse_categorical_crossentropy", "objective"),
    ("loss_func", nn.CrossEntropyLoss(), "objective"),
    ("criterion", nn.MSELoss(), "objective"),
    ("validation_split", 0.2, "holdout"),
    ("eval_dataset", [], "validation"),
    ("gradient_clip_val", 1.0, "clip"),
    ("max_grad_norm", 1.0, "clip"),
    ("warmup_steps", 100, "schedule"),
    ("lr_scheduler_type", "cosine", "schedule"),
    ("num_workers", 4, "workers"),
    ("output_dir", "out", "runs"),
    ("wd", 0.1, "weight_decay"),
    ("random_state", 0, "seed"),
    ("resume_from_checkpoint", True, "resumes"),
    ("logging_steps", 10, "log_every"),
    ("verbose", 0, "quiet"),
    ("X_train", [], "data=(x, y)"),
    ("cat_names", ["job"], "categorical"),
    ("tokenizer", None, "data"),
    ("data_collator", None, "collate"),
    ("compute_metrics", None, "metrics: [f1"),
    ("args", None, "keys"),
    ("hidden_layer_sizes", (64,), "mlp: {hidden"),
    ("monitor", "val_loss", "best"),
    ("sample_weight", [], "draw"),
    ("nb_epoch", 5, "budget"),
    ("eval_set", [], "validation"),
]


@pytest.mark.parametrize("key, value, named", KEYS, ids=[key for key, _, _ in KEYS])
def test_a_key_of_another_trainer(key: str, value: Any, named: str) -> None:
    with pytest.raises(RecipeError) as said:
        fo.Recipe(**WHOLE, **{key: value})
    (problem,) = said.value.problems
    assert problem.startswith(f"{key}: ") and named in problem.partition("; ")[2] and "\n" not in problem


@pytest.mark.parametrize(
    "given, named",
    [
        (nn.CrossEntropyLoss(), "classify"),
        (nn.CrossEntropyLoss, "classify"),
        (functional.cross_entropy, "classify"),
        ("cross_entropy", "classify"),
        ("mse", "regress"),
        (nn.BCEWithLogitsLoss(), "binary"),
        (nn.HuberLoss(), "huber"),
        (nn.TripletMarginLoss(), "extend.md"),
    ],
)
def test_a_loss_where_an_objective_was_meant(given: Any, named: str) -> None:
    with pytest.raises(RecipeError) as said:
        fo.Recipe(**WHOLE, objective=given)
    (problem,) = said.value.problems
    assert problem.startswith("objective: ") and named in problem


def test_an_optimizer_that_is_built_already() -> None:
    net = nn.Linear(1, 1)
    with pytest.raises(RecipeError, match="optimizer: adam and lr"):
        fo.Recipe(**WHOLE, optimizer=torch.optim.Adam(net.parameters()))


@pytest.mark.parametrize(
    "words, named",
    [
        (("--lr", "0.1"), "lr=0.1"),
        (("--lr=0.1",), "lr=0.1"),
        (("--batch", "32"), "batch=32"),
        (("--epochs", "5"), "budget"),
        (("--learning-rate", "0.1"), "lr"),
        (("--batch_size", "8"), "batch"),
        (("--precision", "bf16"), "--set precision=bf16"),
        (("--gpus", "2"), "--devices"),
        (("learning_rate=0.1",), "lr"),
        (("epochs=5",), "budget"),
    ],
    ids=" ".join,
)
def test_options_on_the_command_line(flatout: Command, words: tuple[str, ...], named: str) -> None:
    answer = flatout("run", "table.yaml", *words)
    assert answer.code == 2 and named in answer.err and "Traceback" not in answer.err
    assert not Path("runs").exists(), "nothing was started"


@pytest.mark.parametrize(
    "words, said",
    [
        (("--prompt", "To be"), "flatout generate RUN 'To be'"),
        (("--checkpoint=out/last.pt", "To be"), "flatout generate out/last.pt 'text'"),
        (("To be", "--max_new_tokens", "20"), "it is --tokens 20"),
        (("To be", "--num-tokens=20"), "it is --tokens 20"),
        (("To be", "-n", "20"), "it is --tokens 20"),
        (("To be", "--temp", "0.3"), "it is --temperature 0.3"),
        (("To be", "--top_k", "5"), "it is --top-k 5"),
        (("To be", "--num_samples", "2"), "flatout generate RUN 'text' 'text'"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_options_of_other_generators(flatout: Command, words: tuple[str, ...], said: str) -> None:
    answer = flatout("generate", "last", *words)
    assert (answer.code, answer.out) == (2, "") and said in answer.err and answer.err.count("\n") == 1


def test_other_unknown_options_are_answered_as_ever(flatout: Command) -> None:
    answer = flatout("run", "table.yaml", "--nonsense")
    assert answer.code == 2 and "--nonsense" in answer.err


@pytest.mark.parametrize("command", ["run", "explain", "data"])
def test_a_csv_where_a_recipe_was_meant(flatout: Command, command: str) -> None:
    Path("trips.csv").write_text("a,b\n1,2\n")
    Path("photos").mkdir()
    answer = flatout(command, "trips.csv")
    wanted = "which column is to be learned?" if command == "data" else "flatout new trips.csv"  # `data` takes a file
    assert answer.code == 2 and wanted in answer.err
    if command == "run":  # `explain` takes a folder as a run, and `data` as data
        assert "flatout new photos" in flatout(command, "photos").err


def test_a_path_where_a_kind_of_data_was_meant(flatout: Command) -> None:
    Path("trips.csv").write_text("a,b\n1,2\n")
    answer = flatout("run", "table.yaml", "data=trips.csv")
    assert answer.code == 2 and "label" in answer.err and "flatout new trips.csv" in answer.err


def test_a_recipe_and_keys_at_once() -> None:
    with pytest.raises(UsageError, match="lr"):
        fo.run(fo.Recipe(**WHOLE), lr=1e-3)
    with pytest.raises(UsageError, match="both"):
        fo.run(fo.Recipe(**WHOLE), data=([1.0], [0]))
    with pytest.raises(AttributeError, match=r"fo\.run"):
        fo.Trainer  # noqa: B018


def test_things_in_the_order_of_other_libraries() -> None:
    with pytest.raises(UsageError, match=r"data=\(x, y\), model=net"):
        fo.run(nn.Linear(1, 1), ([1.0], [0]))
    with pytest.raises(UsageError, match=r"x: .*data=\(x, y\)"):
        fo.run(x=[[1.0]], y=[0])


@pytest.mark.parametrize(
    "name, named",
    [
        ("fit", "fo.run"),
        ("score", "run.evaluate"),
        ("history", "run.plot"),
        ("save", "fo.export"),
        ("state_dict", "run.model"),
        ("predict_proba", "run.predict"),
    ],
)
def test_what_trained_objects_of_other_libraries_have(name: str, named: str, tmp_path: Path) -> None:
    run = fo.Run(RunFolder(tmp_path))
    with pytest.raises(AttributeError) as said:
        getattr(run, name)
    assert named in str(said.value) and "\n" not in str(said.value)
    assert not hasattr(run, "_repr_html_"), "which a notebook asks for"


def test_no_answer_is_about_a_key_that_exists() -> None:
    assert not [name for name in ANSWERS if name in Recipe.model_fields or is_setting(name)]
    assert not [name for name in OF_A_RUN if name in dir(fo.Run)]
    for objective in set(LOSSES.values()):
        plain = objective if not objective.startswith("{") else {"regress": {"error": objective.split()[-1].strip("}")}}
        fo.Recipe(**WHOLE, objective=plain)


@pytest.mark.parametrize("typed, here", [("train", "run"), ("fit", "run"), ("list", "runs")])
def test_a_command_of_another_trainer(typed: str, here: str, flatout: Command) -> None:
    answer = flatout(typed, "table.yaml")
    assert (answer.code, answer.out) == (2, "") and answer.err == f"flatout: {typed}: no such command; it is flatout {here}\n"


@pytest.mark.parametrize(("name", "said"), [("lr_find", "find_lr"), ("Tuner", "find_lr"), ("Trainer", "fo.run")])
def test_names_of_other_libraries_lead_to_those_of_the_package(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        getattr(fo, name)


def test_a_budget_without_a_unit(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="needs a unit"):
        Recipe(**{**WHOLE, "budget": "3"})


def test_one_row_of_a_frame_is_no_table() -> None:
    from flatout.data.sources.tables.frames import arrow_table

    with pytest.raises(DataError, match="Series"):
        arrow_table(pd.DataFrame({"a": [1.0], "b": [2.0]}).iloc[0])
