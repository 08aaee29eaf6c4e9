"""Scripts as people write them: a fused optimizer is proven on each, and doubled gradients of one of its optimizers never."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from interpreters import run_forked

HERE = Path(__file__).parent
SCRIPTS = {
    "gan": ("gan.py",),
    "wasserstein_gan": ("wasserstein_gan.py",),  # the optimizer created last steps once in six times
    "actor_critic": ("actor_critic.py",),
    "teacher_student": ("teacher_student.py",),
    "accumulation": ("accumulation.py",),
    "closure": ("closure.py",),
    "notebook": ("notebook.py",),
    "configured": ("configured/start.py", "--config", "configured/small.yaml"),
    "deep": ("deep.py",),
    "at_a_terminal": ("at_a_terminal.py",),
}
STARTED_BY = {
    "hydra": ("hydrated/start.py", "model=small", "optimizer.lr=0.002"),
    "lightning.pytorch.cli": (
        "lightning_cli.py", "fit", "--model.width=16", "--trainer.max_epochs=200", "--trainer.accelerator=cpu",
        "--trainer.devices=1", "--trainer.val_check_interval=7",
    ),
    "transformers.trainer": (
        "trainer_of_transformers.py", "--output_dir=runs", "--use_cpu", "--report_to=none", "--max_steps=3000",
        "--gradient_accumulation_steps=2", "--logging_steps=5", "--save_steps=15",
    ),
    "accelerate": ("accelerated.py",),
}  # fmt: skip
NEEDS = {"lightning.pytorch.cli": ("lightning", "jsonargparse"), "transformers.trainer": ("transformers", "accelerate")}
Told = dict[str, dict[str, Any]]


def tried(scripts: Iterable[tuple[str, ...]], libraries: Iterable[str] = ()) -> Told:
    words = " -- ".join(" ".join(script) for script in scripts).split()
    ended = run_forked(
        [str(HERE / "ordinary_trials.py"), *libraries, ":", *words],
        cwd=HERE / "ordinary",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert not ended.returncode, ended.stderr
    found: Told = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def told() -> Told:
    found = tried([*SCRIPTS.values(), ("attention.py",)])
    return {name: found[script[0]] for name, script in {**SCRIPTS, "attention": ("attention.py",)}.items()}


@pytest.fixture(scope="module")
def told_of_libraries() -> Told:
    there = {name: script for name, script in STARTED_BY.items() if all(map(find_spec, NEEDS.get(name, (name,))))}
    found = tried(there.values(), there)
    return {name: found[script[0]] for name, script in there.items()}


@pytest.mark.parametrize("library", STARTED_BY)
def test_a_fused_optimizer_is_proven_whatever_starts_the_script(told_of_libraries: Told, library: str) -> None:
    if library not in told_of_libraries:
        pytest.skip(f"needs {' and '.join(NEEDS.get(library, (library,)))}")
    found = told_of_libraries[library]
    assert not found["why"], found
    fused = found["fused_optimizer"]
    assert fused["check"]["passed"] and fused["losses"]["passed"], fused


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_fused_optimizer_is_proven(told: Told, script: str) -> None:
    assert not told[script]["why"], told[script]
    fused = told[script]["fused_optimizer"]
    assert fused["check"]["passed"] and fused["losses"]["passed"], fused


@pytest.mark.parametrize("script", ["gan", "wasserstein_gan", "actor_critic", "accumulation", "deep"])
def test_one_optimizer_with_doubled_gradients_is_not(told: Told, script: str) -> None:
    check = told[script]["learns_twice"]["check"]
    assert not check["passed"] and " is 2 times as long" in check["why"], check


def test_attention_and_a_loss_by_hand_are_proven_and_attention_without_its_mask_is_not(told: Told) -> None:
    found = told["attention"]
    for remedy in ("fused_attention", "fused_loss"):
        assert found[remedy]["check"]["passed"] and found[remedy]["losses"]["passed"], found[remedy]
    assert not found["forgets_its_mask"]["check"]["passed"]


def test_where_rounding_changes_the_first_gradients_a_later_step_is_compared(told: Told) -> None:
    assert told["deep"]["place"] >= 12 and told["gan"]["place"] == 0
    assert f"step {told['deep']['place'] + 1} agrees" in told["deep"]["fused_optimizer"]["check"]["why"]
