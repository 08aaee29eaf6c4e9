"""Keys that a search must not change: trials could not be compared, or the winner would only be lucky."""

from __future__ import annotations

from flatout.base.errors import RecipeError, UsageError
from flatout.recipe.schema import Recipe
from flatout.tuning.space.space import WHERE, Space

_KEPT = {
    "seed": "the best of many seeds is luck, which no other training repeats",
    "budget": "trials are compared after the same training; give each more or less of it in the recipe",
    "best": "trials are compared by one metric: --metric",
    "metrics": "trials are compared by one metric: --metric",
    "name": "it changes nothing that is learnt",
    "settings": "the plan chooses settings; --set fixes one",
    "knobs": "the plan chooses settings; --set fixes one",
    "evaluate": "a study decides itself when trials are evaluated",
    "early_stop": "a study decides itself which trials go on",
    "prefer": "it changes nothing that is learnt",
    "track": "it changes nothing that is learnt",
    "price_per_hour": "it changes nothing that is learnt",
    "data.holdout": "other rows would be held out, and scores on other rows do not compare",
    "data.validation": "scores on other rows do not compare",
    "data.test": "scores on other rows do not compare",
}


def check_keys(recipe: Recipe, space: Space) -> None:
    problems = [f"{key} can't be searched: {why}" for key, why in _KEPT.items() if key in space.by_key]
    if problems:
        raise RecipeError(problems, WHERE)
    if recipe.searches_rate:
        raise UsageError(
            "lr: auto searches a rate for each run, and tune compares its trials with the recipe as it is: set lr to a number, "
            "such as that of `flatout find-lr RECIPE`"
        )
