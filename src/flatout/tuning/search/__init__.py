"""What a study trains next."""

from flatout.tuning.search.history import SearchHistory
from flatout.tuning.search.search import TrialSearch
from flatout.tuning.search.trials import Rung, RungAnswer, Trial

Answer, Search = RungAnswer, TrialSearch  # short names for those who drive a search: other parts of the package have both too

__all__ = ["Answer", "Rung", "Search", "SearchHistory", "Trial"]
