"""What a study trains next."""

from flatout.tuning.search.history import SearchHistory
from flatout.tuning.search.search import TrialSearch as Search
from flatout.tuning.search.trials import Rung, Trial
from flatout.tuning.search.trials import RungAnswer as Answer  # other parts of the package have an Answer and a Search too

__all__ = ["Answer", "Rung", "Search", "SearchHistory", "Trial"]
