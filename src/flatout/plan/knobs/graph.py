"""The whole step as one CUDA graph: useful if launching kernels takes longer than running them.

Otherwise it only closes the gaps between kernels: about 1% of a step of a hundred milliseconds, less than a short trial can
show. So it is kept unless it is slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flatout.data.feeds.resident import filled_by
from flatout.engine.settings import Settings, with_values
from flatout.plan.knobs.knob import Candidate, Decisions, SettingRules, always
from flatout.plan.knobs.splitting import SPLITS, split_conflict
from flatout.plan.plan import Choice
from flatout.plan.prediction import LAUNCH, Prediction
from flatout.plan.situation import Situation

name = "graph"
off = False
lossy = False
risky = True
meets: tuple[str, ...] = ("precision", "compile", "fused_optimizer")

_PAYS_STEPS = 200
_COST_S = 3.0
_NEARLY = 0.5  # the host may be slower than when it was measured, and a graph costs little
_AT_ONCE = "one launch per step, without gaps between kernels"
_DECODING = "one launch per step: decoding threads would delay a loop that launches each kernel"


def default(s: Situation, values: Mapping[str, Any]) -> Decisions:
    if (refused := _refused(s)) is not None:
        yield Choice(name, False, refused)
    elif s.total_steps is not None and s.total_steps < _PAYS_STEPS:
        yield Choice(name, False, f"{s.total_steps} steps are too few to repay the capture")
    elif _decodes_during_training(s, str(values["tier"])):
        yield Choice(name, True, _DECODING)
    else:
        yield _by_launches(s.predicted(with_values(Settings(device=str(s.device)), values)))


def _by_launches(step: Prediction) -> Choice:
    share = step.calls_s / step.step_s if step.step_s else 0.0
    if step.bound == LAUNCH:
        return Choice(name, True, "launch-bound: one launch per step")
    if share > _NEARLY:
        return Choice(name, True, f"launching kernels takes {share:.0%} as long as the step: one launch per step")
    return Choice(name, False, f"not launch-bound: bound by {step.bound}")


def candidates(s: Situation, now: Settings) -> Iterator[Candidate]:
    if not now.graph and _refused(s) is None:
        decodes = _decodes_during_training(s, now.tier)
        has_room = not now.micro_batch  # else memory is short: a graph needs extra memory and excludes offloading
        why = _DECODING if decodes else _AT_ONCE
        yield Candidate(True, why, None, _COST_S, unless_slower=decodes or has_room, compiles_anew=False)


def _refused(s: Situation) -> str | None:
    if s.device.type != "cuda":
        return "CUDA only"
    if s.job.data.train.stream is not None:
        return "needs batches of one shape; those of a stream are not known in advance"
    if callable(s.job.optimizer):
        return "custom optimizer: may not be capturable"
    if s.job.data.train.shapes_vary:
        return "needs batches of one shape; a token budget makes many"
    return None


def _decodes_during_training(s: Situation, tier: str) -> bool:
    """Whether threads decode rows during training."""
    train = s.job.data.train
    if train.piece_rows is None:
        return False
    return tier != "resident" or filled_by(train, s.device) is not None


def _conflicts(now: Settings) -> Iterator[str]:
    if now.graph and now.device_kind != "cuda":
        yield f"graph=on needs a CUDA device; the run is on {now.device_kind}: --off graph"
    if now.graph:
        yield from split_conflict(now, name, SPLITS, "off")


rules = SettingRules(_conflicts, one_process=True, shown=always)
