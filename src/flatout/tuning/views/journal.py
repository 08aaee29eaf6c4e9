"""A study as a journal of Optuna, which optuna-dashboard opens."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.base.errors import StoreError, UsageError
from flatout.tuning.space.domains import Choices, Domain, Mixture, Range, same_as, shown
from flatout.tuning.space.parameter import Parameter
from flatout.tuning.study.folder import StudyFolder
from flatout.tuning.views.history import DROPPED, FAILED, StudyHistory, TrialLine, read_history
from flatout.tuning.views.importance import NEEDS_OPTUNA, quiet_optuna

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

_Scalar = bool | int | float | str | None


def write_journal(folder: StudyFolder, path: Path) -> int:
    """Replaces the file; returns the number of trials. A trial that was dropped is PRUNED there."""
    if find_spec("optuna") is None:
        raise UsageError(f"--optuna needs Optuna: {NEEDS_OPTUNA}")
    history = read_history(folder)
    distributions = {one.key: _distribution(one, history) for one in folder.space.parameters}
    aside = path.with_name(f"{path.name}.part")
    with suppress(FileNotFoundError):
        aside.unlink()
    try:
        with quiet_optuna(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Optuna, about parts of it that may change
            _write(folder, history, distributions, aside)
        os.replace(aside, path)
    except OSError as error:
        raise StoreError(f"can't write {path}: {error.strerror}") from error
    return len(history.trials)


def _write(folder: StudyFolder, history: StudyHistory, distributions: Mapping[str, BaseDistribution], path: Path) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.study import StudyDirection

    direction = StudyDirection.MAXIMIZE if history.higher_is_better else StudyDirection.MINIMIZE
    storage = JournalStorage(JournalFileBackend(str(path)))
    study = optuna.create_study(study_name=folder.name, storage=storage, direction=direction)
    study.set_metric_names([history.metric])
    if (result := folder.result) is not None:
        for key in ("winner", "again", "recipe", "gain", "better_than_recipe"):
            study.set_user_attr(key, result[key])
    study.add_trials([_trial(trial, history, distributions) for trial in history.trials])


def _trial(trial: TrialLine, history: StudyHistory, distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
    import optuna
    from optuna.trial import TrialState

    state = {FAILED: TrialState.FAIL, DROPPED: TrialState.PRUNED}.get(history.state(trial), TrialState.COMPLETE)
    params: dict[str, _Scalar] = {}
    for key, value in trial.point.items():
        if key in distributions:
            params[key] = _as_listed(value, distributions[key])
    found = optuna.create_trial(
        state=state,
        value=trial.score if state == TrialState.COMPLETE else None,
        params=params,
        distributions={key: distributions[key] for key in params},
        intermediate_values=dict(trial.scores),
        user_attrs={"trial": trial.number, **({"failed": trial.failed} if trial.failed else {})},
    )
    found.datetime_start = datetime.fromtimestamp(trial.began_at)
    found.datetime_complete = datetime.fromtimestamp(max(trial.ended_at, trial.began_at))
    return found


def _distribution(one: Parameter, history: StudyHistory) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    ends = _ends(one.domain)
    if ends is None:  # names: all choices, or all values that a mixture with names had
        seen = {same_as(trial.point[one.key]): trial.point[one.key] for trial in history.trials if one.key in trial.point}
        values = one.domain.values if isinstance(one.domain, Choices) else tuple(seen.values())
        plain = all(value is None or isinstance(value, bool | int | float | str) for value in values)
        if plain and len(set(values)) == len(values):
            return CategoricalDistribution(values)
        return CategoricalDistribution(tuple(dict.fromkeys(map(shown, values))) or ("",))
    low, high, log = ends
    if isinstance(one.domain, Range) and one.domain.whole:
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _ends(domain: Domain) -> tuple[float, float, bool] | None:
    """Lowest, highest, whether on a log scale; None for choices, and for a mixture with a name."""
    if isinstance(domain, Range):
        return domain.low, domain.high, domain.log
    if not isinstance(domain, Mixture):
        return None
    low: list[float] = []
    high: list[float] = []
    for part in domain.parts:
        if isinstance(part, Range):
            low.append(part.low)
            high.append(part.high)
        elif isinstance(value := part.values[0], int | float) and not isinstance(value, bool):
            low.append(value)
            high.append(value)
        else:
            return None
    # 0, or 1e-5 to 1e-1 on a log scale: Optuna has no such scale, so this one is linear
    log = min(low) > 0 and all(part.log for part in domain.parts if isinstance(part, Range))
    return min(low), max(high), log


def _as_listed(value: Any, distribution: BaseDistribution) -> Any:
    """Choices that are lists or mappings, as their text."""
    from optuna.distributions import CategoricalDistribution

    if isinstance(distribution, CategoricalDistribution) and (
        isinstance(value, list | dict) or value not in distribution.choices
    ):
        return shown(value)
    return value
