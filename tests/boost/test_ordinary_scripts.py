"""Scripts as people write them: a fused optimizer is proven on each, and doubled gradients of one of its optimizers never."""

from __future__ import annotations

import json
import os
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
}
Told = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def told() -> Told:
    words = " -- ".join(" ".join(script) for script in SCRIPTS.values()).split()
    ended = run_forked(
        [str(HERE / "ordinary_trials.py"), *words], cwd=HERE / "ordinary", env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert not ended.returncode, ended.stderr
    found = json.loads(ended.stdout)
    return {name: found[script[0]] for name, script in SCRIPTS.items()}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_fused_optimizer_is_proven(told: Told, script: str) -> None:
    assert not told[script]["why"], told[script]
    fused = told[script]["fused_optimizer"]
    assert fused["check"]["passed"] and fused["losses"]["passed"], fused


@pytest.mark.parametrize("script", ["gan", "wasserstein_gan", "actor_critic", "accumulation", "deep"])
def test_one_optimizer_with_doubled_gradients_is_not(told: Told, script: str) -> None:
    check = told[script]["learns_twice"]["check"]
    assert not check["passed"] and " is 2 times as long" in check["why"], check


def test_where_rounding_changes_the_first_gradients_a_later_step_is_compared(told: Told) -> None:
    assert told["deep"]["place"] >= 12 and told["gan"]["place"] == 0
    assert f"step {told['deep']['place'] + 1} agrees" in told["deep"]["fused_optimizer"]["check"]["why"]
