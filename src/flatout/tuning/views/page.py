"""The pictures of a study, for its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.tree import Picture
from flatout.tuning.space.space import Space
from flatout.tuning.views.course import learning_curves, optimisation_history
from flatout.tuning.views.finals_picture import finals_picture
from flatout.tuning.views.history import StudyHistory
from flatout.tuning.views.importance import Importance
from flatout.tuning.views.parameters import importance_picture, parallel_coordinates, slices


def study_pictures(
    history: StudyHistory, space: Space, result: Mapping[str, Any] | None, importance: Importance
) -> tuple[Picture, ...]:
    """Only those for which there is something to draw."""
    winner = None if result is None else int(result["winner"]["number"])
    found: list[Picture | None] = [
        None if result is None else finals_picture(result),
        optimisation_history(history),
        learning_curves(history, winner),
    ]
    # the scores of trials that were dropped early do not compare with those of others
    step = history.common_step((len(history.scored) + 1) // 2)
    if step is not None:
        found.append(parallel_coordinates(history, space, step))
    if importance.shares:
        found.append(importance_picture(importance.shares, importance.step, importance.trials))
    if step is not None:
        found += slices(history, space, step)
    return tuple(one for one in found if one is not None)
