"""How important each parameter was: PED-ANOVA, by Optuna. It compares the best quarter of trials with all of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

from flatout.tuning.space.domains import Choices
from flatout.tuning.space.parameter import Parameter
from flatout.tuning.space.space import Space
from flatout.tuning.views.history import StudyHistory

FEWEST = 20  # trials with a score at the same step
_BEST = 0.25  # at least five trials, which the method needs
NEEDS_OPTUNA = "pip install 'flatout[tune]'"


@dataclass(frozen=True)
class Importance:
    """`shares` add up to 1, the largest first. Empty if there is none; `why` says the reason."""

    shares: Mapping[str, float]
    step: int = 0
    trials: int = 0
    why: str = ""


def importance_of(history: StudyHistory, space: Space) -> Importance:
    """By trials at one step: the latest that half of them reached, and at least 20."""
    step = history.common_step(max(FEWEST, (len(history.scored) + 1) // 2)) or history.common_step(FEWEST)
    if step is None:
        return Importance({}, why=f"needs {FEWEST} trials with a score at the same step")
    scores = {trial.scores[step] for trial in history.trials if step in trial.scores}
    count = sum(step in trial.scores for trial in history.trials)
    if len(scores) < 2:
        return Importance({}, step, count, f"all {count} trials have the same score at step {step:,}")
    if find_spec("optuna") is None:
        return Importance({}, step, count, f"needs Optuna: {NEEDS_OPTUNA}")
    return Importance(_ped_anova(history, space, step), step, count)


def _ped_anova(history: StudyHistory, space: Space, step: int) -> dict[str, float]:
    """On the scale on which values were drawn: a range on a log scale counts as one, names are unordered."""
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    def place_of(one: Parameter, value: object) -> tuple[BaseDistribution, int | float] | None:
        unit = one.domain.unit_of(value)
        if unit is None:
            return None
        if isinstance(one.domain, Choices) and not one.domain.ordered:
            return CategoricalDistribution(range(one.domain.count)), int(unit * one.domain.count)
        return FloatDistribution(0.0, 1.0), unit

    with quiet_optuna(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Optuna, about parts of it that may change
        study = optuna.create_study(direction="maximize" if history.higher_is_better else "minimize")
        for trial in history.trials:
            if step in trial.scores:
                placed = {
                    one.key: found
                    for one in space.parameters
                    if one.key in trial.point and (found := place_of(one, trial.point[one.key])) is not None
                }
                study.add_trial(
                    optuna.create_trial(
                        value=trial.scores[step],
                        params={key: value for key, (_, value) in placed.items()},
                        distributions={key: distribution for key, (distribution, _) in placed.items()},
                    )
                )
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST)
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Without a line on stderr for each study."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
