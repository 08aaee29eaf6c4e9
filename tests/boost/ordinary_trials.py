"""Each script is compared with itself and with remedies, and with a planted bug; prints what its proofs say.

python ordinary_trials.py [LIBRARY]... : SCRIPT [ARGUMENTS] [-- SCRIPT [ARGUMENTS]]...
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch._dynamo
import torch.nn.functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook

from flatout.boost.boosting import in_a_fork, protection_here
from flatout.boost.forks import Forks
from flatout.boost.hooks import Hooks
from flatout.boost.proving import Proof
from flatout.boost.remedies.all import REMEDIES
from flatout.boost.remedies.fused import Fused
from flatout.boost.remedies.fused_attention import FusedAttention
from flatout.boost.trying import Trials
from flatout.doctor.script import Script


class LastOptimizerLearnsTwice(Fused):
    """The gradients of the optimizer that was created last are doubled."""

    def apply(self, value: Any, hooks: Hooks) -> None:
        made: list[torch.optim.Optimizer] = []

        def created(original: Any) -> Any:
            def __init__(optimizer: torch.optim.Optimizer, *args: Any, **named: Any) -> None:
                original(optimizer, *args, **named)
                if optimizer.param_groups[0].get("foreach") is not False:
                    made.append(optimizer)

            return __init__

        def before(optimizer: torch.optim.Optimizer, args: Any, named: Any) -> None:
            if made and optimizer is made[-1]:
                for weight in (one for group in optimizer.param_groups for one in group["params"] if one.grad is not None):
                    weight.grad.mul_(2)

        hooks.patches.wrap(torch.optim.Optimizer, "__init__", created)
        register_optimizer_step_pre_hook(before)


class ForgetsItsMask(FusedAttention):
    def apply(self, value: Any, hooks: Hooks) -> None:
        super().apply(value, hooks)
        hooks.patches.wrap(
            F, "scaled_dot_product_attention", lambda original: lambda *args, attn_mask, **more: original(*args, **more)
        )


LEARNS_TWICE = (("fused_optimizer", "on"), ("learns_twice", "on"))
TRIED = {
    **dict.fromkeys(("gan.py", "wasserstein_gan.py", "actor_critic.py", "accumulation.py", "deep.py"), LEARNS_TWICE),
    "attention.py": (("fused_attention", "on"), ("fused_loss", "on"), ("forgets_its_mask", "on")),
}
DEEP = ("deep.py",)
REMEDIES["learns_twice"], REMEDIES["forgets_its_mask"] = LastOptimizerLearnsTwice(), ForgetsItsMask()
told: dict[str, Any] = {}
needs, _, words = " ".join(sys.argv[1:]).partition(":")
for library in needs.split():  # once, and not in each trial
    importlib.import_module(library)
with tempfile.TemporaryDirectory() as folder, Forks(in_a_fork) as forks:
    for number, (name, *arguments) in enumerate(one.split() for one in words.split(" -- ")):
        place = Path(folder) / str(number)
        place.mkdir()
        trials = Trials(forks, Script(name, tuple(arguments)), place, 30, protection_here(forks, place).kind)
        proof = Proof(trials, lambda line: None)
        found: dict[str, Any] = {"why": proof.begin(("bf16", "fp32") if name in DEEP else ("fp32",), lambda: False)}
        if not found["why"]:
            found["place"] = proof.place.at if proof.place else None
            found["steps"] = proof.reference.steps_done
            for remedy in TRIED.get(name, LEARNS_TWICE[:1]):
                tried = trials.attempt((remedy,))
                losses = proof.losses(tried, (remedy,)) if tried.check and tried.check["passed"] else {}
                found[remedy[0]] = {**asdict(tried), "losses": losses}
        told[name] = found
print(json.dumps(told))
